"""The two ends of an attempt: stored text to a call, and what a body did to an outcome."""

from collections.abc import Mapping
from typing import Any

import anyio
from attrs import define

from taskengine import codec
from taskengine.actors.messages import Attempt
from taskengine.actors.settings import Settings
from taskengine.core.decide import AttemptOutcome, OutcomeKind
from taskengine.core.errors import AttemptFailed, DownstreamError, InvalidArguments, InvalidResult, TaskStopped
from taskengine.core.errortext import describe_exception
from taskengine.core.model import Failure, FailureKind, TaskRow
from taskengine.core.retry import error_names
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
    if attempt.cause is not None and _is_the_end_asked_for(error):
        return AttemptOutcome(OutcomeKind.RAISED, now, began_at=began_at)
    return _raised(error, number, now, began_at, settings)


def _is_the_end_asked_for(error: BaseException) -> bool:
    return isinstance(error, TaskStopped | anyio.get_cancelled_exc_class())


def _raised(error: BaseException, number: int, now: int, began_at: int | None, settings: Settings) -> AttemptOutcome:
    failure = _failure_of(error, number, settings.max_error_bytes)
    retryable: bool | None = None
    retry_after = None
    if isinstance(error, AttemptFailed):
        retryable, retry_after = error.retryable, error.retry_after
    elif isinstance(error, DownstreamError):
        retryable = error.retryable
    try:
        leaves = describe_exception(error, limit=settings.max_error_bytes).leaves
    except Exception:  # the failure path cannot fail
        leaves = (error_names(type(error)),)
    return AttemptOutcome(
        OutcomeKind.RAISED,
        now,
        began_at=began_at,
        failure=failure,
        leaves=leaves,
        retryable=retryable,
        retry_after=retry_after,
    )


def _failure_of(error: BaseException, number: int, limit: int) -> Failure:
    text = describe_exception(error, limit=limit)
    kind, type_name, detail = "exception", text.type, None
    if isinstance(error, AttemptFailed):
        kind, type_name, detail = error.kind, error.type_name or text.type, error.detail
    elif isinstance(error, DownstreamError):
        kind = error.kind
    return Failure(
        kind=FailureKind(kind) if kind in _KINDS else FailureKind.EXCEPTION,
        type=type_name,
        message=text.message,
        traceback=text.traceback,
        attempt=number,
        detail=_storable(detail),
    )


def _storable(detail: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if detail is None:
        return None
    try:
        codec.dump(detail)
    except codec.NotJson:
        return {"unreadable": "the detail of this failure cannot be stored as JSON"}
    return detail
