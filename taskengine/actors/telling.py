"""From committed moves to the facts that are told of them."""

from collections.abc import Iterator

from taskengine.actors.batch import Move, Settlement
from taskengine.core.facts import Fact
from taskengine.core.lifecycle import FINAL, State, Trigger


def facts_of_settlement(settlement: Settlement) -> Iterator[Fact]:
    """Tell what one of our own attempts did: that it began, and how it ended."""
    attempt, write, decision = settlement.attempt, settlement.write, settlement.decision
    row = attempt.row
    last = settlement.history[-1]
    for moved in settlement.history:
        if moved.trigger is Trigger.EXECUTOR_LAUNCHED:
            yield Fact("task_start", row, State.RUNNING, write.charged, facts=attempt.facts)
    if not settlement.ends_attempt:
        return
    duration = max(0, last.at - attempt.began_at) // 1000 if attempt.began_at is not None else 0
    if last.trigger in (Trigger.ATTEMPT_RETRY, Trigger.BODY_SNOOZE):
        yield Fact(
            "task_retry" if last.trigger is Trigger.ATTEMPT_RETRY else "task_snooze",
            row,
            write.state,
            write.charged,
            duration_ms=duration,
            delay_s=round(max(0, write.due_at - last.at) / 1_000_000, 3),
            reason=decision.reason,
            failure=decision.failure,
            facts=attempt.facts,
        )
    elif write.state in FINAL:
        yield Fact(
            "task_done",
            row,
            write.state,
            write.charged,
            duration_ms=duration,
            reason=decision.reason,
            failure=decision.failure,
            facts=attempt.facts,
        )
    else:
        yield Fact("task_interrupted", row, write.state, write.charged, duration_ms=duration, reason=decision.reason)


def facts_of_move(move: Move) -> Iterator[Fact]:
    """Tell what a request or a recovery did to a task that is not at work here."""
    if move.write.state in FINAL:
        yield Fact(
            "task_done",
            move.row,
            move.write.state,
            move.write.charged,
            duration_ms=0,
            reason=move.decision.reason,
            failure=move.decision.failure,
        )
    elif move.history and move.history[-1].trigger is Trigger.OWNER_REQUEUE:
        yield Fact(
            "task_interrupted",
            move.row,
            move.write.state,
            move.write.charged,
            duration_ms=0,
            reason=move.decision.reason,
        )
