"""Rows, outcomes and decisions for the tests of `core.decide`."""

from typing import Any

from attrs import evolve

from taskengine.core.decide import AttemptOutcome, Decision, Limits, OutcomeKind, decide_outcome, enact
from taskengine.core.lifecycle import FINAL, LEASED, TRANSITIONS, State, Trigger
from taskengine.core.model import Failure, FailureKind, HistoryRow, TaskRow, TaskWrite, Wish, WishKind
from taskengine.core.retry import RetryPolicy

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
LIMITS = Limits(retry_after_cap=100.0)
POLICY = RetryPolicy(base=2.0, factor=3.0, cap=50.0, jitter=0.5, give_up_on=("a.Fatal",))
CANCEL = Wish(kind=WishKind.CANCEL, actor="anna", reason="no more")
STOP = Wish(kind=WishKind.STOP, actor="bob", reason="later")
PAUSE = Wish(kind=WishKind.PAUSE, actor="carl", reason="lunch")
FAILURE = Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="no")

MAY_HAVE_WISH = FINAL | {State.PAUSING, State.PAUSED, State.STOPPING}


def leased(state: State = State.RUNNING, **values: Any) -> TaskRow:
    row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=state, version=5, attempt=2, charged=1)
    row.max_attempts, row.recover, row.owner, row.rank, row.due_at = 3, "retry", "me", 77, NOW - 9 * SECOND
    row.created_at = row.due_at
    return evolve(row, **values)


def unowned(state: State, **values: Any) -> TaskRow:
    return leased(state, **{"owner": None, **values})


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
    assert write.wish is None or write.state in MAY_HAVE_WISH
    if write.state is State.QUEUED:
        assert write.rank == row.rank
    return write, history
