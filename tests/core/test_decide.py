"""What follows from an attempt's end and from an owner's death: each rule by example."""

from typing import Any

import pytest

from taskengine.core.decide import (
    ENGINE,
    AttemptOutcome,
    Decision,
    OutcomeKind,
    decide_crash,
    enact,
    may_prefetch,
)
from taskengine.core.errors import IllegalTransition
from taskengine.core.lifecycle import LEASED, State, Trigger
from taskengine.core.model import FailureKind, Hold, Wish
from taskengine.core.timeouts import LONGEST
from tests.core.deciding import (
    CANCEL,
    FAILURE,
    NOW,
    PAUSE,
    SECOND,
    STOP,
    decide,
    end,
    leased,
    outcome,
    triggers,
    unowned,
)

# --- an attempt's end ---


def test_a_returned_value_is_success_and_brings_its_beginning_along() -> None:
    write, history = enact(leased(State.STARTING, failure='{"old":1}'), decide(leased(State.STARTING), returned()))
    assert [(row.version, row.source, row.target, row.at, row.trigger) for row in history] == [
        (6, State.STARTING, State.RUNNING, NOW - SECOND, Trigger.EXECUTOR_LAUNCHED),
        (7, State.RUNNING, State.SUCCEEDED, NOW, Trigger.EXECUTOR_COMPLETED),
    ]
    assert (write.state, write.version, write.result, write.failure) == (State.SUCCEEDED, 7, '"done"', None)
    assert (write.started_at, write.finished_at, write.owner) == (NOW - SECOND, NOW, None)


def returned() -> AttemptOutcome:
    return outcome(OutcomeKind.RETURNED)


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSING, State.PAUSED, State.STOPPING])
def test_a_returned_value_is_success_whatever_was_wished(state: State) -> None:
    decision = decide(leased(state), returned(), wish=CANCEL if state is State.STOPPING else None)
    assert triggers(decision) == [Trigger.EXECUTOR_COMPLETED]
    assert end(leased(state), decision).result == '"done"'


def test_a_failure_with_attempts_left_waits_for_the_next() -> None:
    decision = decide(leased(), outcome(OutcomeKind.RAISED), draw=0.5)
    assert triggers(decision) == [Trigger.ATTEMPT_RETRY]
    assert decision.due_at == NOW + round(1.5 * SECOND)
    assert decision.reason == "ValueError: no"
    assert decision.failure is not None
    assert (decision.failure.retryable, decision.failure.attempt) == (True, 2)
    write = end(leased(), decision, failure="F")
    assert (write.state, write.due_at, write.failure, write.owner) == (State.RETRY_WAIT, decision.due_at, "F", None)
    assert write.charged == 1
    assert write.finished_at is None


def test_the_wait_grows_with_the_charge_and_not_with_the_attempt() -> None:
    decision = decide(leased(attempt=9, charged=2), outcome(OutcomeKind.RAISED))
    assert decision.due_at == NOW + 6 * SECOND


def test_a_retry_after_is_honoured_up_to_the_cap() -> None:
    asked = [decide(leased(), outcome(OutcomeKind.RAISED, retry_after=seconds)).due_at for seconds in (0.0, 7.5, 1e300)]
    assert asked == [NOW + 2 * SECOND, NOW + round(7.5 * SECOND), NOW + 100 * SECOND]


def test_the_last_attempt_s_failure_is_final() -> None:
    decision = decide(leased(charged=3), outcome(OutcomeKind.RAISED))
    assert triggers(decision) == [Trigger.ATTEMPT_FAILED]
    assert decision.reason == "no attempts left"
    assert decision.failure is not None
    assert decision.failure.retryable
    write = end(leased(charged=3), decision, failure="F")
    assert (write.state, write.finished_at, write.failure, write.result) == (State.FAILED, NOW, "F", None)


def test_without_a_known_limit_there_is_one_attempt() -> None:
    assert triggers(decide(leased(max_attempts=None), outcome(OutcomeKind.RAISED))) == [Trigger.ATTEMPT_FAILED]


@pytest.mark.parametrize(
    ("verdict", "leaf", "is_retried"),
    [
        (None, "builtins.ValueError", True),
        (None, "a.Fatal", False),
        (True, "a.Fatal", True),
        (False, "builtins.ValueError", False),
    ],
)
def test_the_body_s_own_verdict_comes_before_the_policy_s(verdict: bool | None, leaf: str, is_retried: bool) -> None:
    decision = decide(leased(), outcome(OutcomeKind.RAISED, retryable=verdict, leaves=((leaf,),)))
    assert triggers(decision) == [Trigger.ATTEMPT_RETRY if is_retried else Trigger.ATTEMPT_FAILED]
    assert decision.failure is not None
    assert decision.failure.retryable is is_retried
    assert decision.reason == ("ValueError: no" if is_retried else "not retryable")


def test_a_body_that_could_not_be_prepared_fails_without_having_begun() -> None:
    row = leased(State.STARTING)
    decision = decide(row, outcome(OutcomeKind.RAISED, began_at=None, retryable=False))
    assert triggers(decision) == [Trigger.ATTEMPT_FAILED]
    assert end(row, decision).started_at is None


@pytest.mark.parametrize("kind", [OutcomeKind.RAISED, OutcomeKind.INTERRUPTED, OutcomeKind.UNBEGUN])
@pytest.mark.parametrize(
    ("wish", "trigger", "state", "told"),
    [
        (CANCEL, Trigger.RUNTIME_CANCEL_DONE, State.CANCELLED, ("anna", "no more")),
        (STOP, Trigger.RUNTIME_STOP_DONE, State.STOPPED, ("bob", "later")),
        (None, Trigger.RUNTIME_CANCEL_DONE, State.CANCELLED, (ENGINE, None)),
    ],
    ids=["cancel", "stop", "unreadable wish"],
)
def test_what_was_to_end_ends_as_wished_and_the_error_is_noted(
    kind: OutcomeKind, wish: Wish | None, trigger: Trigger, state: State, told: tuple[str, str | None]
) -> None:
    row = leased(State.STOPPING, wish="W")
    decision = decide(row, outcome(kind, failure=FAILURE), wish=wish)
    assert triggers(decision) == [trigger]
    assert (decision.actor, decision.reason) == told
    write, history = enact(row, decision, failure="F")
    assert (write.state, write.failure, write.wish, write.result) == (state, "F", "W", None)
    assert history[-1].failure == "F"


def test_a_body_that_cannot_be_ended_is_lost() -> None:
    for state, wish in ((State.RUNNING, None), (State.STARTING, None), (State.STOPPING, CANCEL)):
        decision = decide(leased(state), outcome(OutcomeKind.ABANDONED), wish=wish)
        assert triggers(decision)[-1] is Trigger.ENGINE_ABANDONED
        assert decision.failure is not None
        assert (decision.failure.kind, decision.failure.attempt) == (FailureKind.LOST, 2)
        assert end(leased(state), decision).state is State.LOST


def test_a_body_that_cannot_be_ended_may_bring_its_own_failure() -> None:
    assert decide(leased(), outcome(OutcomeKind.ABANDONED, failure=FAILURE)).failure is FAILURE


@pytest.mark.parametrize("kind", [OutcomeKind.INTERRUPTED, OutcomeKind.UNBEGUN])
def test_a_shutdown_gives_a_task_back_to_its_place_uncharged(kind: OutcomeKind) -> None:
    row = leased(State.STARTING)
    decision = decide(row, outcome(kind))
    write = end(row, decision)
    assert (decision.reason, decision.hold) == ("shutdown", None)
    assert (write.state, write.charged, write.rank, write.owner, write.held) == (State.QUEUED, 0, 77, None, None)
    assert write.finished_at is None


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED])
def test_what_was_paused_at_a_shutdown_stays_held_by_whoever_paused_it(state: State) -> None:
    decision = decide(leased(state, wish="P"), outcome(OutcomeKind.INTERRUPTED), wish=PAUSE)
    assert decision.hold == Hold(actor="carl", reason="lunch")
    write = end(leased(state, wish="P"), decision, hold="H")
    assert (write.state, write.held, write.wish, write.charged) == (State.QUEUED, "H", None, 0)


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED])
@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (OutcomeKind.RAISED, State.RETRY_WAIT),
        (OutcomeKind.SNOOZED, State.SCHEDULED),
        (OutcomeKind.INTERRUPTED, State.QUEUED),
    ],
)
def test_a_pause_whose_body_ended_becomes_a_hold(state: State, kind: OutcomeKind, target: State) -> None:
    decision = decide(leased(state, wish="P"), outcome(kind), wish=PAUSE)
    write = end(leased(state, wish="P"), decision, hold="H")
    assert decision.hold == Hold(actor="carl", reason="lunch")
    assert (write.state, write.held, write.wish) == (target, "H", None)


@pytest.mark.parametrize("wish", [None, CANCEL], ids=["unreadable", "of another kind"])
def test_a_pause_that_nobody_knows_the_author_of_is_held_by_the_engine(wish: Wish | None) -> None:
    decision = decide(leased(State.PAUSED), outcome(OutcomeKind.INTERRUPTED), wish=wish)
    assert decision.hold == Hold(actor=ENGINE, reason="was paused when its body ended")


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED])
@pytest.mark.parametrize(
    ("kind", "values", "target"),
    [
        (OutcomeKind.RETURNED, {}, State.SUCCEEDED),
        (OutcomeKind.RAISED, {"charged": 3}, State.FAILED),
        (OutcomeKind.DISCARDED, {}, State.FAILED),
        (OutcomeKind.ABANDONED, {}, State.LOST),
        (OutcomeKind.INTERRUPTED, {"recover": "lost"}, State.LOST),
    ],
)
def test_a_pause_goes_with_a_final_end(state: State, kind: OutcomeKind, values: dict[str, Any], target: State) -> None:
    row = leased(state, wish="P", held="H", **values)
    decision = decide(row, outcome(kind), wish=PAUSE)
    write = end(row, decision, failure="F")
    assert decision.hold is None
    assert (write.state, write.held, write.wish) == (target, None, None)


# --- what a body asks for by leaving ---


def test_a_snooze_runs_again_later_uncharged_with_the_body_s_words() -> None:
    decision = decide(leased(), outcome(OutcomeKind.SNOOZED, retry_after=2.5, reason="not yet"))
    assert triggers(decision) == [Trigger.BODY_SNOOZE]
    write, history = enact(leased(failure="F"), decision)
    assert (write.state, write.charged, write.expected_attempt) == (State.SCHEDULED, 0, 2)
    assert (write.due_at, write.failure, write.owner) == (NOW + round(2.5 * SECOND), "F", None)
    assert (history[-1].actor, history[-1].reason) == (ENGINE, "not yet")


def test_a_snooze_of_a_body_whose_begin_is_not_stored_brings_it_along() -> None:
    decision = decide(leased(State.STARTING), outcome(OutcomeKind.SNOOZED, retry_after=1.0))
    assert triggers(decision) == [Trigger.EXECUTOR_LAUNCHED, Trigger.BODY_SNOOZE]
    assert end(leased(State.STARTING), decision).started_at == NOW - SECOND


def test_a_snooze_costs_no_attempt_even_on_the_last_one() -> None:
    row = leased(charged=3)
    write = end(row, decide(row, outcome(OutcomeKind.SNOOZED, retry_after=0.0)))
    assert (write.state, write.charged, write.due_at) == (State.SCHEDULED, 2, NOW)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (None, 0),
        (-5.0, 0),
        (float("nan"), 0),
        (float("-inf"), 0),
        (float("inf"), LONGEST),
        (1e300, LONGEST),
        (10**400, LONGEST),
    ],
)
def test_a_snooze_that_a_body_raised_with_any_number_leads_to_an_instant(delay: float | None, seconds: float) -> None:
    decision = decide(leased(), outcome(OutcomeKind.SNOOZED, retry_after=delay))
    assert decision.due_at == NOW + round(seconds * SECOND)


def test_a_discard_fails_at_once_for_good_with_the_body_s_words() -> None:
    decision = decide(leased(), outcome(OutcomeKind.DISCARDED, reason="the user is gone"))
    assert triggers(decision) == [Trigger.ATTEMPT_FAILED]
    assert decision.reason == "discarded"
    failure = decision.failure
    assert failure is not None
    assert (failure.kind, failure.type, failure.message) == (
        FailureKind.DISCARDED,
        "TaskDiscarded",
        "the user is gone",
    )
    assert (failure.retryable, failure.attempt) == (False, 2)
    write = end(leased(), decision, failure="F")
    assert (write.state, write.charged, write.failure, write.finished_at) == (State.FAILED, 1, "F", NOW)


def test_a_discard_without_words_is_one_too() -> None:
    failure = decide(leased(), outcome(OutcomeKind.DISCARDED)).failure
    assert failure is not None
    assert (failure.kind, failure.message) == (FailureKind.DISCARDED, "")


@pytest.mark.parametrize("kind", [OutcomeKind.SNOOZED, OutcomeKind.DISCARDED])
def test_a_body_that_was_to_end_ends_as_wished_whatever_it_asks_for(kind: OutcomeKind) -> None:
    row = leased(State.STOPPING, wish="W")
    write = end(row, decide(row, outcome(kind, retry_after=5.0, reason="r"), wish=STOP))
    assert (write.state, write.due_at, write.charged) == (State.STOPPED, row.due_at, 1)


def test_a_claim_that_is_given_back_tells_why() -> None:
    row = leased(State.STARTING, held="H")
    decision = decide(row, outcome(OutcomeKind.UNBEGUN, reason="held"))
    assert decision.reason == "held"
    assert end(row, decision).held == "H"


def test_a_failure_without_a_failure_is_one_all_the_same() -> None:
    decision = decide(leased(), outcome(OutcomeKind.RAISED, failure=None))
    assert decision.failure is not None
    assert (decision.failure.type, decision.reason) == ("Unknown", "Unknown: it gave no reason")


def test_a_task_whose_arguments_cannot_be_read_is_held_with_the_reason() -> None:
    row = leased(State.STARTING)
    for failure, text in ((FAILURE, "no"), (None, "unreadable")):
        decision = decide(row, outcome(OutcomeKind.UNREADABLE, failure=failure))
        assert decision.hold == Hold(actor=ENGINE, reason=f"arguments cannot be read: {text}")
        assert triggers(decision) == [Trigger.ENGINE_RELEASE]
        assert decision.charged == -1


def test_what_must_not_repeat_is_lost_if_it_had_begun_and_given_back_if_not() -> None:
    row = leased(State.STARTING, recover="lost")
    began = decide(row, outcome(OutcomeKind.INTERRUPTED))
    assert triggers(began) == [Trigger.EXECUTOR_LAUNCHED, Trigger.ENGINE_ABANDONED]
    assert began.failure is not None
    assert began.failure.kind is FailureKind.LOST
    assert triggers(decide(row, outcome(OutcomeKind.UNBEGUN))) == [Trigger.ENGINE_RELEASE]


# --- a dead owner ---


@pytest.mark.parametrize("state", sorted(LEASED - {State.STOPPING}))
def test_a_dead_owner_s_task_is_queued_again_while_attempts_are_left(state: State) -> None:
    decision = decide_crash(leased(state), wish=None, proven_gone=False, now=NOW)
    write = end(leased(state), decision, hold="H" if decision.hold else None)
    assert triggers(decision) == [Trigger.OWNER_REQUEUE]
    assert (write.state, write.charged, write.crashes, write.rank, write.owner) == (State.QUEUED, 1, 1, 77, None)
    assert decision.failure is not None
    assert decision.failure.kind is FailureKind.CRASHED
    assert (decision.hold is not None) == (state in (State.PAUSING, State.PAUSED))


@pytest.mark.parametrize("state", [State.PAUSING, State.PAUSED])
def test_what_was_paused_when_its_owner_died_stays_held_by_whoever_paused_it(state: State) -> None:
    row = leased(state, wish="P")
    decision = decide_crash(row, wish=PAUSE, proven_gone=True, now=NOW)
    assert decision.hold == Hold(actor="carl", reason="lunch")
    write = end(row, decision, hold="H")
    assert (write.state, write.held, write.wish) == (State.QUEUED, "H", None)
    assert decide_crash(leased(state, charged=3), wish=PAUSE, proven_gone=True, now=NOW).hold is None


@pytest.mark.parametrize("state", sorted(LEASED - {State.STOPPING}))
@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ({"charged": 3}, FailureKind.CRASHED, "owner died; no attempts left"),
        ({"max_attempts": None}, FailureKind.CRASHED, "owner died; no attempts left"),
        ({"recover": "lost"}, FailureKind.LOST, "owner died; recover='lost'"),
        ({"recover": "lost", "charged": 3}, FailureKind.LOST, "owner died; recover='lost'"),
    ],
)
def test_a_dead_owner_s_task_is_lost_after_its_last_attempt_or_if_it_must_not_repeat(
    state: State, values: dict[str, Any], kind: FailureKind, reason: str
) -> None:
    row = leased(state, **values)
    decision = decide_crash(row, wish=None, proven_gone=True, now=NOW)
    write = end(row, decision, failure="F")
    assert (write.state, write.crashes, write.finished_at, write.failure) == (State.LOST, 1, NOW, "F")
    assert decision.reason == reason
    assert decision.failure is not None
    assert decision.failure.kind is kind


@pytest.mark.parametrize(("wish", "state"), [(CANCEL, State.CANCELLED), (STOP, State.STOPPED), (None, State.CANCELLED)])
def test_what_was_to_end_ends_as_wished_if_its_process_is_gone(wish: Wish | None, state: State) -> None:
    row = leased(State.STOPPING, recover="lost", charged=3)
    decision = decide_crash(row, wish=wish, proven_gone=True, now=NOW)
    assert end(row, decision).state is state
    assert decision.crashes == 1


def test_what_was_to_end_is_lost_if_its_process_may_still_be_at_work() -> None:
    row = leased(State.STOPPING)
    decision = decide_crash(row, wish=CANCEL, proven_gone=False, now=NOW)
    assert end(row, decision).state is State.LOST
    assert decision.failure is not None
    assert (decision.failure.kind, decision.failure.type) == (FailureKind.LOST, "OwnerVanished")


# --- the prefetch ---


@pytest.mark.parametrize(
    ("values", "is_allowed"),
    [
        ({"charged": 0}, True),
        ({"charged": 1}, True),
        ({"charged": 2}, False),
        ({"charged": 0, "max_attempts": 1}, False),
        ({"charged": 0, "max_attempts": None}, False),
        ({"charged": 0, "recover": "lost"}, False),
        ({"charged": 0, "crashes": 1}, False),
    ],
)
def test_only_what_a_crash_would_neither_charge_nor_end_is_claimed_early(
    values: dict[str, Any], is_allowed: bool
) -> None:
    assert may_prefetch(leased(State.QUEUED, **values)) is is_allowed


# --- enact ---


def test_a_decision_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(IllegalTransition):
        enact(leased(State.SUCCEEDED), Decision(triggers=[(Trigger.CLAIMER_CLAIM, NOW)]))


def test_actor_and_reason_belong_to_the_last_of_several_moves() -> None:
    row = leased(State.STARTING)
    decision = Decision(
        triggers=[(Trigger.EXECUTOR_LAUNCHED, NOW), (Trigger.USER_CANCEL, NOW + 1)], actor="anna", reason="r"
    )
    _, history = enact(row, decision, failure="F")
    assert [(row.actor, row.reason, row.failure) for row in history] == [(ENGINE, None, None), ("anna", "r", "F")]


def test_a_wish_goes_with_the_lease_and_stays_with_the_end() -> None:
    requeued = decide_crash(leased(wish="W"), wish=None, proven_gone=True, now=NOW)
    assert end(leased(wish="W"), requeued).wish is None
    lost = decide_crash(leased(State.STOPPING, wish="W"), wish=CANCEL, proven_gone=False, now=NOW)
    assert end(leased(State.STOPPING, wish="W"), lost).wish == "W"


def test_a_hold_is_set_and_taken_off_without_a_move() -> None:
    row = unowned(State.QUEUED, failure="F")
    write, history = enact(row, Decision(hold=Hold(actor="anna")), hold="H")
    assert history == []
    assert (write.state, write.version, write.expected_version, write.held) == (State.QUEUED, 5, 5, "H")
    assert (write.finished_at, write.failure, write.due_at) == (None, "F", row.due_at)
    freed, history = enact(unowned(State.QUEUED, held="H"), Decision(releases_hold=True))
    assert (history, freed.held, freed.version) == ([], None, 5)


def test_a_hold_stays_through_moves_and_goes_with_the_end() -> None:
    row = unowned(State.RETRY_WAIT, held="H")
    assert end(row, Decision(triggers=[(Trigger.CLOCK_DUE, NOW)])).held == "H"
    assert end(row, Decision(triggers=[(Trigger.USER_CANCEL, NOW)])).held is None


def test_a_wish_stands_while_its_body_is_to_end_or_to_pause_and_no_longer() -> None:
    for state, trigger, stays in (
        (State.PAUSING, Trigger.RUNTIME_PAUSE_REACHED, True),
        (State.PAUSING, Trigger.RUNTIME_PAUSE_MISSED, False),
        (State.PAUSING, Trigger.USER_RESUME, False),
        (State.PAUSED, Trigger.USER_RESUME, False),
        (State.PAUSED, Trigger.EXECUTOR_COMPLETED, False),
        (State.PAUSED, Trigger.BODY_SNOOZE, False),
        (State.STOPPING, Trigger.EXECUTOR_COMPLETED, True),
    ):
        write = end(leased(state, wish="W"), Decision(triggers=[(trigger, NOW)]))
        assert write.wish == ("W" if stays else None), (state, trigger)


def test_a_stop_takes_the_place_of_a_pause() -> None:
    row = leased(State.PAUSED, wish="P")
    assert end(row, Decision(triggers=[(Trigger.USER_STOP, NOW)], wish=STOP), wish="S").wish == "S"
