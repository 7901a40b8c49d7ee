"""Everything that can happen to a task, in every combination and in every order that chance finds."""

import itertools
from typing import Any

from attrs import evolve
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskengine.core.decide import (
    Decision,
    OutcomeKind,
    decide_crash,
    decide_deadline,
    decide_outcome,
    decide_pause_answer,
    decide_request,
    enact,
)
from taskengine.core.errors import IllegalTransition
from taskengine.core.lifecycle import FINAL, LEASED, TRANSITIONS, WAITING, State, Trigger
from taskengine.core.model import HistoryRow, Hold, TaskRow, Wish, WishKind
from tests.core.deciding import (
    CANCEL,
    LIMITS,
    NOW,
    PAUSE,
    POLICY,
    SECOND,
    STOP,
    check_enacted,
    decide,
    leased,
    outcome,
)

REPORTED = [
    *itertools.product(
        [State.STARTING, State.RUNNING, State.PAUSING, State.PAUSED, State.STOPPING],
        [
            OutcomeKind.RETURNED,
            OutcomeKind.RAISED,
            OutcomeKind.INTERRUPTED,
            OutcomeKind.ABANDONED,
            OutcomeKind.SNOOZED,
            OutcomeKind.DISCARDED,
        ],
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
POSSIBLE = {begun: {kind for _, kind, has_begun in REPORTED if has_begun is begun} for begun in (True, False)}

wishes = st.sampled_from([None, CANCEL, STOP, PAUSE])


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
    decision = decide(row, what, wish=wish, draw=draw)
    write, _ = check_enacted(row, decision)
    is_spared = write.state in (State.QUEUED, State.SCHEDULED)
    assert write.charged == row.charged - is_spared, "given back exactly on release and snooze"
    if state in (State.PAUSING, State.PAUSED):
        assert (decision.hold is None) == (write.state in FINAL), "a pause outlives its body as a hold"
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
    decision = decide_crash(row, wish=wish, proven_gone=proven_gone, now=NOW)
    write, _ = check_enacted(row, decision)
    assert (write.charged, write.crashes) == (row.charged, row.crashes + 1)
    if row.recover == "lost" or row.charged >= (row.max_attempts or 1):
        assert write.state in FINAL, "never queued again"
    elif state is not State.STOPPING:
        assert write.state is State.QUEUED


USUAL = {
    State.BLOCKED: Trigger.PIPELINE_READY_LATER,
    State.SCHEDULED: Trigger.CLOCK_DUE,
    State.RETRY_WAIT: Trigger.CLOCK_DUE,
    State.QUEUED: Trigger.CLAIMER_CLAIM,
    State.STARTING: Trigger.EXECUTOR_LAUNCHED,
}
"""What moves a task on where nobody interferes."""

LUCK = st.sampled_from([3, 2, 1, 0])
"""What ends or holds up a task early happens at 0 only; else no walk would come far."""

LIMIT, RECOVER = st.sampled_from([2, 1, 3]), st.sampled_from(["retry", "lost"])


class Life(RuleBasedStateMachine):
    """One task after the other: what people, bodies, owners and the clock do to it, enacted as the engine does.

    The texts of wishes and holds stand for the values; a store would keep them as JSON.
    """

    row: TaskRow

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.history: list[HistoryRow] = []
        self.texts: dict[str, Any] = {}
        self.spared = 0
        """Claims that were given back: releases and snoozes."""
        self.is_begun = False

    @initialize(max_attempts=LIMIT, recover=RECOVER)
    def submit(self, max_attempts: int, recover: str) -> None:
        self.begin(State.QUEUED, max_attempts, recover)
        self.go_on_until_running()

    @precondition(lambda self: self.row.state in FINAL)
    @rule(
        state=st.sampled_from([State.QUEUED, State.SCHEDULED, State.BLOCKED]),
        max_attempts=LIMIT,
        recover=RECOVER,
        runs=st.sampled_from([True, False]),
    )
    def find_that_it_has_ended_and_go_on_with_another(
        self, state: State, max_attempts: int, recover: str, runs: bool
    ) -> None:
        for trigger in Trigger:
            assert self.decide_request(trigger) is None, "final is final"
        assert decide_pause_answer(self.row, is_reached=True, now=self.now) is None
        self.begin(state, max_attempts, recover)
        if runs:
            self.go_on_until_running()

    def go_on_until_running(self) -> None:
        while self.row.state is not State.RUNNING:
            self.take_the_usual_step()

    def begin(self, state: State, max_attempts: int, recover: str) -> None:
        self.history, self.spared, self.is_begun = [], 0, False
        self.row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=State.PENDING)
        self.row.max_attempts, self.row.recover, self.row.due_at = max_attempts, recover, self.now
        trigger = next(trigger for trigger, target in TRANSITIONS[State.PENDING].items() if target is state)
        self.apply(Decision(triggers=[(trigger, self.now)], actor="user"))

    def apply(self, decision: Decision) -> None:
        self.now += SECOND
        write, history = enact(
            self.row,
            decision,
            failure="F" if decision.failure is not None else None,
            wish=self.text(decision.wish),
            hold=self.text(decision.hold),
        )
        assert (write.expected_version, write.expected_attempt) == (self.row.version, self.row.attempt)
        for name in ("state", "version", "charged", "crashes", "rank", "due_at", "started_at", "finished_at"):
            setattr(self.row, name, getattr(write, name))
        for name in ("owner", "wish", "held", "result", "failure"):
            setattr(self.row, name, getattr(write, name))
        self.history.extend(history)

    def text(self, value: Wish | Hold | None) -> str | None:
        if value is None:
            return None
        text = f"#{len(self.texts)}"
        self.texts[text] = value
        return text

    @property
    def wish(self) -> Wish | None:
        return None if self.row.wish is None else self.texts[self.row.wish]

    @property
    def held(self) -> Hold | None:
        return None if self.row.held is None else self.texts[self.row.held]

    # --- the engine ---

    @precondition(lambda self: self.row.state in USUAL and (self.row.state is not State.QUEUED or not self.row.held))
    @rule(steps=st.sampled_from([2, 1, 3]))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.row.state in USUAL and not self.row.held:
                self.take_the_usual_step()

    def take_the_usual_step(self) -> None:
        trigger = USUAL[self.row.state]
        is_claim, is_launch = trigger is Trigger.CLAIMER_CLAIM, trigger is Trigger.EXECUTOR_LAUNCHED
        began_at = self.now if is_launch else None
        self.apply(Decision(triggers=[(trigger, self.now)], charged=int(is_claim), began_at=began_at))
        self.is_begun = is_launch
        if is_claim:
            self.row.attempt += 1
            self.row.owner = "me"

    @precondition(lambda self: self.row.state in LEASED)
    @rule(
        data=st.data(),
        begins=st.booleans(),
        verdict=st.sampled_from([True, None, False]),
        wait=st.one_of(st.none(), st.floats(allow_nan=True)),
    )
    def report(self, data: st.DataObject, begins: bool, verdict: bool | None, wait: float | None) -> None:
        state, has_begun = self.row.state, self.is_begun or begins
        kind = data.draw(st.sampled_from([kind for kind in OutcomeKind if kind in POSSIBLE[has_begun]]))
        what = outcome(kind, ended_at=self.now, retryable=verdict, retry_after=wait)
        what.began_at = self.now - 1 if has_begun else None
        self.apply(decide_outcome(self.row, what, policy=POLICY, wish=self.wish, draw=0.5, limits=LIMITS))
        self.spared += self.history[-1].trigger in (Trigger.ENGINE_RELEASE, Trigger.BODY_SNOOZE)
        self.check_that_a_pause_outlives_its_body(state)

    @precondition(lambda self: self.row.state in LEASED)
    @rule(proven_gone=st.booleans())
    def crash(self, proven_gone: bool) -> None:
        state, crashes = self.row.state, self.row.crashes
        self.apply(decide_crash(self.row, wish=self.wish, proven_gone=proven_gone, now=self.now))
        assert self.row.crashes == crashes + 1
        self.check_that_a_pause_outlives_its_body(state)

    def check_that_a_pause_outlives_its_body(self, state: State) -> None:
        if state in (State.PAUSING, State.PAUSED) and self.row.state not in FINAL:
            assert self.held is not None
            assert (self.held.actor, self.held.by) == ("anna", None)

    @precondition(lambda self: self.row.state in LEASED)
    @rule(is_reached=st.booleans())
    def answer_a_pause(self, is_reached: bool) -> None:
        decision = decide_pause_answer(self.row, is_reached=is_reached, now=self.now)
        assert (decision is None) == (self.row.state is not State.PAUSING)
        if decision is not None:
            self.apply(decision)

    @precondition(lambda self: self.row.state in WAITING)
    @rule(start_within=st.sampled_from([None, 1, 10**15]), is_total=st.booleans(), luck=LUCK)
    def run_out_of_time(self, start_within: int | None, is_total: bool, luck: int) -> None:
        if luck:
            return
        row = evolve(self.row, start_within=start_within, deadline_at=self.now if is_total else None)
        self.apply(decide_deadline(row, now=self.now))
        assert self.row.state is State.FAILED

    # --- people ---

    @precondition(lambda self: self.row.state in LEASED)
    @rule()
    def pause(self) -> None:
        self.request(Trigger.USER_PAUSE)
        assert self.is_stopped_or_paused()

    @precondition(lambda self: self.row.state in WAITING)
    @rule(luck=LUCK)
    def pause_what_waits(self, luck: int) -> None:
        if not luck:
            self.pause()

    @precondition(lambda self: self.row.held is not None or self.row.state in LEASED)
    @rule()
    def resume(self) -> None:
        self.request(Trigger.USER_RESUME)
        assert self.row.state not in (State.PAUSING, State.PAUSED)
        assert self.held is None or self.held.by is not None

    @precondition(lambda self: self.row.state not in FINAL)
    @rule(trigger=st.sampled_from([Trigger.USER_CANCEL, Trigger.USER_STOP, Trigger.PIPELINE_FAIL_FAST]), luck=LUCK)
    def ask_to_end(self, trigger: Trigger, luck: int) -> None:
        if not luck:
            self.request(trigger)
            assert self.row.state in FINAL or self.row.state is State.STOPPING

    @precondition(lambda self: self.row.state not in FINAL)
    @rule()
    def run_now(self) -> None:
        self.request(Trigger.USER_RUN_NOW)

    def request(self, trigger: Trigger) -> None:
        try:
            decision = self.decide_request(trigger)
        except IllegalTransition:
            assert trigger not in TRANSITIONS[self.row.state]
            assert trigger is Trigger.USER_RUN_NOW, "the others are no errors in any state"
            return
        if decision is not None:
            self.apply(decision)

    def decide_request(self, trigger: Trigger) -> Decision | None:
        return decide_request(
            self.row, trigger, wish=self.wish, held=self.held, actor="anna", reason=None, now=self.now
        )

    def is_stopped_or_paused(self) -> bool:
        is_waiting = self.row.state in WAITING or self.row.state is State.STARTING
        return self.row.held is not None if is_waiting else self.row.state is not State.RUNNING

    @precondition(lambda self: self.row.state in WAITING and self.row.held is None)
    @rule(luck=LUCK)
    def hold_with_others(self, luck: int) -> None:
        if not luck:
            self.apply(Decision(hold=Hold(actor="bob", by="tag:nightly")))

    @precondition(lambda self: self.held is not None and self.held.by is not None)
    @rule()
    def free_with_others(self) -> None:
        self.apply(Decision(releases_hold=True))

    # --- what always holds ---

    @invariant()
    def history_is_a_gapless_path_of_the_table_that_ends_at_the_state(self) -> None:
        place = State.PENDING
        for number, move in enumerate(self.history, start=1):
            assert (move.version, move.source) == (number, place)
            assert TRANSITIONS[move.source][move.trigger] is move.target
            place = move.target
        assert (self.row.state, self.row.version) == (place, len(self.history))
        assert not any(move.target in FINAL for move in self.history[:-1])

    @invariant()
    def charge_counts_the_claims_that_were_not_given_back_and_keeps_to_the_limit(self) -> None:
        assert self.row.charged == self.row.attempt - self.spared
        assert 0 <= self.row.charged <= (self.row.max_attempts or 0)
        assert self.row.attempt == sum(move.trigger is Trigger.CLAIMER_CLAIM for move in self.history)

    @invariant()
    def an_owner_is_there_exactly_while_it_is_leased(self) -> None:
        assert (self.row.owner is not None) == (self.row.state in LEASED)

    @invariant()
    def the_end_has_an_instant_a_result_only_with_success_and_no_hold(self) -> None:
        assert (self.row.finished_at is not None) == (self.row.state in FINAL)
        assert (self.row.result is not None) == (self.row.state is State.SUCCEEDED)
        assert self.row.held is None or self.row.state not in FINAL
        assert self.row.failure is None or self.row.state is not State.SUCCEEDED

    @invariant()
    def a_wish_stands_exactly_while_its_body_is_to_answer_it_and_with_the_end_it_led_to(self) -> None:
        kind = None if self.wish is None else self.wish.kind
        if self.row.state in (State.PAUSING, State.PAUSED):
            assert kind is WishKind.PAUSE
        elif self.row.state is State.STOPPING:
            assert kind in (WishKind.STOP, WishKind.CANCEL)
        elif kind is not None:
            assert self.row.state in FINAL
            assert self.history[-1].source is State.STOPPING
            assert self.row.state is not State.STOPPED or kind is WishKind.STOP
            assert self.row.state is not State.CANCELLED or kind is WishKind.CANCEL

    @invariant()
    def a_due_time_is_an_instant_that_can_be_stored(self) -> None:
        assert 0 <= self.row.due_at < 2**63


TestLife = Life.TestCase
# Not shrunk: that takes longer for a walk of this length than a test may, and the walk itself tells enough.
TestLife.settings = settings(phases=set(Phase) - {Phase.shrink})
