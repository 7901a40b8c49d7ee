"""One tick: everything the engine wants to write, in one transaction.

A fixed, small number of set-based statements, however many items the batch holds. Which moves are made is decided by
`core`; this module only orders them: submissions first, then the ends of own attempts (so that an end that was
reported before a cancel wins over it), recovery, people's requests, promotion of what is due, and at last the claim,
so that one commit can store a task and claim it. It runs on the writer's thread and touches nothing of the event loop.
"""

from collections.abc import Sequence

from taskengine.actors.batch import Batch, ClaimOrder, Move, TaskDefaults, TickResult
from taskengine.actors.holding import HOLD_CHUNK, Holding
from taskengine.actors.intake import Intake
from taskengine.actors.ledger import Ledger
from taskengine.actors.messages import Delete, Recover, Request, RequestAnswer
from taskengine.codec import NotJson
from taskengine.core.decide import (
    ENGINE,
    Decision,
    decide_crash,
    decide_deadline,
    decide_request,
    enact,
    may_prefetch,
)
from taskengine.core.errors import (
    NotFinished,
    TaskEngineError,
    TaskExpired,
    TaskNotFound,
)
from taskengine.core.lifecycle import FINAL, LEASED, State, Trigger, step
from taskengine.core.model import (
    CommandKind,
    CommandRow,
    HistoryRow,
    Hold,
    TaskRow,
    TaskWrite,
    Wish,
    WishKind,
)
from taskengine.ports import CLAIM_BYTES, Store, Transaction
from taskengine.records import (
    callback_arguments,
    dump_failure,
    dump_hold,
    dump_wish,
    load_callbacks,
    load_hold,
    load_wish,
)

PROMOTE_LIMIT = 500
"""Due tasks promoted in one tick; a bound on how long it holds the write lock."""

RECOVER_CHUNK = 500

_COMMANDS = {
    Trigger.USER_STOP: CommandKind.STOP,
    Trigger.USER_CANCEL: CommandKind.CANCEL,
    Trigger.USER_PAUSE: CommandKind.PAUSE,
    Trigger.USER_RESUME: CommandKind.RESUME,
}
"""Requests that only the process which runs the task can carry out."""

_TRIGGERS = {kind: trigger for trigger, kind in _COMMANDS.items()}


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
        tick.hold()
        if batch.claim is not None and tick.head.owner_known:
            tick.move_what_is_due()
        tick.call_back()
        tick.keep_sayings()
        tick.delete()
        if batch.claim is not None and tick.head.owner_known:
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
        self.calling: list[tuple[TaskRow, TaskWrite]] = []
        """Tasks with callbacks that this tick has ended."""
        self.intake: Intake | None = None
        self.holding = Holding(self, batch.known_holds)

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
            if row.callbacks is not None and write.state in FINAL:
                self.calling.append((row, write))
        self.tx.update([move.write for move in moves])
        return moves

    # --- submissions ---

    def submit(self) -> None:
        if not self.batch.submits and not self.batch.requeues:
            return
        intake = self.intake = Intake(self.tx, self.batch, self.ledger)
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
        self._insert(intake)

    def _insert(self, intake: Intake) -> None:
        accepted, intake.accepted = intake.accepted, []
        if accepted:
            self.tx.insert(accepted)
            self.result.new_tasks += len(accepted)

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
                if row.callbacks is not None and settlement.write.state in FINAL:
                    self.calling.append((row, settlement.write))
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
            self.requests.append(as_request(command))
        self.tx.drop_owner(recovery.owner)
        return count

    # --- what people ask ---

    def answer_requests(self) -> None:
        requests = self.requests
        carried_out = [request.command_id for request in requests if request.is_command]
        if carried_out:
            self.tx.drop_commands(carried_out)
        if self.head.has_commands and self.batch.owner is not None:
            self.result.commands = self.tx.commands(self.batch.owner)
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
        kind = _COMMANDS.get(request.trigger)
        if is_foreign and kind is not None and row.owner is not None:
            self._hand_on(request, row, row.owner, kind)
            return self._answer_with(row, is_remote=True, is_changed=True)
        decision = decide_request(
            row,
            request.trigger,
            wish=_wish_of(row),
            held=_hold_of(row),
            actor=request.actor,
            reason=request.reason,
            now=self.now,
        )
        if decision is None:
            return self._answer_with(row)
        is_queued = bool(decision.triggers) and step(row.state, request.trigger) is State.QUEUED
        (move,) = self.move([(row, decision, self.ledger.next_rank(row.priority) if is_queued else None)])
        apply_write(row, move.write)
        self.result.moves.append(move)
        return self._answer_with(row, is_changed=True)

    def _answer_with(self, row: TaskRow, *, is_remote: bool = False, is_changed: bool = False) -> RequestAnswer:
        return RequestAnswer(
            task_id=row.id,
            state=row.state,
            version=row.version,
            is_held=row.held is not None,
            is_remote=is_remote,
            is_changed=is_changed,
        )

    def _hand_on(self, request: Request, row: TaskRow, owner: str, kind: CommandKind) -> None:
        self.tx.put_command(
            CommandRow(
                id=request.command_id,
                task_id=row.id,
                owner=owner,
                kind=kind,
                actor=request.actor,
                reason=request.reason,
                created_at=self.now,
            )
        )

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

    # --- what bodies have said ---

    def keep_sayings(self) -> None:
        said = self.batch.said
        if not said:
            return
        # The newest of each task: two sayings of one attempt may stand in one batch.
        sides = {each.side.task_key: each.side for each in said if each.side is not None}
        for each in said:
            if each.side is not None and each.side.progress is not None:
                key = each.side.task_key
                sides[key] = sides[key]._replace(progress=each.side.progress)
        if sides:
            self.tx.put_sides(list(sides.values()))
        lines = [line for each in said for line in each.lines]
        if lines:
            self.tx.append_logs(lines, self.batch.keep_lines)
        deadlines = {each.deadline[0]: each.deadline for each in said if each.deadline is not None}
        if deadlines:
            self.tx.extend(list(deadlines.values()))

    # --- holds of many ---

    def hold(self) -> None:
        self.holding.apply(self.batch.holds)
        self.result.held = self.holding.answers

    # --- what is due, and the claim ---

    def move_what_is_due(self) -> None:
        """Promote, expire and free what the clock says; in the usual tick nothing is due, and one look tells."""
        due = self.tx.next_due()
        if due is not None and due <= self.now:
            self._expire()
            self._promote()
            self._free_held()
            due = self.tx.next_due()
        instants = (due, self.holding.next_end())
        self.result.next_due = min((at for at in instants if at is not None), default=None)

    def _expire(self) -> None:
        rows = self.tx.expired(self.now, PROMOTE_LIMIT)
        self.result.moves.extend(self.move([(row, decide_deadline(row, now=self.now), None) for row in rows]))
        self.result.has_more_due |= len(rows) == PROMOTE_LIMIT

    def _promote(self) -> None:
        rows = self.tx.due(self.now, PROMOTE_LIMIT)
        decided = []
        for row in rows:
            decision = Decision(triggers=[(Trigger.CLOCK_DUE, self.now)])
            decided.append((row, decision, self.ledger.next_rank(row.priority)))
        self.move(decided)
        self.result.promoted = len(rows)
        self.result.has_more_due |= len(rows) == PROMOTE_LIMIT

    def _free_held(self) -> None:
        rows = self.tx.hold_ended(self.now, HOLD_CHUNK)
        self.move([(row, Decision(releases_hold=True), None) for row in rows])
        self.result.has_more_due |= len(rows) == HOLD_CHUNK

    # --- callbacks ---

    def call_back(self) -> None:
        """Submit the callbacks of what this transaction has ended, in it."""
        if not self.calling:
            return
        intake = self.intake or Intake(self.tx, self.batch, self.ledger)
        for row, write in self.calling:
            try:
                callbacks = load_callbacks(row.callbacks or "{}")
            except NotJson:
                continue  # It is damaged; the task's own end must not fail with it.
            arguments = callback_arguments(row, write.state, write.result, write.failure)
            for cause in CAUSES[write.state]:
                if cause in callbacks:
                    intake.call_back(callbacks[cause], arguments, row, cause, self.batch.new_id())
        self.calling.clear()
        self._insert(intake)

    def claim(self, order: ClaimOrder) -> None:
        names = self.holding.free_names(order.names)
        if order.total <= 0 or not names:
            return
        chosen = self._choose(order, names)
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

    def _choose(self, order: ClaimOrder, names: Sequence[str]) -> list[TaskRow]:
        """Pick from the head of the queue, and stop where the next one must not be taken early."""
        chosen: list[TaskRow] = []
        rows: Sequence[TaskRow] = self.tx.claimable(names, order.total)
        is_large = sum(len(row.args) for row in rows) > CLAIM_BYTES // 2
        rows = self.holding.without_held(rows)
        for row in rows:
            is_incomplete = row.max_attempts is None or row.recover is None
            if is_incomplete:
                self._complete(row, self.batch.defaults[row.name])
            if len(chosen) >= order.free and not may_prefetch(row):
                break  # What comes behind it would overtake it.
            if is_incomplete:
                self.tx.set_defaults(row.key, row.max_attempts or 1, row.recover or "retry", row.deadline_at)
            chosen.append(row)
        if chosen and is_large:
            self.result.has_more_due = True  # The store may have stopped at the bytes; look again.
        return chosen

    def _complete(self, row: TaskRow, defaults: TaskDefaults) -> None:
        """Fill in what the definition says, of a task that was stored without it."""
        row.max_attempts = row.max_attempts or defaults.max_attempts
        row.recover = row.recover or defaults.recover
        if row.timeouts is None and row.deadline_at is None:
            row.deadline_at = defaults.timeouts.deadline_at(row.created_at)
            row.start_within = defaults.timeouts.start_within()

    def save(self) -> None:
        self.ledger.save(self.tx)
        self.result.last_position = self.head.next_position - 1
        self.result.holds = self.holding.news()


def _wish_of(row: TaskRow) -> Wish | None:
    """Read the stored wish; a damaged one still is a wish to end, and the stronger one is meant."""
    if row.wish is None:
        return None
    try:
        return load_wish(row.wish)
    except NotJson:
        return Wish(kind=WishKind.CANCEL, actor=ENGINE, reason="the stored request cannot be read")


def _hold_of(row: TaskRow) -> Hold | None:
    """Read the stored mark; a damaged one is one all the same."""
    if row.held is None:
        return None
    try:
        return load_hold(row.held)
    except NotJson:
        return Hold(actor=ENGINE, reason="the stored mark cannot be read")


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


def as_request(command: CommandRow) -> Request:
    """Make the request that a command row stands for."""
    return Request(
        task_id=command.task_id,
        trigger=_TRIGGERS[command.kind],
        actor=command.actor,
        reason=command.reason,
        command_id=command.id,
        is_command=True,
    )


CAUSES = {
    state: (
        *(("success",) if state is State.SUCCEEDED else ()),
        *(("failure",) if state in (State.FAILED, State.LOST) else ()),
        "settled",
    )
    for state in FINAL
}
"""Which callbacks a final state has."""
