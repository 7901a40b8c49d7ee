"""One tick: everything the engine wants to write, in one transaction.

A fixed, small number of set-based statements, however many items the batch holds. Which moves are made is decided by
`core`; this module only orders them: submissions first, then the ends of own attempts (so that an end that was
reported before a cancel wins over it), recovery, people's requests, promotion of what is due, and at last the claim,
so that one commit can store a task and claim it. It runs on the writer's thread and touches nothing of the event loop.
"""

from collections.abc import Sequence

from taskengine.actors.batch import Batch, ClaimOrder, Move, TickResult
from taskengine.actors.intake import Intake
from taskengine.actors.ledger import Ledger
from taskengine.actors.messages import Delete, Recover, Request, RequestAnswer
from taskengine.codec import NotJson
from taskengine.core.decide import ENGINE, Decision, decide_crash, decide_request, enact, may_prefetch
from taskengine.core.errors import (
    NotFinished,
    TaskEngineError,
    TaskExpired,
    TaskNotFound,
)
from taskengine.core.lifecycle import FINAL, LEASED, State, Trigger, step
from taskengine.core.model import CommandRow, HistoryRow, TaskRow, TaskWrite, Wish, WishKind
from taskengine.ports import CLAIM_BYTES, Store, Transaction
from taskengine.records import dump_failure, dump_hold, dump_wish, load_wish

PROMOTE_LIMIT = 500
"""Due tasks promoted in one tick; a bound on how long it holds the write lock."""

RECOVER_CHUNK = 500


def run_tick(store: Store, batch: Batch, ageing_step_us: int) -> TickResult:
    """Apply `batch` in one transaction.

    Raises:
        StoreUnavailable: nothing was written; the same batch can be tried again.
        StoreError: one of the items is at fault; nothing was written.
    """
    with store.transact() as tx:
        tick = _Tick(tx, batch, ageing_step_us)
        tick.submit()
        tick.settle()
        tick.recover()
        tick.answer_requests()
        tick.delete()
        if batch.claim is not None and tick.head.owner_known:
            tick.promote()
            tick.claim(batch.claim)
        tick.save()
    return tick.result


class _Tick:
    """The state of one transaction under way: what it has moved so far."""

    def __init__(self, tx: Transaction, batch: Batch, ageing_step_us: int) -> None:
        self.tx = tx
        self.batch = batch
        self.now = batch.now
        for registration in batch.register:
            tx.put_owner(registration.owner)
        self.head = tx.head(batch.owner)
        self.ledger = Ledger(self.head, batch.now, ageing_step_us)
        self.result = TickResult(owner_gone=not self.head.owner_known, other_owners=self.head.other_owners)
        self.requests = list(batch.requests)
        """A list of its own: recovery adds to it, and the batch may be tried again."""

    def move(self, rows_and_decisions: Sequence[tuple[TaskRow, Decision, int | None]]) -> list[Move]:
        """Write decisions about rows read in this transaction; their guards cannot fail."""
        moves = []
        for row, decision, rank in rows_and_decisions:
            write, history = enact(
                row,
                decision,
                failure=dump_failure(decision.failure) if decision.failure is not None else None,
                wish=dump_wish(decision.wish) if decision.wish is not None else None,
                hold=dump_hold(decision.hold) if decision.hold is not None else None,
                rank=rank,
            )
            moves.append(Move(row, write, history, decision))
            self.ledger.record(row.name, row.state, write.state, history)
        self.tx.update([move.write for move in moves])
        return moves

    # --- submissions ---

    def submit(self) -> None:
        if not self.batch.submits and not self.batch.requeues:
            return
        intake = Intake(self.tx, self.batch, self.ledger)
        for submit in self.batch.submits:
            try:
                self.result.submitted.append((submit, intake.admit(submit)))
            except TaskEngineError as error:
                self.result.submitted.append((submit, error))
        for requeue in self.batch.requeues:
            try:
                self.result.requeued.append((requeue, intake.requeue(requeue)))
            except TaskEngineError as error:
                self.result.requeued.append((requeue, error))
        if intake.accepted:
            self.tx.insert(intake.accepted)
            self.result.new_tasks = len(intake.accepted)

    # --- own attempts ---

    def settle(self) -> None:
        settlements = self.batch.settlements
        if not settlements:
            return
        # One write for each task: an announcement whose outcome is in the same batch was dropped for it.
        won = self.tx.update([settlement.write for settlement in settlements])
        for settlement in settlements:
            if settlement.write.key in won:
                self.result.settled.append(settlement)
                row = settlement.attempt.row
                self.ledger.record(row.name, settlement.history[0].source, settlement.write.state, settlement.history)
            else:
                self.result.fenced.append(settlement)

    # --- what dead owners left ---

    def recover(self) -> None:
        for recovery in self.batch.recoveries:
            self.result.recovered.append((recovery, self._recover_owner(recovery)))

    def _recover_owner(self, recovery: Recover) -> int:
        owner = self.tx.get_owner(recovery.owner)
        if owner is not None and recovery.observed_beat is not None and owner.beat != recovery.observed_beat:
            return 0  # It lives after all.
        count = 0
        while rows := self.tx.owned(recovery.owner, RECOVER_CHUNK):
            decided = []
            for row in rows:
                wish = _wish_of(row)
                decision = decide_crash(row, wish=wish, proven_gone=recovery.proven_gone, now=self.now)
                decided.append((row, decision, None))
            self.result.moves.extend(self.move(decided))
            count += len(rows)
        for command in self.tx.commands(recovery.owner):
            self.requests.append(_as_request(command))
        self.tx.drop_owner(recovery.owner)
        return count

    # --- what people ask ---

    def answer_requests(self) -> None:
        requests = self.requests
        if self.head.has_commands and self.batch.owner is not None:
            commands = self.tx.commands(self.batch.owner)
            self.tx.drop_commands([command.id for command in commands])
            requests.extend(_as_request(command) for command in commands)
        if not requests:
            return
        rows = {row.id: row for row in self.tx.find(ids=[request.task_id for request in requests])}
        for request in requests:
            row = rows.get(request.task_id)
            answer: RequestAnswer | Exception
            try:
                answer = self._answer(request, row)
            except TaskEngineError as error:
                answer = error
            self.result.answered.append((request, answer))

    def _answer(self, request: Request, row: TaskRow | None) -> RequestAnswer:
        if row is None:
            raise self._absent(request.task_id)
        is_foreign = row.state in LEASED and row.owner != self.batch.owner
        if is_foreign and request.trigger in (Trigger.USER_CANCEL, Trigger.USER_STOP) and row.owner is not None:
            kind = WishKind.CANCEL if request.trigger is Trigger.USER_CANCEL else WishKind.STOP
            self.tx.put_command(
                CommandRow(
                    id=request.command_id,
                    task_id=row.id,
                    owner=row.owner,
                    kind=kind,
                    actor=request.actor,
                    reason=request.reason,
                    created_at=self.now,
                )
            )
            return RequestAnswer(task_id=row.id, state=row.state, is_remote=True)
        wish = _wish_of(row)
        decision = decide_request(
            row, request.trigger, wish=wish, actor=request.actor, reason=request.reason, now=self.now
        )
        if decision is None:
            return RequestAnswer(task_id=row.id, state=row.state)
        target = step(row.state, request.trigger)
        rank = self.ledger.next_rank(row.priority) if target is State.QUEUED else None
        (move,) = self.move([(row, decision, rank)])
        apply_write(row, move.write)
        self.result.moves.append(move)
        return RequestAnswer(task_id=row.id, state=row.state)

    def _absent(self, task_id: str) -> TaskNotFound:
        return TaskExpired(task_id) if self.tx.deleted([task_id]) else TaskNotFound(task_id)

    def delete(self) -> None:
        for delete in self.batch.deletes:
            self.result.deleted.append((delete, self._delete(delete)))

    def _delete(self, delete: Delete) -> bool | Exception:
        found = self.tx.find(ids=[delete.task_id])
        if not found:
            return self._absent(delete.task_id)
        row = found[0]
        if row.state not in FINAL:
            return NotFinished(task_id=row.id, state=row.state, operation="delete")
        self.tx.delete([row.key])
        self.ledger.record_deletion(row.name, row.state)
        return True

    # --- what is due, and the claim ---

    def promote(self) -> None:
        rows = self.tx.due(self.now, PROMOTE_LIMIT)
        if rows:
            self.move(
                [
                    (row, Decision(triggers=[(Trigger.CLOCK_DUE, self.now)]), self.ledger.next_rank(row.priority))
                    for row in rows
                ]
            )
        self.result.promoted = len(rows)
        self.result.has_more_due = len(rows) == PROMOTE_LIMIT
        self.result.next_due = self.tx.next_due()

    def claim(self, order: ClaimOrder) -> None:
        if order.total <= 0 or not order.names:
            return
        chosen = self._choose(order)
        if not chosen:
            return
        assert self.batch.owner is not None, "only an owner claims"
        self.tx.claim([row.key for row in chosen], self.batch.owner)
        for row in chosen:
            row.version += 1
            row.attempt += 1
            row.charged += 1
            row.owner = self.batch.owner
            row.state = State.STARTING
            moved = HistoryRow(
                row.key,
                row.version,
                State.QUEUED,
                State.STARTING,
                self.now,
                Trigger.CLAIMER_CLAIM,
                ENGINE,
                None,
                row.attempt,
                None,
            )
            self.ledger.record(row.name, State.QUEUED, State.STARTING, (moved,))
        self.result.claimed = chosen

    def _choose(self, order: ClaimOrder) -> list[TaskRow]:
        """Pick from the head of the queue, and stop where the next one must not be taken early."""
        chosen: list[TaskRow] = []
        rows = self.tx.claimable(order.names, order.total)
        if sum(len(row.args) for row in rows) > CLAIM_BYTES // 2:
            self.result.has_more_due = True  # The store may have stopped at the bytes; look again.
        for row in rows:
            is_incomplete = row.max_attempts is None or row.recover is None
            if is_incomplete:
                default_attempts, default_recover = order.defaults[row.name]
                row.max_attempts = row.max_attempts or default_attempts
                row.recover = row.recover or default_recover
            if len(chosen) >= order.free and not may_prefetch(row):
                break  # What comes behind it would overtake it.
            if is_incomplete:
                self.tx.set_defaults(row.key, row.max_attempts or 1, row.recover or "retry")
            chosen.append(row)
        return chosen

    def save(self) -> None:
        self.ledger.save(self.tx)
        self.result.last_position = self.head.next_position - 1


def _wish_of(row: TaskRow) -> Wish | None:
    """Read the stored wish; a damaged one still is a wish to end, and the stronger one is meant."""
    if row.wish is None:
        return None
    try:
        return load_wish(row.wish)
    except NotJson:
        return Wish(kind=WishKind.CANCEL, actor=ENGINE, reason="the stored request cannot be read")


def apply_write(row: TaskRow, write: TaskWrite) -> None:
    """Bring a row in memory up to a write that was made."""
    row.state = write.state
    row.version = write.version
    row.charged = write.charged
    row.crashes = write.crashes
    row.rank = write.rank
    row.due_at = write.due_at
    row.started_at = write.started_at
    row.finished_at = write.finished_at
    row.owner = write.owner
    row.wish = write.wish
    row.held = write.held
    row.result = write.result
    row.failure = write.failure


def _as_request(command: CommandRow) -> Request:
    trigger = Trigger.USER_CANCEL if command.kind is WishKind.CANCEL else Trigger.USER_STOP
    return Request(
        task_id=command.task_id,
        trigger=trigger,
        actor=command.actor,
        reason=command.reason,
        command_id=command.id,
    )
