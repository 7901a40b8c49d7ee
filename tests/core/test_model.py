"""The values that the engine speaks of."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core import model
from taskengine.core.lifecycle import FINAL, State
from taskengine.core.model import (
    Failure,
    FailureKind,
    HoldRow,
    HoldScope,
    Outcome,
    Progress,
    Task,
    TaskPage,
    from_micros,
    to_micros,
)

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def make_task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": "t",
        "name": "n",
        "state": State.RUNNING,
        "attempt": 1,
        "charged": 1,
        "max_attempts": 3,
        "recover": "retry",
        "priority": 0,
        "version": 3,
        "created_at": NOW,
        "due_at": NOW,
    }
    return Task(**(fields | changes))


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_instants_survive_the_way_through_microseconds(instant: datetime) -> None:
    assert from_micros(to_micros(instant)) == instant


def test_instants_of_other_zones_are_the_same_instant() -> None:
    there = datetime(2026, 11, 30, 14, 0, 0, tzinfo=timezone(timedelta(hours=2)))
    assert to_micros(there) == to_micros(NOW)
    assert from_micros(to_micros(there)).tzinfo is UTC


def test_a_time_without_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        to_micros(datetime(2026, 11, 30))


def test_a_failure_reads_as_one_line() -> None:
    assert str(Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="x")) == "ValueError: x"
    assert str(Failure(kind=FailureKind.CRASHED, type="crashed")) == "crashed"


def test_the_failure_kinds_are_the_closed_list_of_the_requirements() -> None:
    assert " ".join(kind.value for kind in FailureKind) == (
        "exception http_status connection timeout_start timeout_attempt timeout_idle timeout_total "
        "result_invalid discarded crashed lost"
    )


def test_a_task_tells_its_error_in_one_line() -> None:
    assert make_task().error is None
    failure = Failure(kind=FailureKind.EXCEPTION, type="KeyError", message="'y'")
    assert make_task(failure=failure).error == "KeyError: 'y'"


@pytest.mark.parametrize("state", State)
def test_a_task_knows_whether_it_has_ended(state: State) -> None:
    assert make_task(state=state).is_final == (state in FINAL)


def test_durations_are_known_once_the_task_has_ended() -> None:
    begun = make_task(started_at=NOW + timedelta(seconds=1))
    assert (begun.duration_ms, begun.total_ms) == (None, None)
    ended = attrs.evolve(begun, finished_at=NOW + timedelta(seconds=3, microseconds=999))
    assert (ended.duration_ms, ended.total_ms) == (2000, 3000)


def test_a_task_that_never_began_has_a_total_and_no_duration() -> None:
    task = make_task(state=State.CANCELLED, finished_at=NOW + timedelta(milliseconds=5))
    assert (task.duration_ms, task.total_ms) == (None, 5)


def test_durations_are_not_negative_when_the_clock_was_set_back() -> None:
    task = make_task(started_at=NOW, finished_at=NOW - timedelta(hours=1))
    assert (task.duration_ms, task.total_ms) == (0, 0)


@pytest.mark.parametrize("value", [None, 0, "", False, [], {}])
def test_a_falsy_result_is_a_result(value: object) -> None:
    outcome = Outcome(id="t", state=State.SUCCEEDED, value=value, failure=None, attempt=1)
    assert outcome.ok
    assert outcome.unwrap() == value


@pytest.mark.parametrize("state", sorted(set(State) - {State.SUCCEEDED}))
def test_no_other_state_is_ok(state: State) -> None:
    failure = Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="x")
    outcome: Outcome[int] = Outcome(id="t", state=state, value=None, failure=failure, attempt=1)
    assert not outcome.ok
    with pytest.raises(RuntimeError, match=f"task t ended {state.value}: ValueError: x"):
        outcome.unwrap()


def test_unwrapping_without_a_failure_says_that_none_was_recorded() -> None:
    outcome: Outcome[int] = Outcome(id="t", state=State.CANCELLED, value=None, failure=None, attempt=1)
    with pytest.raises(RuntimeError, match="no failure recorded"):
        outcome.unwrap()


def test_a_page_is_read_like_a_sequence() -> None:
    first, second = make_task(id="a"), make_task(id="b")
    page = TaskPage((first, second), "cursor")
    assert list(page) == [first, second]
    assert len(page) == 2
    assert page[1] is second
    assert page.next == "cursor"


@pytest.mark.parametrize(
    ("done", "total", "fraction"),
    [
        (1, 4, 0.25),
        (0, 4, 0.0),
        (4, 4, 1.0),
        (5, 4, 1.0),
        (-1, 4, 0.0),
        (1e308, 1e-308, 1.0),
        (None, 4, None),
        (1, None, None),
        (1, 0, None),
        (1, -4, None),
        (None, None, None),
    ],
)
def test_progress_is_a_fraction_where_one_can_be_told(
    done: float | None, total: float | None, fraction: float | None
) -> None:
    assert Progress(done=done, total=total, at=NOW).fraction == fraction


@pytest.mark.parametrize(
    ("scope", "target", "mark"),
    [(HoldScope.ALL, "", "all:"), (HoldScope.NAME, "a.b", "name:a.b"), (HoldScope.TAG, "x:y", "tag:x:y")],
)
def test_the_mark_of_a_hold_of_many_tells_which_one_it_is(scope: HoldScope, target: str, mark: str) -> None:
    assert HoldRow(scope=scope, target=target, actor="eva", reason=None, until=None, created_at=0).mark == mark


def test_a_task_that_nobody_spoke_of_has_no_control_data() -> None:
    task = make_task()
    assert (task.progress, task.timeouts, task.deadline_at, task.callbacks) == (None, None, None, {})


@pytest.mark.parametrize(
    "kind",
    [
        model.Task,
        model.Failure,
        model.Outcome,
        model.Transition,
        model.Wish,
        model.Hold,
        model.StandingHold,
        model.Progress,
        model.LogLine,
        model.TaskEnd,
        model.TaskFilter,
        model.SubmitOptions,
    ],
)
def test_what_users_hold_is_keyword_only(kind: type) -> None:
    assert all(field.kw_only for field in attrs.fields(kind))


def test_a_frozen_value_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        make_task().state = State.FAILED  # type: ignore[misc]
