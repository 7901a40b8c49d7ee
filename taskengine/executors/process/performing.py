"""One body, from the words that name its function to the words that tell its end; in the child, on its main thread."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from math import isfinite
from typing import Any

import anyio
import msgspec

from taskengine import codec, defaults
from taskengine.context import LONGEST, TaskContext
from taskengine.core.errors import InvalidArguments, InvalidResult, TaskDiscarded, TaskSnoozed, TaskStopped
from taskengine.core.errortext import storable
from taskengine.core.model import FailureKind
from taskengine.errorreports import report_of
from taskengine.executors.process.frames import (
    Discarded,
    End,
    Raised,
    Returned,
    Snoozed,
    Start,
    Stopped,
    encode,
    frame_limit,
)
from taskengine.ports import ErrorReport
from taskengine.registry import TaskDefinition
from taskengine.signals import Signals, Voice

MAX_REASON_BYTES = 10_000

_definitions: dict[tuple[str, str, str], TaskDefinition] = {}


def perform(start: Start, signals: Signals, voice: Voice) -> End:
    """Run the body and tell how it ended; never raises."""
    try:
        definition = _find(start)
        args, kwargs = definition.decode_arguments(start.arguments)
    except (InvalidArguments, codec.NotJson) as error:
        return raised(_report(error, start), retryable=False)
    except BaseException as error:
        return raised(_report(error, start))
    if start.takes_context:
        args = (_context(start, signals, voice), *args)
    voice.begun()
    try:
        value = _call(definition, args, kwargs)
    except BaseException as error:
        return _end_of(error, start)
    return _encode_result(definition, value, start)


def encode_end(end: End, start: Start) -> bytes:
    """Make the last frame, whatever is in it."""
    limit = frame_limit(start.max_value_bytes, start.max_error_bytes)
    try:
        frame = encode(end)
        if len(frame) <= limit:
            return frame
        problem = f"its end takes {len(frame):,} bytes to tell and the limit is {limit:,}"
    except (ValueError, TypeError, msgspec.MsgspecError, RecursionError) as error:
        problem = f"its end cannot be told: {codec.say_briefly(error)}"
    return encode(Raised(kind=FailureKind.EXCEPTION, type_name=type(end).__name__, message=problem))


def _find(start: Start) -> TaskDefinition:
    """Import the function, and read how it is called."""
    if start.sys_path is not None:
        sys.path[:] = [os.fsdecode(path) for path in start.sys_path]
        importlib.invalidate_caches()
    key = (start.module, start.qualname, start.name)
    if key not in _definitions:
        found: Any = importlib.import_module(start.module)
        for name in start.qualname.split("."):
            found = getattr(found, name)
        _definitions[key] = TaskDefinition.of(found, name=start.name)
    return _definitions[key]


def _context(start: Start, signals: Signals, voice: Voice) -> TaskContext:
    return TaskContext(
        task_id=start.task_id,
        name=start.name,
        attempt=start.attempt,
        metadata=start.metadata,
        idempotency_key=start.idempotency_key,
        signals=signals,
        voice=voice,
    )


def _call(definition: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function: Callable[..., Any] = definition.function
    if not definition.is_async:
        return function(*args, **kwargs)

    async def run() -> Any:
        return await function(*args, **kwargs)

    return anyio.run(run, backend="asyncio")


# --- its end ----------------------------------------------------------------------------------------------------


def _encode_result(definition: TaskDefinition, value: Any, start: Start) -> End:
    try:
        return Returned(definition.encode_result(value, limit=start.max_value_bytes))
    except InvalidResult as invalid:
        if inspect.iscoroutine(value):
            value.close()  # Else it would complain that nobody awaited it.
        text = storable(str(invalid), limit=start.max_error_bytes)
        return Raised(kind=FailureKind.RESULT_INVALID, type_name="InvalidResult", message=text, retryable=False)
    except BaseException as error:  # its own code, such as an __eq__
        return raised(_report(error, start))


def _end_of(error: BaseException, start: Start) -> End:
    control = _single_leaf(error)
    kind = type(control)
    reason = _words(getattr(control, "reason", None))
    if issubclass(kind, TaskStopped):
        return Stopped(reason)
    if issubclass(kind, TaskDiscarded):
        return Discarded(reason or "")
    if issubclass(kind, TaskSnoozed):
        delay = getattr(control, "delay", None)
        if isinstance(delay, int | float) and isfinite(delay) and 0 <= delay <= LONGEST:
            return Snoozed(float(delay), reason)
    return raised(_report(error, start))


def _single_leaf(error: BaseException) -> BaseException:
    """Look into groups of one: a task group wraps whatever leaves it."""
    while issubclass(type(error), BaseExceptionGroup):
        members: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(error)
        if len(members) != 1:
            break
        error = members[0]
    return error


def _words(value: object) -> str | None:
    try:
        return None if value is None else storable(str(value), limit=MAX_REASON_BYTES)
    except Exception:  # its own __str__
        return None


def _report(error: BaseException, start: Start) -> ErrorReport:
    return report_of(error, start.attempt, start.max_error_bytes)


def raised(report: ErrorReport, *, retryable: bool | None = None) -> Raised:
    """Put a report into the words of the wire."""
    failure = report.failure
    return Raised(
        kind=failure.kind,
        type_name=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        detail=_plain_detail(failure.detail),
        leaves=[[storable(name, limit=1_000) for name in names] for names in report.leaves],
        retryable=report.retryable if retryable is None else retryable,
        retry_after=report.retry_after,
    )


def _plain_detail(detail: Any) -> dict[str, Any] | None:
    """Reduce what a body put on its exception to what can be stored, as it is done for bodies in the parent."""
    if detail is None:
        return None
    try:
        plain: dict[str, Any] = codec.load(codec.dump(dict(detail), limit=defaults.MAX_ERROR_BYTES))
        return plain
    except Exception as error:
        return {"unstorable": storable(codec.say_briefly(error), limit=1_000)}
