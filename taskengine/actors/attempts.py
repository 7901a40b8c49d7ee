"""The two ends of an attempt: stored text to a call, and what a body did to an outcome."""

from typing import Any

import anyio
from attrs import define

from taskengine import codec
from taskengine.actors.messages import Attempt
from taskengine.actors.overseer import TIMEOUTS
from taskengine.actors.settings import Settings
from taskengine.core.decide import AttemptOutcome, OutcomeKind, timeout_failure
from taskengine.core.errors import InvalidArguments, InvalidResult, TaskDiscarded, TaskSnoozed, TaskStopped
from taskengine.core.errortext import storable
from taskengine.core.model import Failure, FailureKind, TaskRow, WishKind
from taskengine.core.retry import error_names
from taskengine.core.timeouts import Timeouts
from taskengine.errorreports import read_safely, report_of
from taskengine.ports import BodyEnd, ErrorReport
from taskengine.registry import TaskDefinition


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
        failure = report_of(error, row.attempt, max_error_bytes).failure
        return AttemptOutcome(OutcomeKind.RAISED, now, failure=failure, retryable=False)
    except codec.NotJson as error:
        failure = Failure(kind=FailureKind.EXCEPTION, type="NotJson", message=error.problem, attempt=row.attempt)
        return AttemptOutcome(OutcomeKind.UNREADABLE, now, failure=failure)
    return Prepared(args, kwargs, metadata)


def out_of_time(row: TaskRow, now: int) -> AttemptOutcome | None:
    """Tell that a claimed task must not begin any more, if so. Of two limits that have passed, the earlier one won."""
    limits = []
    if row.start_within is not None and row.started_at is None:
        limits.append((row.due_at + row.start_within, FailureKind.TIMEOUT_START))
    if row.deadline_at is not None:
        limits.append((row.deadline_at, FailureKind.TIMEOUT_TOTAL))
    passed = [limit for limit in limits if limit[0] <= now]
    if not passed:
        return None
    kind = min(passed, key=lambda limit: (limit[0], limit[1] is not FailureKind.TIMEOUT_TOTAL))[1]
    failure = timeout_failure(kind, TIMEOUTS[kind], row.attempt)
    return AttemptOutcome(OutcomeKind.RAISED, now, failure=failure, retryable=False)


def describe_end(
    end: BodyEnd, attempt: Attempt, definition: TaskDefinition, timeouts: Timeouts, now: int, settings: Settings
) -> AttemptOutcome:
    """Turn a body's end into the report on its attempt, judged by the cause that was noted before."""
    began_at = attempt.began_at
    if end.is_abandoned:
        return AttemptOutcome(OutcomeKind.ABANDONED, now, began_at=began_at)
    number = attempt.row.attempt
    error = end.error
    if error is None and end.report is None:
        return _describe_value(end, attempt, definition, now, settings)
    report = end.report or report_of(error or Exception(), number, settings.max_error_bytes)
    wish = attempt.wish
    is_wished = wish is not None and wish.kind is not WishKind.PAUSE
    # Only a wish that is stored ends the task; a cause that is merely noted may still come to nothing.
    if is_wished and error is not None and _is_the_end_asked_for(error):
        return AttemptOutcome(OutcomeKind.RAISED, now, began_at=began_at)
    if not is_wished and attempt.cause in _TIMEOUTS:
        return _describe_timeout(attempt, FailureKind(attempt.cause), timeouts, now)
    told = None if error is None else _described_by_body(error, now, began_at)
    if told is not None:
        return told
    if attempt.cause in ("shutdown", "owner_gone"):
        return AttemptOutcome(OutcomeKind.INTERRUPTED, now, began_at=began_at)
    return outcome_of(report, now, began_at)


def _describe_value(
    end: BodyEnd, attempt: Attempt, definition: TaskDefinition, now: int, settings: Settings
) -> AttemptOutcome:
    began_at, text = attempt.began_at, end.result
    if text is None:
        try:
            text = definition.encode_result(end.value, limit=settings.max_value_bytes)
        except InvalidResult as invalid:
            failure = Failure(
                kind=FailureKind.RESULT_INVALID,
                type="InvalidResult",
                message=str(invalid),
                attempt=attempt.row.attempt,
            )
            return AttemptOutcome(OutcomeKind.RAISED, now, began_at=began_at, failure=failure, retryable=False)
    return AttemptOutcome(OutcomeKind.RETURNED, now, began_at=began_at, result=text)


def _described_by_body(error: BaseException, now: int, began_at: int | None) -> AttemptOutcome | None:
    """Tell what the body asked for by leaving as it did: a snooze or a discard, also out of a task group."""
    leaf = error
    while issubclass(type(leaf), BaseExceptionGroup) and len(leaf.exceptions) == 1:  # type: ignore[attr-defined]
        leaf = leaf.exceptions[0]  # type: ignore[attr-defined]  # narrowed by type and not by isinstance
    kind = type(leaf)  # And not isinstance, which asks the object for its __class__.
    if issubclass(kind, TaskSnoozed):
        # Whatever a body has put there: without a usable delay it is due at once.
        delay = read_safely(leaf, "delay", float) or 0.0
        return AttemptOutcome(OutcomeKind.SNOOZED, now, began_at=began_at, retry_after=delay, reason=_reason_of(leaf))
    if issubclass(kind, TaskDiscarded):
        return AttemptOutcome(OutcomeKind.DISCARDED, now, began_at=began_at, reason=_reason_of(leaf))
    return None


def _reason_of(error: BaseException) -> str | None:
    text = read_safely(error, "reason", str)
    return None if text is None else storable(text, limit=2_000)


def _describe_timeout(attempt: Attempt, kind: FailureKind, timeouts: Timeouts, now: int) -> AttemptOutcome:
    is_final = kind is FailureKind.TIMEOUT_TOTAL or kind.value.removeprefix("timeout_") in timeouts.final
    return AttemptOutcome(
        OutcomeKind.RAISED,
        now,
        began_at=attempt.began_at,
        failure=timeout_failure(kind, TIMEOUTS[kind], attempt.row.attempt),
        leaves=(error_names(TimeoutError),),
        retryable=False if is_final else None,
    )


def describe_abandoned(attempt: Attempt, place: str, now: int) -> AttemptOutcome:
    """Report an attempt whose body was given up; the kind tells what it was to be ended for."""
    failure = None
    wish = attempt.wish
    if attempt.cause in _TIMEOUTS and (wish is None or wish.kind is WishKind.PAUSE):
        kind = FailureKind(attempt.cause)
        words = f"{TIMEOUTS[kind]}; the body did not end when it was told to, and may still be at work at {place}"
        failure = timeout_failure(kind, words, attempt.row.attempt)
    return AttemptOutcome(OutcomeKind.ABANDONED, now, began_at=attempt.began_at, failure=failure)


_TIMEOUTS = frozenset(kind.value for kind in TIMEOUTS)


def _is_the_end_asked_for(error: BaseException) -> bool:
    if issubclass(type(error), BaseExceptionGroup):
        return all(_is_the_end_asked_for(part) for part in error.exceptions)  # type: ignore[attr-defined]  # by type
    return issubclass(type(error), TaskStopped | anyio.get_cancelled_exc_class())


def describe_error(error: BaseException, number: int, now: int, began_at: int | None, limit: int) -> AttemptOutcome:
    """Report an attempt that raised. Never raises itself, whatever the exception is like."""
    return outcome_of(report_of(error, number, limit), now, began_at)


def outcome_of(report: ErrorReport, now: int, began_at: int | None) -> AttemptOutcome:
    """Make the outcome of an attempt that raised what the report tells of."""
    return AttemptOutcome(
        OutcomeKind.RAISED,
        now,
        began_at=began_at,
        failure=report.failure,
        leaves=report.leaves,
        retryable=report.retryable,
        retry_after=report.retry_after,
    )
