"""Driving `run_tick` as the persister does, without actors, loop or clock."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from taskengine import records
from taskengine.actors.batch import Batch, ClaimOrder, KnownHolds, Settlement, TaskDefaults, TickResult
from taskengine.actors.messages import (
    Attempt,
    Delete,
    Receipt,
    Recover,
    Register,
    Reply,
    Request,
    RequestAnswer,
    Requeue,
    Submit,
)
from taskengine.actors.tick import apply_write, as_request, run_tick
from taskengine.core.decide import AttemptOutcome, Decision, Limits, OutcomeKind, decide_outcome, enact
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import Failure, FailureKind, OwnerRow, TaskRow
from taskengine.core.retry import RetryPolicy
from taskengine.ports import Store

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
AGEING_STEP = 60 * SECOND
NAMES = ("mail", "print")
DEFAULTS = {name: TaskDefaults(3, "retry") for name in NAMES}
POLICY = RetryPolicy(base=1.0, factor=1.0, jitter=0.0)


def make_row(id_: str, *, delay: float = 0, **values: Any) -> TaskRow:
    """Make a row as `Submissions` does: without key, rank and state; `delay` is in seconds."""
    defaults: dict[str, Any] = {
        "name": "mail",
        "args": "[[],{}]",
        "max_attempts": 3,
        "recover": "retry",
        "created_at": NOW,
        "due_at": NOW + round(delay * SECOND),
    }
    return TaskRow(key=0, id=id_, state=State.QUEUED, **{**defaults, **values})


def submission(*rows: TaskRow, **options: Any) -> Submit:
    return Submit(list(rows), Reply(), **options)


def cancel(task_id: str, trigger: Trigger = Trigger.USER_CANCEL, reason: str | None = None) -> Request:
    return Request(task_id, trigger, "anna", reason, f"command-{task_id}-{trigger.value}")


def recovery(owner: str, *, beat: int | None = None, proven_gone: bool = True) -> Recover:
    return Recover(owner, beat, proven_gone, Reply())


def deletion(task_id: str) -> Delete:
    return Delete(task_id, Reply())


def requeue(task_id: str, new_id: str, *, keep_key: bool = False) -> Requeue:
    return Requeue(task_id, new_id, keep_key, "anna", Reply())


def order(free: int, prefetch: int = 0, names: Sequence[str] = NAMES) -> ClaimOrder:
    return ClaimOrder(names=names, free=free, total=free + prefetch)


class Engine:
    """The part of one engine that ticks: an owner and its live attempts."""

    def __init__(self, store: Store, owner: str | None = "me") -> None:
        self.store = store
        self.owner = owner
        self.now = NOW
        self.live: dict[str, Attempt] = {}
        self.holds = KnownHolds()
        self.ids = count(1)
        if owner is not None:
            self.tick(register=[Register(make_owner(owner), Reply())])

    def tick(self, **work: Any) -> TickResult:
        """Apply one batch, and do with what came of it what the persister does."""
        batch = Batch(
            now=self.now,
            new_id=lambda: f"made-{next(self.ids)}",
            owner=self.owner,
            defaults=DEFAULTS,
            keep_lines=3,
            known_holds=self.holds,
            **work,
        )
        result = run_tick(self.store, batch, AGEING_STEP)
        self.holds = result.holds or self.holds
        for settlement in result.settled:
            apply_write(settlement.attempt.row, settlement.write)
            if settlement.ends_attempt:
                self.live.pop(settlement.attempt.row.id, None)
        for settlement in result.fenced:
            self.live.pop(settlement.attempt.row.id, None)
        for move in result.moves:
            attempt = self.live.get(move.row.id)
            if attempt is not None and move.write.expected_attempt == attempt.row.attempt:
                apply_write(attempt.row, move.write)
                attempt.wish = move.decision.wish or attempt.wish
        for row in result.claimed:
            self.live[row.id] = Attempt(row)
        if result.commands:
            following = self.tick(requests=[as_request(command) for command in result.commands])
            result.answered.extend(following.answered)
        return result

    def submit(self, *rows: TaskRow, **options: Any) -> list[Receipt] | Exception:
        (answer,) = self.tick(submits=[submission(*rows, **options)]).submitted
        return answer[1]

    def claim(self, free: int = 100, prefetch: int = 0, names: Sequence[str] = NAMES) -> list[str]:
        return [row.id for row in self.tick(claim=order(free, prefetch, names)).claimed]

    def request(self, task_id: str, trigger: Trigger = Trigger.USER_CANCEL) -> RequestAnswer | Exception:
        (answer,) = self.tick(requests=[cancel(task_id, trigger)]).answered
        return answer[1]

    def began(self, task_id: str) -> Settlement:
        """Make the announcement that a body began."""
        attempt = self.live[task_id]
        attempt.began_at = self.now
        attempt.is_announced = True
        decision = Decision(triggers=[(Trigger.EXECUTOR_LAUNCHED, self.now)], began_at=self.now)
        return Settlement(attempt, *enact(attempt.row, decision), decision, False)

    def ended(self, task_id: str, kind: OutcomeKind = OutcomeKind.RETURNED, **values: Any) -> Settlement:
        """Make the report on an attempt's end."""
        attempt = self.live[task_id]
        outcome = AttemptOutcome(kind=kind, ended_at=self.now, **values)
        if outcome.began_at is None and kind not in (OutcomeKind.UNBEGUN, OutcomeKind.UNREADABLE):
            outcome.began_at = attempt.began_at or self.now
        if kind is OutcomeKind.RETURNED:
            outcome.result = outcome.result or "1"
        if kind is OutcomeKind.RAISED:
            outcome.failure = Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="no")
        decision = decide_outcome(
            attempt.row, outcome, policy=POLICY, wish=attempt.wish, draw=0.0, limits=Limits(retry_after_cap=100.0)
        )
        write, history = enact(
            attempt.row,
            decision,
            failure=records.dump_failure(decision.failure) if decision.failure is not None else None,
            hold=records.dump_hold(decision.hold) if decision.hold is not None else None,
        )
        return Settlement(attempt, write, history, decision, True)

    def row(self, task_id: str) -> TaskRow:
        row = self.store.reader().get(task_id)
        assert row is not None
        return row

    def state(self, task_id: str) -> State:
        return self.row(task_id).state

    def triggers(self, task_id: str) -> list[Trigger]:
        return [row.trigger for _, row in self.store.reader().history(task_id)]


def make_owner(id_: str) -> OwnerRow:
    return OwnerRow(
        id=id_, boot_id="b", pid_namespace="n", pid=1, process_started="1", beat=0, started_at=NOW, names=NAMES
    )
