"""The values that the engine speaks of.

Two families. What users hold (`Task`, `Transition`, `Failure`, `Outcome`, …) is frozen, keyword-only and complete.
What travels on the hot path between actors and stores (`TaskRow`, `TaskWrite`, `HistoryRow`) is plainer, because a
copy of a wide frozen record costs more than the work around it: instants are integers (microseconds since the Unix
epoch, UTC) and structured parts are JSON text that is decoded only where somebody looks.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from attrs import define, field, frozen

from taskengine.core.errors import TaskUnsuccessful
from taskengine.core.lifecycle import State, Trigger, is_final

if TYPE_CHECKING:
    from taskengine.core.retry import RetryPolicy
    from taskengine.core.timeouts import Timeouts

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(instant: datetime) -> int:
    """Convert an aware datetime to microseconds since the Unix epoch.

    Raises:
        ValueError: `instant` is naive; a time without a zone is refused everywhere.
    """
    if instant.tzinfo is None or instant.utcoffset() is None:
        raise ValueError(f"{instant!r} has no time zone; pass an aware datetime such as datetime.now(UTC)")
    return (instant - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Convert microseconds since the Unix epoch to an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


class FailureKind(StrEnum):
    """Why an attempt failed; the list is closed."""

    EXCEPTION = "exception"
    HTTP_STATUS = "http_status"
    CONNECTION = "connection"
    TIMEOUT_START = "timeout_start"
    TIMEOUT_ATTEMPT = "timeout_attempt"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    RESULT_INVALID = "result_invalid"
    DISCARDED = "discarded"
    CRASHED = "crashed"
    LOST = "lost"


@frozen(kw_only=True)
class Failure:
    """What went wrong in one attempt, as data."""

    kind: FailureKind
    type: str
    """Name of the exception's class, or of the condition."""
    message: str = ""
    traceback: str = ""
    """Text without locals; cut at `max_error_bytes`."""
    retryable: bool = False
    """Whether the policy allowed another attempt after it, budget aside."""
    attempt: int = 0
    """Number of the attempt that failed."""
    detail: Mapping[str, Any] | None = None
    """JSON-compatible facts, such as an HTTP answer's status and the head of its body."""

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class WishKind(StrEnum):
    """What was asked of a task that has a body."""

    STOP = "stop"
    CANCEL = "cancel"
    PAUSE = "pause"


class CommandKind(StrEnum):
    """What the owner of a task is asked to do with it."""

    STOP = "stop"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


@frozen(kw_only=True)
class Wish:
    """A stored request to end or pause a task that has a body: what, by whom and why."""

    kind: WishKind
    actor: str = "user"
    reason: str | None = None


@frozen(kw_only=True)
class Hold:
    """A mark that makes the claim pass a task over; the state stays."""

    actor: str
    reason: str | None = None
    until: datetime | None = None
    by: str | None = None
    """The hold of many that has marked this task, such as `tag:nightly`; None: it is held by itself."""


class HoldScope(StrEnum):
    """What a hold of many is about."""

    ALL = "all"
    NAME = "name"
    TAG = "tag"


@frozen(kw_only=True)
class HoldRow:
    """A stored hold of many tasks: none of them is claimed by any process while it stands."""

    scope: HoldScope
    target: str
    """The name or tag; empty for `all`."""
    actor: str
    reason: str | None
    until: int | None
    """Microseconds; it ends by itself then. None: somebody has to release it."""
    created_at: int
    is_released: bool = False
    """It stands no longer, but tasks may still carry its mark; they are freed step by step."""

    @property
    def mark(self) -> str:
        """What the mark on a task says of it."""
        return f"{self.scope.value}:{self.target}"


@frozen(kw_only=True)
class StandingHold:
    """A hold of many tasks, as `Engine.holds` tells of it."""

    scope: str
    """`all`, `name` or `tag`."""
    target: str | None
    """The name or tag; None for `all`."""
    actor: str
    reason: str | None
    until: datetime | None
    created_at: datetime


@frozen(kw_only=True)
class Progress:
    """What a body last said of how far it is."""

    done: float | None = None
    total: float | None = None
    unit: str | None = None
    message: str | None = None
    at: datetime
    """When it said so, or was last seen."""

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None where it cannot be told."""
        if self.done is None or not self.total or self.total < 0:
            return None
        return min(1.0, max(0.0, self.done / self.total))


@frozen(kw_only=True)
class LogLine:
    """A line that a body logged."""

    attempt: int
    number: int
    """Counts the lines of one attempt from 1; the oldest are dropped beyond `max_log_lines`."""
    at: datetime
    level: str
    message: str


@frozen(kw_only=True)
class Task:
    """A stored task as it was when it was read."""

    id: str
    name: str
    state: State
    attempt: int
    """Number of claims so far, the fence; never falls."""
    charged: int
    """What counts against `max_attempts`."""
    max_attempts: int | None
    """None: submitted by a client that does not know the task; set at the first claim."""
    recover: str | None
    priority: int
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(factory=dict)
    label: str | None = None
    idempotency_key: str | None = None
    requeued_from: str | None = None
    arguments: Any = None
    """`[positional, named]` as JSON values; None where the stored text cannot be read."""
    result: Any = None
    """The returned value as JSON values; see `TaskHandle.wait` for the typed one."""
    failure: Failure | None = None
    held: Hold | None = None
    wish: Wish | None = None
    owner: str | None = None
    crashes: int = 0
    version: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None = None
    """When the body of the latest attempt began."""
    finished_at: datetime | None = None
    progress: Progress | None = None
    """What the body of the latest attempt said of itself."""
    timeouts: "Timeouts | None" = None
    """None: those of the task's definition."""
    deadline_at: datetime | None = None
    """When the task as a whole is out of time."""
    callbacks: Mapping[str, str] = field(factory=dict)
    """`success`, `failure` or `settled` -> name of the task that is submitted with the end."""

    @property
    def error(self) -> str | None:
        """The failure in one line, or None."""
        return str(self.failure) if self.failure is not None else None

    @property
    def is_final(self) -> bool:
        return is_final(self.state)

    @property
    def duration_ms(self) -> int | None:
        """How long the latest attempt took, in milliseconds; None until it has ended."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0, (self.finished_at - self.started_at) // timedelta(milliseconds=1))

    @property
    def total_ms(self) -> int | None:
        """From submit to the final state, in milliseconds; None until then."""
        if self.finished_at is None:
            return None
        return max(0, (self.finished_at - self.created_at) // timedelta(milliseconds=1))


@frozen(kw_only=True)
class Transition:
    """One committed move of one task, as the append-only history keeps it."""

    position: int
    """Place in the history of the whole store; the cursor of `Engine.events`."""
    task_id: str
    name: str
    version: int
    """Counts the moves of this task from 1, without gaps."""
    source: State
    target: State
    at: datetime
    trigger: Trigger
    actor: str
    reason: str | None
    attempt: int
    failure: Failure | None = None


@frozen(kw_only=True)
class Outcome(Generic[T_co]):
    """How a task ended."""

    id: str
    state: State
    value: T_co | None
    """What the body returned, decoded by its annotation where the task is known here; None unless succeeded."""
    failure: Failure | None
    attempt: int

    @property
    def ok(self) -> bool:
        """Whether the task succeeded."""
        return self.state is State.SUCCEEDED

    def unwrap(self) -> T_co:
        """Return the value.

        Raises:
            TaskUnsuccessful: the task did not succeed.
        """
        if not self.ok:
            failure = None if self.failure is None else str(self.failure)
            raise TaskUnsuccessful(task_id=self.id, state=self.state, failure=failure)
        return self.value  # type: ignore[return-value]  # None is a value here where T admits it


@frozen(kw_only=True)
class TaskEnd:
    """What a callback task is told of the task that has ended."""

    id: str
    name: str
    state: str
    attempt: int
    value: Any = None
    """What the body returned, as JSON values; None unless it succeeded."""
    failure: Mapping[str, Any] | None = None
    """The fields of its `Failure`."""
    label: str | None = None
    metadata: Mapping[str, Any] | None = None


@frozen(kw_only=True)
class TaskFilter:
    """Which tasks are meant; fields combine with *and*, None matches all."""

    ids: tuple[str, ...] | None = None
    states: frozenset[State] | None = None
    name: str | None = None
    tag: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    held: bool | None = None
    """Whether the task itself carries a hold."""
    requeued: bool | None = None
    """Whether some other task was made of it by `requeue`."""


@frozen
class TaskPage:
    """One page of a listing; iterate it, or pass `next` as the cursor of the next call."""

    tasks: tuple[Task, ...]
    next: str | None
    """Cursor of the following page; None at the end."""

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]


@frozen(kw_only=True)
class Stats:
    """Counters of a store and of the engine that answers."""

    by_state: Mapping[str, int]
    """Tasks in each stored state; every state is present."""
    by_name: Mapping[str, Mapping[str, int]]
    submitted: int
    completed: int
    failed: int
    """Tasks that ended failed or lost."""
    retried: int
    unfinished: int
    queued: int
    slots_used: int
    slots_total: int
    slots_paused: int
    """Slots that paused bodies keep."""
    store_failures: int
    """How often this engine's writes met an outage of the store."""
    store_last_error: str | None


# --- the hot path -----------------------------------------------------------------------------------------------


@define(eq=False)
class TaskRow:
    """One row of the task table; every column, in the order in which stores keep them."""

    key: int
    id: str
    name: str
    args: str
    state: State
    version: int = 0
    attempt: int = 0
    charged: int = 0
    crashes: int = 0
    max_attempts: int | None = None
    recover: str | None = None
    priority: int = 0
    rank: int = 0
    due_at: int = 0
    created_at: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    owner: str | None = None
    wish: str | None = None
    held: str | None = None
    idempotency_key: str | None = None
    send_key: str | None = None
    requeued_from: str | None = None
    retry: str | None = None
    tags: str | None = None
    metadata: str | None = None
    label: str | None = None
    result: str | None = None
    failure: str | None = None
    timeouts: str | None = None
    deadline_at: int | None = None
    """When the task as a whole is out of time."""
    start_within: int | None = None
    """Microseconds after `due_at` in which the first body must begin."""
    callbacks: str | None = None


class TaskWrite(NamedTuple):
    """A guarded write: it changes the row only where attempt and version are the expected ones."""

    key: int
    expected_attempt: int
    expected_version: int
    state: State
    version: int
    charged: int
    crashes: int
    rank: int
    due_at: int
    started_at: int | None
    finished_at: int | None
    owner: str | None
    wish: str | None
    held: str | None
    result: str | None
    failure: str | None


class HistoryRow(NamedTuple):
    """One row of the append-only history, without its position (the store's transaction gives that)."""

    task_key: int
    version: int
    source: State
    target: State
    at: int
    trigger: Trigger
    actor: str
    reason: str | None
    attempt: int
    failure: str | None


class SideRow(NamedTuple):
    """What a body said of itself; apart from the task's row, so that it costs the task no version."""

    task_key: int
    attempt: int
    seen_at: int
    progress: str | None
    """JSON text; None leaves what is there of the same attempt."""


class LogRow(NamedTuple):
    """One captured line."""

    task_key: int
    attempt: int
    number: int
    at: int
    level: int
    message: str


@frozen(kw_only=True)
class CommandRow:
    """A wish for a task that another process runs."""

    id: str
    task_id: str
    owner: str
    """The owner that is to act."""
    kind: CommandKind
    actor: str
    reason: str | None
    created_at: int


@frozen(kw_only=True)
class OwnerRow:
    """Who holds tasks: one row for each start of an engine, renewed by its beat."""

    id: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_started: str
    """The kernel's start time of the process, so that a reused pid is not mistaken for it."""
    beat: int
    started_at: int
    names: tuple[str, ...] = ()
    """What this owner can run."""


# --- what is submitted ------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SubmitOptions:
    """Everything that can be said of a submission besides the call itself; `Engine.submit` documents each."""

    id: str | None = None
    idempotency_key: str | None = None
    delay: float | timedelta | None = None
    due_at: datetime | None = None
    priority: int = 0
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    label: str | None = None
    max_attempts: int | None = None
    retry: "RetryPolicy | None" = None
    recover: str | None = None
    timeout: "Timeouts | float | None" = None
    """A number is the seconds of each attempt."""
    on_success: str | Callable[..., Any] | None = None
    """The task, or its name, that gets a `TaskEnd` when this one has succeeded."""
    on_failure: str | Callable[..., Any] | None = None
    """The same for failed and lost."""
    on_settled: str | Callable[..., Any] | None = None
    """The same for every final state."""
