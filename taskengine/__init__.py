"""A durable task engine that lives inside an asyncio or trio program: no broker, no daemon."""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from taskengine.context import TaskContext as TaskContext
from taskengine.core.errors import AttemptFailed as AttemptFailed
from taskengine.core.errors import DownstreamError as DownstreamError
from taskengine.core.errors import DuplicateTask as DuplicateTask
from taskengine.core.errors import EngineNotRunning as EngineNotRunning
from taskengine.core.errors import GoneError as GoneError
from taskengine.core.errors import IdempotencyConflict as IdempotencyConflict
from taskengine.core.errors import IllegalTransition as IllegalTransition
from taskengine.core.errors import InvalidArguments as InvalidArguments
from taskengine.core.errors import InvalidOption as InvalidOption
from taskengine.core.errors import InvalidResult as InvalidResult
from taskengine.core.errors import NotFinished as NotFinished
from taskengine.core.errors import QueueFull as QueueFull
from taskengine.core.errors import StoreClosed as StoreClosed
from taskengine.core.errors import StoreError as StoreError
from taskengine.core.errors import StoreFull as StoreFull
from taskengine.core.errors import StoreGone as StoreGone
from taskengine.core.errors import StoreIncompatible as StoreIncompatible
from taskengine.core.errors import StoreUnavailable as StoreUnavailable
from taskengine.core.errors import TaskDiscarded as TaskDiscarded
from taskengine.core.errors import TaskEngineError as TaskEngineError
from taskengine.core.errors import TaskExpired as TaskExpired
from taskengine.core.errors import TaskNotFound as TaskNotFound
from taskengine.core.errors import TaskSnoozed as TaskSnoozed
from taskengine.core.errors import TaskStopped as TaskStopped
from taskengine.core.errors import TaskUnsuccessful as TaskUnsuccessful
from taskengine.core.errors import UnknownTask as UnknownTask
from taskengine.core.errors import UsageError as UsageError
from taskengine.core.explain import Explanation as Explanation
from taskengine.core.lifecycle import TRANSITIONS as TRANSITIONS
from taskengine.core.lifecycle import State as State
from taskengine.core.lifecycle import Trigger as Trigger
from taskengine.core.model import Failure as Failure
from taskengine.core.model import FailureKind as FailureKind
from taskengine.core.model import Hold as Hold
from taskengine.core.model import LogLine as LogLine
from taskengine.core.model import Outcome as Outcome
from taskengine.core.model import Progress as Progress
from taskengine.core.model import StandingHold as StandingHold
from taskengine.core.model import Stats as Stats
from taskengine.core.model import SubmitOptions as SubmitOptions
from taskengine.core.model import Task as Task
from taskengine.core.model import TaskEnd as TaskEnd
from taskengine.core.model import TaskPage as TaskPage
from taskengine.core.model import Transition as Transition
from taskengine.core.retry import RetryPolicy as RetryPolicy
from taskengine.core.timeouts import Timeouts as Timeouts
from taskengine.engine import Engine as Engine
from taskengine.handles import Submission as Submission
from taskengine.handles import TaskHandle as TaskHandle
from taskengine.observe.logs import JsonFormatter as JsonFormatter
from taskengine.oneoff import run_task as run_task
from taskengine.registry import TaskCall as TaskCall
from taskengine.registry import task as task

if TYPE_CHECKING:
    from taskengine.core.schedule import Cron as Cron
    from taskengine.core.schedule import Every as Every
    from taskengine.core.schedule import Months as Months
    from taskengine.core.schedule import Once as Once
    from taskengine.stores.memory import MemoryStore as MemoryStore
    from taskengine.stores.sqlite import SqliteStore as SqliteStore

__version__ = "0.1.0"


_LATE = {
    "Cron": "taskengine.core.schedule",
    "Every": "taskengine.core.schedule",
    "MemoryStore": "taskengine.stores.memory",
    "Months": "taskengine.core.schedule",
    "Once": "taskengine.core.schedule",
    "SqliteStore": "taskengine.stores.sqlite",
}
"""Loaded when asked for: most programs use one store and no schedule, and some bring a library along."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module(_LATE[name]), name)


__all__ = [
    "TRANSITIONS",
    "AttemptFailed",
    "Cron",
    "DownstreamError",
    "DuplicateTask",
    "Engine",
    "EngineNotRunning",
    "Every",
    "Explanation",
    "Failure",
    "FailureKind",
    "GoneError",
    "Hold",
    "IdempotencyConflict",
    "IllegalTransition",
    "InvalidArguments",
    "InvalidOption",
    "InvalidResult",
    "JsonFormatter",
    "LogLine",
    "MemoryStore",
    "Months",
    "NotFinished",
    "Once",
    "Outcome",
    "Progress",
    "QueueFull",
    "RetryPolicy",
    "SqliteStore",
    "StandingHold",
    "State",
    "Stats",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreGone",
    "StoreIncompatible",
    "StoreUnavailable",
    "Submission",
    "SubmitOptions",
    "Task",
    "TaskCall",
    "TaskContext",
    "TaskDiscarded",
    "TaskEnd",
    "TaskEngineError",
    "TaskExpired",
    "TaskHandle",
    "TaskNotFound",
    "TaskPage",
    "TaskSnoozed",
    "TaskStopped",
    "TaskUnsuccessful",
    "Timeouts",
    "Transition",
    "Trigger",
    "UnknownTask",
    "UsageError",
    "__version__",
    "run_task",
    "task",
]
