"""What people ask of a task, how a body answers a pause, and what a deadline does to a task without a body."""

import pytest

from taskengine.core.decide import (
    ENGINE,
    Decision,
    decide_deadline,
    decide_pause_answer,
    decide_request,
    enact,
    timeout_failure,
)
from taskengine.core.errors import IllegalTransition
from taskengine.core.lifecycle import FINAL, LEASED, STORED, TRANSITIONS, WAITING, State, Trigger
from taskengine.core.model import FailureKind, Hold, TaskRow, Wish, WishKind
from tests.core.deciding import CANCEL, NOW, PAUSE, SECOND, STOP, end, leased, triggers, unowned

OWN = Hold(actor="bob", reason="tea")
OF_MANY = Hold(actor="bob", reason="tea", by="tag:nightly")


def stored(state: State, **values: object) -> TaskRow:
    return leased(state, **values) if state in LEASED else unowned(state, **values)


def ask(row: TaskRow, trigger: Trigger, *, wish: Wish | None = None, held: Hold | None = None) -> Decision | None:
    return decide_request(row, trigger, wish=wish, held=held, actor="anna", reason="r", now=NOW)


# --- ending, and running now ---


@pytest.mark.parametrize("trigger", [Trigger.USER_CANCEL, Trigger.USER_STOP, Trigger.USER_RUN_NOW])
@pytest.mark.parametrize("state", sorted(STORED))
def test_a_request_moves_as_the_table_says_or_changes_nothing_or_is_refused(state: State, trigger: Trigger) -> None:
    row = leased(state) if state in LEASED else unowned(state)
    if state in FINAL or (state is State.STOPPING and trigger is Trigger.USER_STOP):
        assert decide_request(row, trigger, wish=None, actor="anna", reason="r", now=NOW) is None
        return
    if trigger not in TRANSITIONS[state]:
        with pytest.raises(IllegalTransition):
            decide_request(row, trigger, wish=None, actor="anna", reason="r", now=NOW)
        return
    decision = decide_request(row, trigger, wish=None, actor="anna", reason="r", now=NOW)
    assert decision is not None
    target = TRANSITIONS[state][trigger]
    assert decision.triggers == [(trigger, NOW)]
    assert (decision.actor, decision.reason) == ("anna", "r")
    assert (decision.wish is not None) == (target is State.STOPPING)
    assert (decision.due_at == NOW) == (trigger is Trigger.USER_RUN_NOW)
    write, history = enact(row, decision, wish="W" if decision.wish else None, rank=99 if not decision.wish else None)
    assert (write.state, history[0].actor) == (target, "anna")
    assert (write.finished_at is not None) == (target in FINAL)


def test_a_cancel_upgrades_a_stop() -> None:
    decision = decide_request(
        leased(State.STOPPING), Trigger.USER_CANCEL, wish=Wish(kind=WishKind.STOP), actor="anna", reason=None, now=NOW
    )
    assert decision is not None
    assert decision.wish == Wish(kind=WishKind.CANCEL, actor="anna", reason=None)
    stop = decide_request(leased(), Trigger.USER_STOP, wish=None, actor="bob", reason="r", now=NOW)
    assert stop is not None
    assert stop.wish == Wish(kind=WishKind.STOP, actor="bob", reason="r")


def test_a_second_cancel_changes_nothing() -> None:
    row, wish = leased(State.STOPPING), Wish(kind=WishKind.CANCEL)
    assert decide_request(row, Trigger.USER_CANCEL, wish=wish, actor="anna", reason=None, now=NOW) is None


def test_a_pipeline_s_fail_fast_does_not_touch_what_is_ending() -> None:
    row = leased(State.STOPPING)
    assert decide_request(row, Trigger.PIPELINE_FAIL_FAST, wish=None, actor=ENGINE, reason=None, now=NOW) is None


def test_run_now_is_refused_for_what_is_ending_however_it_was_asked_to_end() -> None:
    for wish in (STOP, CANCEL, None):
        with pytest.raises(IllegalTransition):
            ask(leased(State.STOPPING), Trigger.USER_RUN_NOW, wish=wish)


def test_a_stop_reaches_a_paused_body_and_takes_the_place_of_the_pause() -> None:
    for state in (State.PAUSING, State.PAUSED):
        decision = ask(leased(state, wish="P"), Trigger.USER_STOP, wish=PAUSE)
        assert decision is not None
        assert decision.wish == Wish(kind=WishKind.STOP, actor="anna", reason="r")
        assert end(leased(state, wish="P"), decision, wish="S").wish == "S"


# --- pausing ---


def test_a_running_body_is_asked_to_wait_at_a_checkpoint() -> None:
    decision = ask(leased(), Trigger.USER_PAUSE)
    assert decision is not None
    assert decision.wish == Wish(kind=WishKind.PAUSE, actor="anna", reason="r")
    assert decision.hold is None
    write, history = enact(leased(), decision, wish="P")
    assert (write.state, write.wish, write.held, write.owner) == (State.PAUSING, "P", None, "me")
    assert (history[0].trigger, history[0].actor, history[0].reason) == (Trigger.USER_PAUSE, "anna", "r")


@pytest.mark.parametrize("state", sorted(WAITING | {State.STARTING}))
def test_a_task_without_a_body_is_held_and_does_not_move(state: State) -> None:
    decision = ask(stored(state), Trigger.USER_PAUSE)
    assert decision is not None
    assert decision.hold == Hold(actor="anna", reason="r")
    assert decision.triggers == []
    write, history = enact(stored(state), decision, hold="H")
    assert (history, write.state, write.held, write.version) == ([], state, "H", 5)


def test_a_task_that_is_held_by_itself_keeps_its_hold_when_it_is_paused_again() -> None:
    assert ask(unowned(State.QUEUED, held="H"), Trigger.USER_PAUSE, held=OWN) is None


def test_a_task_that_a_hold_of_many_has_marked_is_held_by_itself_from_then_on() -> None:
    decision = ask(unowned(State.QUEUED, held="H"), Trigger.USER_PAUSE, held=OF_MANY)
    assert decision is not None
    assert decision.hold == Hold(actor="anna", reason="r", by=None)


@pytest.mark.parametrize("trigger", [Trigger.USER_PAUSE, Trigger.USER_RESUME])
@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_final_task_is_neither_paused_nor_resumed(state: State, trigger: Trigger) -> None:
    assert ask(unowned(state), trigger) is None


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED, State.STOPPING])
def test_what_is_paused_already_or_ending_is_not_paused(state: State) -> None:
    assert ask(leased(state), Trigger.USER_PAUSE, wish=PAUSE) is None


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED])
def test_a_paused_body_is_resumed_and_the_wish_is_gone(state: State) -> None:
    row = leased(state, wish="P")
    decision = ask(row, Trigger.USER_RESUME, wish=PAUSE)
    assert decision is not None
    write, history = enact(row, decision)
    assert (write.state, write.wish) == (State.RUNNING, None)
    assert (history[0].actor, history[0].reason) == ("anna", "r")


@pytest.mark.parametrize("state", sorted(STORED - FINAL - {State.PAUSING, State.PAUSED}))
def test_a_resume_takes_off_the_hold_of_the_task_alone_and_moves_nothing(state: State) -> None:
    assert ask(stored(state), Trigger.USER_RESUME) is None, "it is not held"
    row = stored(state, held="H")
    assert ask(row, Trigger.USER_RESUME, held=OF_MANY) is None, "the hold of many has a name of its own"
    decision = ask(row, Trigger.USER_RESUME, held=OWN)
    assert decision is not None
    assert (decision.releases_hold, decision.triggers) == (True, [])
    write, history = enact(row, decision)
    assert (history, write.state, write.held, write.owner) == ([], state, None, row.owner)


def test_a_hold_that_cannot_be_read_can_be_taken_off() -> None:
    decision = ask(unowned(State.QUEUED, held="?"), Trigger.USER_RESUME, held=None)
    assert decision is not None
    assert decision.releases_hold


# --- the body's answer to a pause ---


def test_a_body_that_came_to_its_checkpoint_is_paused_and_the_wish_stays() -> None:
    row = leased(State.PAUSING, wish="P")
    decision = decide_pause_answer(row, is_reached=True, now=NOW)
    assert decision is not None
    write = end(row, decision)
    assert (triggers(decision), write.state, write.wish) == ([Trigger.RUNTIME_PAUSE_REACHED], State.PAUSED, "P")


def test_a_pause_that_was_not_reached_in_time_is_taken_back_with_the_reason() -> None:
    row = leased(State.PAUSING, wish="P")
    decision = decide_pause_answer(row, is_reached=False, now=NOW)
    assert decision is not None
    write, history = enact(row, decision)
    assert (triggers(decision), write.state, write.wish) == ([Trigger.RUNTIME_PAUSE_MISSED], State.RUNNING, None)
    assert "checkpoint" in str(history[0].reason)


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("state", sorted(STORED - {State.PAUSING}))
def test_an_answer_to_a_pause_that_is_over_changes_nothing(state: State, is_reached: bool) -> None:
    assert decide_pause_answer(stored(state), is_reached=is_reached, now=NOW) is None


# --- deadlines ---


def due(state: State = State.QUEUED, **values: object) -> TaskRow:
    return unowned(state, **{"due_at": NOW - 10 * SECOND, "deadline_at": None, "start_within": None, **values})


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (due(start_within=5 * SECOND), FailureKind.TIMEOUT_START),
        (due(start_within=10 * SECOND), FailureKind.TIMEOUT_START),
        (due(start_within=5 * SECOND, deadline_at=NOW + SECOND), FailureKind.TIMEOUT_START),
        (due(start_within=5 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_START),
        (due(start_within=5 * SECOND, deadline_at=NOW - 5 * SECOND), FailureKind.TIMEOUT_TOTAL),
        (due(start_within=5 * SECOND, deadline_at=NOW - 7 * SECOND), FailureKind.TIMEOUT_TOTAL),
        (due(start_within=15 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
        (due(deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
        (due(start_within=5 * SECOND, started_at=NOW - 60 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
        (due(State.RETRY_WAIT, start_within=5 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
        (due(State.SCHEDULED, start_within=5 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
        (due(State.BLOCKED, start_within=5 * SECOND, deadline_at=NOW), FailureKind.TIMEOUT_TOTAL),
    ],
)
def test_of_the_limits_that_have_passed_the_earlier_one_ends_the_task(row: TaskRow, kind: FailureKind) -> None:
    decision = decide_deadline(row, now=NOW)
    failure = decision.failure
    assert failure is not None
    assert (failure.kind, failure.retryable, failure.message) == (kind, False, decision.reason)
    write, history = enact(row, decision, failure="F")
    assert (write.state, write.finished_at, write.failure) == (State.FAILED, NOW, "F")
    is_start = kind is FailureKind.TIMEOUT_START
    assert history[0].trigger is (Trigger.DEADLINE_START if is_start else Trigger.DEADLINE_TOTAL)
    assert history[0].actor == ENGINE


def test_a_hold_stops_no_deadline() -> None:
    row = due(held="H", deadline_at=NOW)
    write = end(row, decide_deadline(row, now=NOW), failure="F")
    assert (write.state, write.held) == (State.FAILED, None)


@pytest.mark.parametrize(
    ("kind", "type_name"),
    [
        (FailureKind.TIMEOUT_START, "TimeoutStart"),
        (FailureKind.TIMEOUT_ATTEMPT, "TimeoutAttempt"),
        (FailureKind.TIMEOUT_IDLE, "TimeoutIdle"),
        (FailureKind.TIMEOUT_TOTAL, "TimeoutTotal"),
    ],
)
def test_a_timeout_s_type_is_its_kind_as_a_class_name(kind: FailureKind, type_name: str) -> None:
    failure = timeout_failure(kind, "too long", 4)
    assert (failure.kind, failure.type, failure.message, failure.attempt) == (kind, type_name, "too long", 4)
