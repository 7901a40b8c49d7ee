"""The table of states, as a whole and walked at random."""

import itertools

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from taskengine.core.errors import IllegalTransition
from taskengine.core.lifecycle import (
    CLAIMABLE,
    FINAL,
    LEASED,
    STORED,
    TIMED,
    TRANSITIONS,
    UNFINISHED,
    WAITING,
    State,
    Trigger,
    is_final,
    parse_state,
    step,
)

ALL_PAIRS = list(itertools.product(State, Trigger))


@pytest.mark.parametrize(("state", "trigger"), ALL_PAIRS, ids=[f"{s.value}-{t.value}" for s, t in ALL_PAIRS])
def test_each_trigger_in_each_state_moves_as_the_table_says_or_is_refused(state: State, trigger: Trigger) -> None:
    if trigger in TRANSITIONS[state]:
        assert step(state, trigger) is TRANSITIONS[state][trigger]
    else:
        with pytest.raises(IllegalTransition) as refusal:
            step(state, trigger)
        assert (refusal.value.state, refusal.value.trigger) == (state, trigger)
        assert state.value in str(refusal.value)
        assert trigger.value in str(refusal.value)


def test_every_state_has_a_row() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_state_is_reached_from_pending() -> None:
    reached, frontier = {State.PENDING}, [State.PENDING]
    while frontier:
        for target in TRANSITIONS[frontier.pop()].values():
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(State)


def test_every_unfinished_state_can_reach_a_final_one() -> None:
    ends = set(FINAL)
    while True:
        more = {state for state, row in TRANSITIONS.items() if not ends.isdisjoint(row.values())} - ends
        if not more:
            break
        ends |= more
    assert ends == set(State)


def test_every_trigger_is_used() -> None:
    assert {trigger for row in TRANSITIONS.values() for trigger in row} == set(Trigger)


def test_pending_is_only_a_source() -> None:
    assert all(target is not State.PENDING for row in TRANSITIONS.values() for target in row.values())


def test_final_states_have_empty_rows_and_are_the_six_endings() -> None:
    assert {state for state in State if not TRANSITIONS[state]} == FINAL
    assert {state.value for state in FINAL} == {"succeeded", "failed", "stopped", "cancelled", "skipped", "lost"}
    assert all(is_final(state) == (state in FINAL) for state in State)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        TRANSITIONS[State.LOST] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        TRANSITIONS[State.LOST][Trigger.USER_CANCEL] = State.QUEUED  # type: ignore[index]


def test_derived_sets_are_the_ones_the_design_names() -> None:
    assert {State.QUEUED} == CLAIMABLE
    assert {State.STARTING, State.RUNNING, State.PAUSING, State.PAUSED, State.STOPPING} == LEASED
    assert {State.SCHEDULED, State.RETRY_WAIT} == TIMED
    assert {State.SCHEDULED, State.BLOCKED, State.QUEUED, State.RETRY_WAIT} == WAITING


def test_waiting_leased_and_final_states_are_all_stored_states_without_overlap() -> None:
    assert WAITING | LEASED | FINAL == STORED == set(State) - {State.PENDING}
    assert len(WAITING) + len(LEASED) + len(FINAL) == len(STORED)
    assert UNFINISHED == WAITING | LEASED


def test_a_carrier_is_only_got_by_a_claim() -> None:
    entries = {
        trigger
        for state, row in TRANSITIONS.items()
        for trigger, target in row.items()
        if state not in LEASED and target in LEASED
    }
    assert entries == {Trigger.CLAIMER_CLAIM}


def test_every_unfinished_state_can_be_cancelled_and_stopped() -> None:
    for state in UNFINISHED:
        assert Trigger.USER_CANCEL in TRANSITIONS[state], state
        assert Trigger.USER_STOP in TRANSITIONS[state] or state is State.STOPPING, state


def test_what_a_living_body_can_do_is_the_same_while_it_is_paused() -> None:
    shared = set(TRANSITIONS[State.RUNNING].items()) - {(Trigger.USER_PAUSE, State.PAUSING)}
    assert shared <= set(TRANSITIONS[State.PAUSING].items())
    assert shared <= set(TRANSITIONS[State.PAUSED].items())


@pytest.mark.parametrize("state", sorted(STORED))
def test_the_word_of_a_stored_state_is_read_back(state: State) -> None:
    assert parse_state(state.value) is state


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("success", "succeeded"),
        ("Completed", "succeeded"),
        ("canceled", "cancelled"),
        ("retrying", "retry_wait"),
        ("pending", "queued"),
        ("QUEUED", "queued"),
        ("error", "failed"),
    ],
)
def test_a_word_of_another_system_is_refused_with_ours(word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        parse_state(word)


def test_an_unknown_word_is_refused_with_the_list_of_states() -> None:
    with pytest.raises(ValueError, match=r"states are: blocked, cancelled, .*succeeded"):
        parse_state("nonsense")


class TableWalk(RuleBasedStateMachine):
    """Tasks moved at random: one rule for each entry of the table (added below), and one that tries what has none."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[State] = []
        self.histories: list[list[tuple[State, Trigger, State]]] = []
        self.leases: set[int] = set()
        self.attempts: list[int] = []

    @initialize()
    def begin(self) -> None:
        self.create()

    @precondition(lambda self: len(self.states) < 5)
    @rule()
    def create(self) -> None:
        self.states.append(State.PENDING)
        self.histories.append([])
        self.attempts.append(0)

    def move(self, task: int, trigger: Trigger) -> None:
        source = self.states[task]
        target = step(source, trigger)
        if trigger is Trigger.CLAIMER_CLAIM:
            assert task not in self.leases, "claimed twice"
            self.leases.add(task)
            self.attempts[task] += 1
        elif task in self.leases and target not in LEASED:
            self.leases.discard(task)
        self.histories[task].append((source, trigger, target))
        self.states[task] = target

    @rule(data=st.data(), trigger=st.sampled_from(Trigger))
    def try_what_the_table_does_not_have(self, data: st.DataObject, trigger: Trigger) -> None:
        stuck = [task for task, state in enumerate(self.states) if trigger not in TRANSITIONS[state]]
        if not stuck:
            return
        task = data.draw(st.sampled_from(stuck))
        before = (list(self.states), [list(history) for history in self.histories])
        with pytest.raises(IllegalTransition):
            self.move(task, trigger)
        assert (self.states, self.histories) == before

    @invariant()
    def history_is_a_path_of_the_table_that_ends_at_the_state(self) -> None:
        for state, history in zip(self.states, self.histories, strict=True):
            place = State.PENDING
            for source, trigger, target in history:
                assert source is place
                assert TRANSITIONS[source][trigger] is target
                place = target
            assert place is state

    @invariant()
    def a_lease_is_held_exactly_in_the_leased_states(self) -> None:
        assert self.leases == {task for task, state in enumerate(self.states) if state in LEASED}

    @invariant()
    def a_final_state_is_the_last_entry_of_its_history(self) -> None:
        for history in self.histories:
            assert not any(is_final(target) for _, _, target in history[:-1])

    @invariant()
    def attempts_count_the_claims(self) -> None:
        for attempt, history in zip(self.attempts, self.histories, strict=True):
            assert attempt == sum(trigger is Trigger.CLAIMER_CLAIM for _, trigger, _ in history)


def _add_rule_for(trigger: Trigger) -> None:
    """Give the machine the rule of one trigger: it moves those tasks whose row has it."""
    sources = {state for state, row in TRANSITIONS.items() if trigger in row}

    def apply(self: TableWalk, data: st.DataObject) -> None:
        movable = [task for task, state in enumerate(self.states) if state in sources]
        self.move(data.draw(st.sampled_from(movable)), trigger)

    def is_possible(self: TableWalk) -> bool:
        return any(state in sources for state in self.states)

    name = f"apply_{trigger.name.lower()}"
    apply.__name__ = apply.__qualname__ = name
    setattr(TableWalk, name, precondition(is_possible)(rule(data=st.data())(apply)))


for _trigger in Trigger:
    _add_rule_for(_trigger)


TestTableWalk = TableWalk.TestCase
