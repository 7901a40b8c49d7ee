"""The two ends of an attempt: stored text to a call, and what a body did to an outcome."""

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from attrs import define

from taskengine import codec
from taskengine.actors.messages import Attempt
from taskengine.actors.settings import Settings
from taskengine.core.decide import AttemptOutcome, OutcomeKind
from taskengine.core.errors import AttemptFailed, DownstreamError, InvalidArguments, InvalidResult, TaskStopped
from taskengine.core.errortext import ErrorText, describe_exception, storable
from taskengine.core.model import Failure, FailureKind, TaskRow
from taskengine.core.retry import ErrorNames, error_names
from taskengine.ports import BodyEnd
from taskengine.registry import TaskDefinition

_KINDS = frozenset(kind.value for kind in FailureKind)


@define(eq=False)
class Prepared:
    """A call's arguments, decoded by the annotations of the function that is here."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    metadata: dict[str, Any]


def prepare(definition: TaskDefinition, row: TaskRow, max_error_bytes: int, now: int) -> Prepared | AttemptOutcome:
    """Decode what is stored, or say why the body cannot begin."""
    try:
        args, kwargs = definition.decode_arguments(row.args)
        metadata = codec.load(row.metadata) if row.metadata is not None else {}
    except InvalidArguments as error:
        failure = _failure_of(error, row.attempt, max_error_bytes)
        return AttemptOutcome(OutcomeKind.RAISED, now, failure=failure, retryable=False)
    except codec.NotJson as error:
        failure = Failure(kind=FailureKind.EXCEPTION, type="NotJson", message=error.problem, attempt=row.attempt)
        return AttemptOutcome(OutcomeKind.UNREADABLE, now, failure=failure)
    return Prepared(args, kwargs, metadata)


def describe_end(
    end: BodyEnd, attempt: Attempt, definition: TaskDefinition, now: int, settings: Settings
) -> AttemptOutcome:
    """Turn a body's end into the report on its attempt, judged by the cause that was noted before."""
    began_at = attempt.began_at
    if end.is_abandoned:
        return AttemptOutcome(OutcomeKind.ABANDONED, now, began_at=began_at)
    number = attempt.row.attempt
    if end.error is None:
        try:
            text = definition.encode_result(end.value, limit=settings.max_value_bytes)
        except InvalidResult as invalid:
            failure = Failure(
                kind=FailureKind.RESULT_INVALID, type="InvalidResult", message=str(invalid), attempt=number
            )
            return AttemptOutcome(OutcomeKind.RAISED, now, began_at=began_at, failure=failure, retryable=False)
        return AttemptOutcome(OutcomeKind.RETURNED, now, began_at=began_at, result=text)
    if attempt.cause in ("shutdown", "owner_gone"):
        return AttemptOutcome(OutcomeKind.INTERRUPTED, now, began_at=began_at)
    error = end.error
    # Only a wish that is stored ends the task; a cause that is merely noted may still come to nothing.
    if attempt.wish is not None and _is_the_end_asked_for(error):
        return AttemptOutcome(OutcomeKind.RAISED, now, began_at=began_at)
    return describe_error(error, number, now, began_at, settings.max_error_bytes)


def _is_the_end_asked_for(error: BaseException) -> bool:
    return issubclass(type(error), TaskStopped | anyio.get_cancelled_exc_class())


def describe_error(error: BaseException, number: int, now: int, began_at: int | None, limit: int) -> AttemptOutcome:
    """Report an attempt that raised. Never raises itself, whatever the exception is like."""
    # type() and not isinstance: the latter asks the object for its __class__, which it may refuse.
    kind = type(error)
    verdict, retry_after = None, None
    if issubclass(kind, AttemptFailed | DownstreamError):
        verdict = _safe(error, "retryable", bool)
        retry_after = _safe(error, "retry_after", float)
    return AttemptOutcome(
        OutcomeKind.RAISED,
        now,
        began_at=began_at,
        failure=_failure_of(error, number, limit),
        leaves=_leaves_of(error, limit),
        retryable=verdict,
        retry_after=retry_after,
    )


def _leaves_of(error: BaseException, limit: int) -> Sequence[ErrorNames]:
    try:
        return describe_exception(error, limit=limit).leaves
    except Exception:
        return (error_names(type(error)),)


def _failure_of(error: BaseException, number: int, limit: int) -> Failure:
    try:
        text = describe_exception(error, limit=limit)
    except Exception:
        text = ErrorText(type=type(error).__name__, message="", traceback="", leaves=())
    kind, type_name, detail = None, None, None
    if issubclass(type(error), AttemptFailed | DownstreamError):
        kind, type_name = _safe(error, "kind", str), _safe(error, "type_name", str)
        detail = _safe(error, "detail", Mapping)
    return Failure(
        kind=FailureKind(kind) if kind in _KINDS else FailureKind.EXCEPTION,
        type=text.type if type_name is None else storable(type_name, limit=1_000),
        message=text.message,
        traceback=text.traceback,
        attempt=number,
        detail=detail,
    )


def _safe(error: BaseException, name: str, kind: type[Any]) -> Any:
    """Read what a body put on its exception, if it is of the right type."""
    try:
        value = getattr(error, name, None)
        if kind is float:
            is_wait = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            return float(value) if is_wait and value is not None else None
        return value if isinstance(value, kind) else None
    except Exception:
        return None
