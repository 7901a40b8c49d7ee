"""What follows from what happened: each rule by example, and all of them for every combination that can occur."""

import itertools
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.decide import (
    ENGINE,
    AttemptOutcome,
    Decision,
    Limits,
    OutcomeKind,
    decide_crash,
    decide_outcome,
    decide_request,
    enact,
    may_prefetch,
)
from taskengine.core.errors import IllegalTransition
from taskengine.core.lifecycle import FINAL, LEASED, STORED, TRANSITIONS, State, Trigger
from taskengine.core.model import Failure, FailureKind, HistoryRow, Hold, TaskRow, TaskWrite, Wish, WishKind
from taskengine.core.retry import RetryPolicy

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
LIMITS = Limits(retry_after_cap=100.0)
POLICY = RetryPolicy(base=2.0, factor=3.0, cap=50.0, jitter=0.5, give_up_on=("a.Fatal",))
CANCEL = Wish(kind=WishKind.CANCEL, actor="anna", reason="no more")
STOP = Wish(kind=WishKind.STOP, actor="bob", reason="later")
FAILURE = Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="no")


def leased(state: State = State.RUNNING, **values: Any) -> TaskRow:
    row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=state, version=5, attempt=2, charged=1)
    row.max_attempts, row.recover, row.owner, row.rank, row.due_at = 3, "retry", "me", 77, NOW - 9 * SECOND
    row.created_at = row.due_at
    return evolve(row, **values)


def outcome(kind: OutcomeKind, **values: Any) -> AttemptOutcome:
    began = None if kind in (OutcomeKind.UNBEGUN, OutcomeKind.UNREADABLE) else NOW - SECOND
    made = AttemptOutcome(kind=kind, ended_at=NOW, began_at=began)
    if kind is OutcomeKind.RAISED:
        made.failure, made.leaves = FAILURE, (("builtins.ValueError",),)
    if kind is OutcomeKind.RETURNED:
        made.result = '"done"'
    return evolve(made, **values)


def decide(
    row: TaskRow, what: AttemptOutcome, *, wish: Wish | None = None, draw: float = 0.0, policy: RetryPolicy = POLICY
) -> Decision:
    return decide_outcome(row, what, policy=policy, wish=wish, draw=draw, limits=LIMITS)


def triggers(decision: Decision) -> list[Trigger]:
    return [trigger for trigger, _ in decision.triggers]


def end(row: TaskRow, decision: Decision, **texts: Any) -> TaskWrite:
    return enact(row, decision, **texts)[0]


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
def test_what_was_paused_at_a_shutdown_stays_held(state: State) -> None:
    decision = decide(leased(state), outcome(OutcomeKind.INTERRUPTED))
    assert decision.hold == Hold(actor=ENGINE, reason="was paused at shutdown")
    assert end(leased(state), decision, hold="H").held == "H"


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


# --- requests ---


@pytest.mark.parametrize("trigger", [Trigger.USER_CANCEL, Trigger.USER_STOP, Trigger.USER_RUN_NOW])
@pytest.mark.parametrize("state", sorted(STORED))
def test_a_request_moves_as_the_table_says_or_changes_nothing_or_is_refused(state: State, trigger: Trigger) -> None:
    row = leased(state) if state in LEASED else leased(state, owner=None)
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


# --- everything that can occur ---

REPORTED = [
    *itertools.product(
        [State.STARTING, State.RUNNING, State.PAUSING, State.PAUSED, State.STOPPING],
        [OutcomeKind.RETURNED, OutcomeKind.RAISED, OutcomeKind.INTERRUPTED, OutcomeKind.ABANDONED],
        [True],
    ),
    *itertools.product(
        [State.STARTING, State.STOPPING], [OutcomeKind.UNBEGUN, OutcomeKind.UNREADABLE, OutcomeKind.RAISED], [False]
    ),
]
"""(stored state, outcome, whether the body began): what a runner can report. A body that did not begin neither returns
nor has to be abandoned, and its task is not stored as running."""

rows = st.builds(
    lambda max_attempts, charged, extra, recover, crashes: leased(
        max_attempts=max_attempts,
        charged=min(charged, max_attempts),
        attempt=min(charged, max_attempts) + extra,
        crashes=crashes,
        recover=recover,
    ),
    max_attempts=st.integers(1, 5),
    charged=st.integers(1, 5),
    extra=st.integers(0, 3),
    recover=st.sampled_from(["retry", "lost"]),
    crashes=st.integers(0, 3),
)
wishes = st.sampled_from([None, CANCEL, STOP])


def check_enacted(row: TaskRow, decision: Decision) -> tuple[TaskWrite, list[HistoryRow]]:
    """Enact a decision and check what must hold of any."""
    before = evolve(row)
    write, history = enact(
        row,
        decision,
        failure="F" if decision.failure is not None else None,
        hold="H" if decision.hold is not None else None,
        wish="W" if decision.wish is not None else None,
    )
    assert all(getattr(row, name) == getattr(before, name) for name in TaskRow.__annotations__), "row is not changed"
    place = row.state
    for number, step in enumerate(history, start=1):
        assert step.source is place
        assert TRANSITIONS[step.source][step.trigger] is step.target
        assert step.version == row.version + number
        place = step.target
    assert (write.state, write.version) == (place, row.version + len(history))
    assert (write.key, write.expected_attempt, write.expected_version) == (row.key, row.attempt, row.version)
    assert 0 <= write.charged <= (row.max_attempts or row.charged)
    assert (write.owner is None) == (write.state not in LEASED)
    assert (write.finished_at is None) == (write.state not in FINAL)
    assert write.result is None or write.state is State.SUCCEEDED
    assert write.failure is None or write.state is not State.SUCCEEDED
    assert write.held is None or write.state not in FINAL
    if write.state is State.QUEUED:
        assert write.rank == row.rank
    return write, history


@given(
    combination=st.sampled_from(REPORTED),
    row=rows,
    wish=wishes,
    verdict=st.sampled_from([None, True, False]),
    draw=st.floats(0, 1, exclude_max=True),
    retry_after=st.one_of(st.none(), st.floats(allow_nan=True)),
)
def test_every_outcome_of_every_leased_state_is_enacted_along_the_table(
    combination: tuple[State, OutcomeKind, bool],
    row: TaskRow,
    wish: Wish | None,
    verdict: bool | None,
    draw: float,
    retry_after: float | None,
) -> None:
    state, kind, has_begun = combination
    row.state = state
    what = outcome(kind, retryable=verdict, retry_after=retry_after, began_at=NOW - SECOND if has_begun else None)
    decision = decide(row, what, wish=wish if state is State.STOPPING else None, draw=draw)
    write, _ = check_enacted(row, decision)
    assert write.charged == row.charged - (write.state is State.QUEUED), "given back exactly on release"
    if row.recover == "lost" and has_begun:
        assert write.state is not State.QUEUED, "what must not repeat and has begun is never queued by a shutdown"
    if write.state is State.RETRY_WAIT:
        assert row.charged < (row.max_attempts or 1)
        assert NOW <= write.due_at <= NOW + 100 * SECOND
    if kind is OutcomeKind.RETURNED:
        assert write.state is State.SUCCEEDED
    elif state is State.STOPPING and kind is not OutcomeKind.ABANDONED:
        assert write.state is (State.STOPPED if wish is STOP else State.CANCELLED)


@given(state=st.sampled_from(sorted(LEASED)), row=rows, wish=wishes, proven_gone=st.booleans())
def test_a_crash_in_every_leased_state_is_enacted_along_the_table(
    state: State, row: TaskRow, wish: Wish | None, proven_gone: bool
) -> None:
    row.state = state
    decision = decide_crash(row, wish=wish if state is State.STOPPING else None, proven_gone=proven_gone, now=NOW)
    write, _ = check_enacted(row, decision)
    assert (write.charged, write.crashes) == (row.charged, row.crashes + 1)
    if row.recover == "lost" or row.charged >= (row.max_attempts or 1):
        assert write.state in FINAL, "never queued again"
    elif state is not State.STOPPING:
        assert write.state is State.QUEUED


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
