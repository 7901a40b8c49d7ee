"""Rows and their parts as text: they round trip, and reading a broken one is total."""

import logging
import math
from datetime import UTC, date, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine import codec, defaults, records
from taskengine.codec import NotJson
from taskengine.core.lifecycle import State, Trigger
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
    TaskEnd,
    TaskRow,
    Wish,
    WishKind,
    to_micros,
)
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts

NOW = datetime(2026, 11, 30, 12, 0, 0, 123, tzinfo=UTC)

texts = st.text()  # no surrogates by default
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


# --- parts of a row ---------------------------------------------------------------------------------------------

any_text = st.text(st.characters() | st.sampled_from("\x00\ud800"), max_size=20)


@given(
    st.builds(
        Failure,
        kind=st.sampled_from(FailureKind),
        type=texts,
        message=texts,
        traceback=texts,
        retryable=st.booleans(),
        attempt=st.integers(0, 10**6),
        detail=st.none() | st.dictionaries(texts, json_values, max_size=3),
    )
)
def test_failures_round_trip(failure: Failure) -> None:
    kept = records.load_failure(records.dump_failure(failure))
    clean = attrs.evolve(
        failure, **{name: getattr(failure, name).replace("\x00", "\ufffd") for name in ("type", "message", "traceback")}
    )
    assert kept == clean


@pytest.mark.parametrize("detail", [{"a": math.nan}, {"a": object()}, {"\ud800": 1}, {"a": "x" * 10**6}, 3])
def test_a_detail_that_cannot_be_stored_does_not_lose_the_failure(detail: Any) -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="E", message="m\ud800\x00", detail=detail)
    kept = records.load_failure(records.dump_failure(failure))
    assert kept.message == "m\ufffd\ufffd"
    assert kept.detail is not None
    assert "unstorable" in kept.detail


def test_a_detail_may_hold_richer_values() -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="E", detail={"at": date(2026, 1, 2)})
    assert records.load_failure(records.dump_failure(failure)).detail == {"at": "2026-01-02"}


def test_error_texts_are_cut_at_their_limit_and_marked() -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="E", traceback="x" * (defaults.MAX_ERROR_BYTES + 1))
    assert records.load_failure(records.dump_failure(failure)).traceback.endswith("… [cut, 65537 bytes in all]")


def test_wishes_round_trip() -> None:
    for wish in (Wish(kind=WishKind.STOP, actor="eva", reason="tea"), Wish(kind=WishKind.CANCEL)):
        assert records.load_wish(records.dump_wish(wish)) == wish


def test_holds_round_trip() -> None:
    for hold in (Hold(actor="eva", reason="tea", until=NOW), Hold(actor="engine"), Hold(actor="eva", by="tag:nightly")):
        assert records.load_hold(records.dump_hold(hold)) == hold


def test_a_hold_from_before_there_were_holds_of_many_is_by_itself() -> None:
    assert records.load_hold('{"actor":"eva","reason":null,"until":null}') == Hold(actor="eva")


def test_timeouts_round_trip_through_their_constructor() -> None:
    some = Timeouts(start=1, attempt=2.5, idle=3, total=1e10, final=["idle", "attempt"])
    for timeouts in (Timeouts(), Timeouts(attempt=0.1), some):
        assert records.load_timeouts(records.dump_timeouts(timeouts)) == timeouts


def test_timeouts_that_are_no_limit_take_no_room() -> None:
    assert records.dump_timeouts(Timeouts()) == "{}"
    assert records.dump_timeouts(Timeouts(idle=1.0, final="idle")) == '{"final":["idle"],"idle":1.0}'


def test_callbacks_round_trip() -> None:
    for callbacks in ({}, {"success": "a"}, {"settled": "c", "failure": "b", "success": "a"}):
        assert records.load_callbacks(records.dump_callbacks(callbacks)) == callbacks


def test_policies_round_trip_through_their_constructor() -> None:
    for policy in (RetryPolicy(), RetryPolicy(max_attempts=1, base=0, retry_on=(ValueError,), give_up_on=())):
        assert records.load_policy(records.dump_policy(policy)) == policy


LOADERS = [
    records.load_failure,
    records.load_wish,
    records.load_hold,
    records.load_policy,
    records.load_timeouts,
    records.load_callbacks,
]
BROKEN = ["{", "[]", "null", "3", '"x"']


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
@pytest.mark.parametrize("text", BROKEN)
def test_a_part_that_cannot_be_read_is_refused(loader: Any, text: str) -> None:
    with pytest.raises(NotJson):
        loader(text)


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (records.load_failure, "{}"),
        (records.load_failure, codec.dump({"kind": "new kind"})),
        (records.load_wish, '{"kind":"cancel","actor":3,"reason":null}'),
        (records.load_wish, '{"kind":"destroy","actor":"eva","reason":null}'),
        (records.load_hold, '{"actor":"eva","reason":[],"until":null}'),
        (records.load_hold, f'{{"actor":"eva","reason":null,"until":{10**30}}}'),
        (records.load_hold, '{"actor":"eva","reason":null,"until":1.5}'),
        (records.load_hold, '{"actor":"eva","reason":null,"until":null,"by":3}'),
        (records.load_timeouts, '{"unknown":1}'),
        (records.load_timeouts, '{"attempt":0}'),
        (records.load_timeouts, '{"total":"1"}'),
        (records.load_timeouts, '{"final":["total"]}'),
        (records.load_timeouts, '{"final":[[]]}'),
        (records.load_callbacks, '{"success":null}'),
        (records.load_callbacks, '{"success":["a"]}'),
        (records.load_callbacks, '{"started":"a"}'),
        (records.load_policy, '{"unknown":1}'),
        (records.load_policy, '{"base":-1}'),
        (records.load_policy, '{"base":"1"}'),
        (records.load_policy, '{"retry_on":[3]}'),
    ],
)
def test_a_part_with_a_wrong_or_missing_field_is_refused(loader: Any, text: str) -> None:
    with pytest.raises(NotJson):
        loader(text)


# --- rows -------------------------------------------------------------------------------------------------------


def make_row(**changes: Any) -> TaskRow:
    at = to_micros(NOW)
    fields: dict[str, Any] = {"key": 1, "id": "t", "name": "n", "args": "[[1],{}]", "state": State.RUNNING}
    return TaskRow(**(fields | {"created_at": at, "due_at": at} | changes))


def test_a_row_becomes_the_task_that_users_see() -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="E", message="m", attempt=2)
    wish = Wish(kind=WishKind.CANCEL)
    hold = Hold(actor="eva", until=NOW)
    task = records.task_from_row(
        make_row(
            attempt=2,
            charged=1,
            max_attempts=3,
            recover="lost",
            priority=-1,
            tags='["a","b"]',
            metadata='{"k":[1]}',
            label="l",
            idempotency_key="ik",
            requeued_from="old",
            result="0",
            failure=records.dump_failure(failure),
            wish=records.dump_wish(wish),
            held=records.dump_hold(hold),
            owner="o",
            crashes=1,
            version=7,
            started_at=to_micros(NOW),
            finished_at=to_micros(NOW),
            timeouts='{"attempt":5}',
            deadline_at=to_micros(NOW),
            callbacks='{"settled":"on_end"}',
        )
    )
    assert (task.timeouts, task.deadline_at, task.callbacks) == (Timeouts(attempt=5), NOW, {"settled": "on_end"})
    assert (task.id, task.name, task.state, task.attempt, task.charged) == ("t", "n", State.RUNNING, 2, 1)
    assert (task.max_attempts, task.recover, task.priority, task.label) == (3, "lost", -1, "l")
    assert (task.tags, task.metadata, task.arguments, task.result) == (("a", "b"), {"k": [1]}, [[1], {}], 0)
    assert (task.failure, task.wish, task.held) == (failure, wish, hold)
    assert (task.idempotency_key, task.requeued_from, task.owner) == ("ik", "old", "o")
    assert (task.crashes, task.version) == (1, 7)
    assert task.created_at == task.due_at == task.started_at == task.finished_at == NOW


def test_empty_columns_are_empty_fields() -> None:
    task = records.task_from_row(make_row())
    assert (task.tags, task.metadata) == ((), {})
    fields = (task.result, task.failure, task.wish, task.held, task.started_at, task.finished_at)
    assert fields == (None,) * 6
    assert (task.timeouts, task.deadline_at, task.callbacks, task.progress) == (None, None, {}, None)


@pytest.mark.parametrize("text", [*BROKEN, "[" * 100_000, "\x00", ""], ids=lambda text: text[:8])
@pytest.mark.parametrize(
    "column", ["args", "result", "tags", "metadata", "wish", "held", "failure", "timeouts", "callbacks"]
)
def test_one_broken_column_never_hides_the_row(column: str, text: str) -> None:
    task = records.task_from_row(make_row(**{column: text}))
    assert task.id == "t"
    if column == "failure":
        assert task.failure is not None
        assert task.failure.type == "Unreadable"
        assert "cannot be read" in task.failure.message
    elif column in ("wish", "held", "timeouts"):
        assert getattr(task, column) is None
    elif column == "callbacks":
        assert task.callbacks == {}


@pytest.mark.parametrize(("micros", "year"), [(2**63 - 1, 9999), (-(2**63), 1)])
def test_an_instant_beyond_the_calendar_is_shown_as_its_end(micros: int, year: int) -> None:
    side = SideRow(1, 0, micros, None)
    task = records.task_from_row(
        make_row(due_at=micros, started_at=micros, finished_at=micros, deadline_at=micros), side
    )
    assert task.due_at.year == year
    assert task.deadline_at == task.due_at
    assert task.progress == Progress(at=task.due_at)
    assert task.due_at.tzinfo is UTC


def test_a_history_row_becomes_the_transition_that_users_see() -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="E", message="m", attempt=2)
    row = HistoryRow(
        1,
        4,
        State.RUNNING,
        State.FAILED,
        to_micros(NOW),
        Trigger.ATTEMPT_FAILED,
        "engine",
        "r",
        2,
        records.dump_failure(failure),
    )
    seen = records.transition_from_row(9, "t", "n", row)
    assert (seen.position, seen.task_id, seen.name, seen.version) == (9, "t", "n", 4)
    assert (seen.source, seen.target, seen.trigger) == (State.RUNNING, State.FAILED, Trigger.ATTEMPT_FAILED)
    assert (seen.at, seen.actor, seen.reason, seen.attempt, seen.failure) == (NOW, "engine", "r", 2, failure)
    broken = records.transition_from_row(9, "t", "n", row._replace(failure="{"))
    assert broken.failure is not None
    assert broken.failure.type == "Unreadable"
    assert records.transition_from_row(9, "t", "n", row._replace(failure=None)).failure is None


# --- side data, holds of many, captured lines -------------------------------------------------------------------


def test_what_the_body_said_of_itself_is_part_of_the_task() -> None:
    text = '{"done":3,"total":4.5,"unit":"files","message":"zip"}'
    task = records.task_from_row(make_row(attempt=2), SideRow(1, 2, to_micros(NOW), text))
    assert task.progress == Progress(done=3, total=4.5, unit="files", message="zip", at=NOW)


def test_a_heartbeat_alone_is_a_progress_without_numbers() -> None:
    task = records.task_from_row(make_row(attempt=2), SideRow(1, 2, to_micros(NOW), None))
    assert task.progress == Progress(at=NOW)


@pytest.mark.parametrize("attempt", [1, 3])
def test_what_another_attempt_said_counts_for_nothing(attempt: int) -> None:
    assert records.task_from_row(make_row(attempt=2), SideRow(1, attempt, 0, '{"done":1}')).progress is None


@pytest.mark.parametrize(
    "text",
    [
        *BROKEN,
        '{"done":"3","total":true,"unit":4,"message":[]}',
        f'{{"done":{10**400},"total":{-(10**400)}}}',
        '{"done":1e999}',
        "\ud800",
    ],
    ids=lambda text: repr(text)[:12],
)
def test_progress_that_cannot_be_read_never_hides_the_task(text: str) -> None:
    assert records.task_from_row(make_row(), SideRow(1, 0, to_micros(NOW), text)).progress == Progress(at=NOW)


def test_one_field_of_progress_that_cannot_be_read_does_not_hide_the_others() -> None:
    task = records.task_from_row(make_row(), SideRow(1, 0, to_micros(NOW), '{"done":null,"total":9,"message":7}'))
    assert task.progress == Progress(total=9, at=NOW)


@pytest.mark.parametrize(
    ("scope", "stored", "target"),
    [(HoldScope.ALL, "", None), (HoldScope.NAME, "resize", "resize"), (HoldScope.TAG, "nightly", "nightly")],
)
def test_a_hold_of_many_becomes_what_users_see(scope: HoldScope, stored: str, target: str | None) -> None:
    row = HoldRow(scope=scope, target=stored, actor="eva", reason="tea", until=to_micros(NOW), created_at=0)
    seen = records.standing_hold(row)
    begin = datetime(1970, 1, 1, tzinfo=UTC)
    assert seen == StandingHold(
        scope=scope.value, target=target, actor="eva", reason="tea", until=NOW, created_at=begin
    )
    assert records.standing_hold(attrs.evolve(row, until=None)).until is None
    assert records.standing_hold(attrs.evolve(row, until=2**63 - 1)).until == datetime.max.replace(tzinfo=UTC)


@pytest.mark.parametrize(("level", "name"), [(logging.INFO, "INFO"), (logging.ERROR, "ERROR"), (25, "Level 25")])
def test_a_captured_line_names_its_level(level: int, name: str) -> None:
    row = LogRow(1, 2, 3, to_micros(NOW), level, "hello")
    assert records.log_line(row) == LogLine(attempt=2, number=3, at=NOW, level=name, message="hello")


# --- what a callback is called with -----------------------------------------------------------------------------


def end_of(row: TaskRow, state: State, result: str | None = None, failure: str | None = None) -> dict[str, Any]:
    args, kwargs = codec.load(records.callback_arguments(row, state, result, failure))
    assert kwargs == {}
    (end,) = args
    assert type(end) is dict
    assert end.keys() == {field.name for field in attrs.fields(TaskEnd)}
    return end


def test_a_callback_learns_of_the_value_of_what_succeeded() -> None:
    row = make_row(attempt=2, label="l", metadata='{"k": [1]}')
    assert end_of(row, State.SUCCEEDED, '{"b": [1, 2.50], "a": "ä"}') == {
        "id": "t",
        "name": "n",
        "state": "succeeded",
        "attempt": 2,
        "value": {"a": "ä", "b": [1, 2.5]},
        "failure": None,
        "label": "l",
        "metadata": {"k": [1]},
    }


@pytest.mark.parametrize("result", ["0", '""', "false", "[]", "{}", "null"])
def test_a_callback_learns_of_falsy_values(result: str) -> None:
    assert end_of(make_row(), State.SUCCEEDED, result)["value"] == codec.load(result)


def test_a_callback_learns_of_the_failure() -> None:
    failure = Failure(kind=FailureKind.HTTP_STATUS, type="E", message="m", attempt=2, detail={"status": 500})
    end = end_of(make_row(attempt=2), State.FAILED, None, records.dump_failure(failure))
    assert (end["state"], end["value"], end["label"], end["metadata"]) == ("failed", None, None, None)
    assert end["failure"] == {
        "kind": "http_status",
        "type": "E",
        "message": "m",
        "traceback": "",
        "retryable": False,
        "attempt": 2,
        "detail": {"status": 500},
    }


@pytest.mark.parametrize("state", sorted({State.FAILED, State.CANCELLED, State.STOPPED, State.LOST, State.SKIPPED}))
def test_only_what_succeeded_has_a_value(state: State) -> None:
    assert end_of(make_row(), state, "3")["value"] is None


@pytest.mark.parametrize("text", [*BROKEN, "[" * 100_000, "\x00", "", "\ud800"], ids=lambda text: repr(text)[:8])
def test_damaged_text_never_keeps_a_callback_from_being_told(text: str) -> None:
    row = make_row(id=f"t{text[:9]}", name=f"n{text[:9]}", label=text[:9], metadata=text)
    end = end_of(row, State.SUCCEEDED, text, text)
    assert end["metadata"] is None
    assert end["failure"]["type"] == "Unreadable"
    assert end["id"].startswith("t")


def test_the_deepest_value_still_reaches_the_callback() -> None:
    deep = "[" * codec.MAX_DEPTH + "]" * codec.MAX_DEPTH
    assert codec.dump(end_of(make_row(), State.SUCCEEDED, deep)["value"]) == deep
