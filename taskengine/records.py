"""The engine's own values as the text that stores keep, and rows as what users hold.

Loaders raise `NotJson` for text that is not what its dumper wrote; what makes a user's value of a row, and the
arguments of a callback, never fails because of one broken column, so that whatever a row contains can still be listed.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from taskengine import defaults
from taskengine.codec import NotJson, dump, load, say_briefly
from taskengine.core.errortext import storable
from taskengine.core.lifecycle import State
from taskengine.core.model import (
    Failure,
    FailureKind,
    HistoryRow,
    Hold,
    HoldRow,
    HoldScope,
    LogLine,
    LogRow,
    Progress,
    SideRow,
    StandingHold,
    Task,
    TaskRow,
    Transition,
    Wish,
    WishKind,
    from_micros,
    to_micros,
)
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts

T = TypeVar("T")

CALLBACKS: Mapping[str, str] = {"success": "on_success", "failure": "on_failure", "settled": "on_settled"}
"""What rows call the ends that a callback may be for, and the options that name the callback."""

_encode = msgspec.json.Encoder(order="sorted").encode


# --- parts of a row ---------------------------------------------------------------------------------------------


def dump_failure(failure: Failure) -> str:
    """Encode a failure; never refuses: what cannot be stored of it is replaced by words that say so."""
    detail = failure.detail
    if detail is not None:
        try:
            detail = load(dump(dict(detail), limit=defaults.MAX_ERROR_BYTES))
        except Exception as exc:
            detail = {"unstorable": storable(say_briefly(exc), limit=1000)}
    record = {
        "kind": failure.kind,
        "type": storable(failure.type, limit=defaults.MAX_ERROR_BYTES),
        "message": storable(failure.message, limit=defaults.MAX_ERROR_BYTES),
        "traceback": storable(failure.traceback, limit=defaults.MAX_ERROR_BYTES),
        "retryable": failure.retryable,
        "attempt": failure.attempt,
        "detail": detail,
    }
    return _encode(record).decode()


def load_failure(text: str) -> Failure:
    """Decode a failure.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    return _build(
        lambda: Failure(
            kind=FailureKind(record["kind"]),
            type=_typed(record["type"], str),
            message=_typed(record["message"], str),
            traceback=_typed(record["traceback"], str),
            retryable=_typed(record["retryable"], bool),
            attempt=_typed(record["attempt"], int),
            detail=_typed(record["detail"], dict) if record["detail"] is not None else None,
        )
    )


def dump_wish(wish: Wish) -> str:
    """Encode a wish whose texts passed `check_text`."""
    return _encode({"kind": wish.kind, "actor": wish.actor, "reason": wish.reason}).decode()


def load_wish(text: str) -> Wish:
    """Decode a wish.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    return _build(
        lambda: Wish(kind=WishKind(record["kind"]), actor=_typed(record["actor"], str), reason=_reason_of(record))
    )


def dump_hold(hold: Hold) -> str:
    """Encode a hold whose texts passed `check_text`; `until` is kept in microseconds since the Unix epoch."""
    until = None if hold.until is None else to_micros(hold.until)
    return _encode({"actor": hold.actor, "reason": hold.reason, "until": until, "by": hold.by}).decode()


def load_hold(text: str) -> Hold:
    """Decode a hold; one without `by`, as they once were, is by itself.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    return _build(
        lambda: Hold(
            actor=_typed(record["actor"], str),
            reason=_reason_of(record),
            until=None if record["until"] is None else from_micros(_typed(record["until"], int)),
            by=None if record.get("by") is None else _typed(record["by"], str),
        )
    )


def dump_policy(policy: RetryPolicy) -> str:
    """Encode a retry policy."""
    record = {name: getattr(policy, name) for name in _POLICY_FIELDS}
    return _encode(record).decode()


def load_policy(text: str) -> RetryPolicy:
    """Decode a retry policy; through its constructor, which checks and converts.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    return _build(lambda: RetryPolicy(**record))


def dump_timeouts(timeouts: Timeouts) -> str:
    """Encode timeouts; those that are no limit are left out."""
    record: dict[str, Any] = {name: getattr(timeouts, name) for name in _TIMEOUT_FIELDS}
    record["final"] = sorted(timeouts.final) or None
    return _encode({name: value for name, value in record.items() if value is not None}).decode()


def load_timeouts(text: str) -> Timeouts:
    """Decode timeouts; through their constructor, which checks and converts.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    return _build(lambda: Timeouts(**record))


def dump_callbacks(callbacks: Mapping[str, str]) -> str:
    """Encode which task is submitted at which end: the keys of `CALLBACKS`, and names."""
    return _encode(callbacks).decode()


def load_callbacks(text: str) -> dict[str, str]:
    """Decode callbacks.

    Raises:
        NotJson: the text is none.
    """
    record = _load_record(text)
    if not record.keys() <= CALLBACKS.keys():
        raise NotJson(f"there are callbacks for {', '.join(CALLBACKS)} alone")
    return _build(lambda: {end: _typed(name, str) for end, name in record.items()})


_TIMEOUT_FIELDS = ("start", "attempt", "idle", "total")
_POLICY_FIELDS = ("max_attempts", "base", "factor", "cap", "jitter", "retry_on", "give_up_on")


def _load_record(text: str) -> dict[str, Any]:
    record = load(text)
    if type(record) is not dict:
        raise NotJson(f"an object was stored here, and this is a {type(record).__name__}")
    return record


def _build(make: Callable[[], T]) -> T:
    try:
        return make()
    except KeyError as exc:
        raise NotJson(f"the field {exc} is missing") from exc
    except (TypeError, ValueError, OverflowError) as exc:
        raise NotJson(say_briefly(exc)) from exc


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _reason_of(record: dict[str, Any]) -> str | None:
    return None if record["reason"] is None else _typed(record["reason"], str)


# --- rows -------------------------------------------------------------------------------------------------------


def task_from_row(row: TaskRow, side: SideRow | None = None) -> Task:
    """Make a user's Task of a row; total: a column that cannot be read is None, an unreadable failure says so.

    Args:
        side: what is kept of its body's own words; it counts if it is of the row's attempt.
    """
    metadata = _readable(load, row.metadata)
    return Task(
        id=row.id,
        name=row.name,
        state=row.state,
        attempt=row.attempt,
        charged=row.charged,
        max_attempts=row.max_attempts,
        recover=row.recover,
        priority=row.priority,
        tags=tags_of(row),
        metadata=metadata if type(metadata) is dict else {},
        label=row.label,
        idempotency_key=row.idempotency_key,
        requeued_from=row.requeued_from,
        arguments=_readable(load, row.args),
        result=_readable(load, row.result),
        failure=readable_failure(row.failure, row.attempt),
        held=_readable(load_hold, row.held),
        wish=_readable(load_wish, row.wish),
        owner=row.owner,
        crashes=row.crashes,
        version=row.version,
        created_at=_instant(row.created_at),
        due_at=_instant(row.due_at),
        started_at=None if row.started_at is None else _instant(row.started_at),
        finished_at=None if row.finished_at is None else _instant(row.finished_at),
        progress=None if side is None or side.attempt != row.attempt else _progress(side),
        timeouts=_readable(load_timeouts, row.timeouts),
        deadline_at=None if row.deadline_at is None else _instant(row.deadline_at),
        callbacks=_readable(load_callbacks, row.callbacks) or {},
    )


def tags_of(row: TaskRow) -> tuple[str, ...]:
    """Read a task's tags; none where they are damaged."""
    tags = _readable(load, row.tags)
    return tuple(str(tag) for tag in tags) if type(tags) is list else ()


def transition_from_row(position: int, task_id: str, name: str, row: HistoryRow) -> Transition:
    """Make a user's Transition of a history row; total, as `task_from_row` is."""
    return Transition(
        position=position,
        task_id=task_id,
        name=name,
        version=row.version,
        source=row.source,
        target=row.target,
        at=_instant(row.at),
        trigger=row.trigger,
        actor=row.actor,
        reason=row.reason,
        attempt=row.attempt,
        failure=readable_failure(row.failure, row.attempt),
    )


def standing_hold(row: HoldRow) -> StandingHold:
    """Make what users see of a hold of many."""
    return StandingHold(
        scope=row.scope.value,
        target=None if row.scope is HoldScope.ALL else row.target,
        actor=row.actor,
        reason=row.reason,
        until=None if row.until is None else _instant(row.until),
        created_at=_instant(row.created_at),
    )


def log_line(row: LogRow) -> LogLine:
    """Make what users see of a captured line."""
    level = str(logging.getLevelName(row.level))
    return LogLine(attempt=row.attempt, number=row.number, at=_instant(row.at), level=level, message=row.message)


def callback_arguments(row: TaskRow, state: State, result: str | None, failure: str | None) -> str:
    """Make the stored arguments of a callback: one TaskEnd, by position; total, as `task_from_row` is.

    The text may be larger than `max_value_bytes`, since result, failure and metadata may each come close to it.

    Args:
        row: the task as it was before its end.
        state: the final state.
        result: the returned value as JSON text; left out unless it succeeded.
        failure: the last failure, as `dump_failure` wrote it.
    """
    end = {
        "id": _storable(row.id),
        "name": _storable(row.name),
        "state": state.value,
        "attempt": row.attempt,
        "value": _embedded(result) if state is State.SUCCEEDED else None,
        "failure": _embedded_failure(failure, row.attempt),
        "label": None if row.label is None else _storable(row.label),
        "metadata": _embedded(row.metadata, kind=dict),
    }
    return _encode([[end], {}]).decode()


def _storable(text: object) -> str:
    return storable(str(text), limit=defaults.MAX_VALUE_BYTES)


def _embedded(text: str | None, *, kind: type = object) -> msgspec.Raw | None:
    """Put stored text into another as it is, which is cheaper than encoding it anew; None if it cannot be read."""
    value = _readable(load, text)
    return msgspec.Raw(text.encode()) if text is not None and value is not None and isinstance(value, kind) else None


def _embedded_failure(text: str | None, attempt: int) -> msgspec.Raw | None:
    readable = readable_failure(text, attempt)
    return None if readable is None else msgspec.Raw(dump_failure(readable).encode())


def _progress(side: SideRow) -> Progress:
    said = _readable(load, side.progress)
    said = said if type(said) is dict else {}
    return Progress(
        done=_number(said.get("done")),
        total=_number(said.get("total")),
        unit=_text(said.get("unit")),
        message=_text(said.get("message")),
        at=_instant(side.seen_at),
    )


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= sys.float_info.max else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _readable(loader: Callable[[str], T], text: str | None) -> T | None:
    if text is None:
        return None
    try:
        return loader(text)
    except NotJson:
        return None


def readable_failure(text: str | None, attempt: int) -> Failure | None:
    if text is None:
        return None
    try:
        return load_failure(text)
    except NotJson as exc:
        words = f"the stored failure cannot be read: {exc.problem}"
        return Failure(kind=FailureKind.EXCEPTION, type="Unreadable", message=words, attempt=attempt)


def _instant(micros: int) -> datetime:
    try:
        return from_micros(micros)
    except OverflowError:  # nobody computes with the year 292,000, yet the row must be shown
        return datetime.max.replace(tzinfo=UTC) if micros > 0 else datetime.min.replace(tzinfo=UTC)
