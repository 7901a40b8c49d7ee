"""Admission of new tasks: who is there already, what is a conflict, what is too much."""

from taskengine.actors.batch import Batch
from taskengine.actors.ledger import Ledger
from taskengine.actors.messages import Receipt, Requeue, Submit
from taskengine.core.errors import IdempotencyConflict, NotFinished, QueueFull, TaskExpired, TaskNotFound
from taskengine.core.lifecycle import FINAL, State, Trigger, step
from taskengine.core.model import HistoryRow, TaskRow
from taskengine.ports import Transaction


class Intake:
    """Decides on the submissions of one batch; `accepted` is what is to be inserted."""

    def __init__(self, tx: Transaction, batch: Batch, ledger: Ledger) -> None:
        self.tx = tx
        self.batch = batch
        self.ledger = ledger
        self.accepted: list[TaskRow] = []
        self.by_id: dict[str, TaskRow] = {}
        self.by_key: dict[str, TaskRow] = {}
        self.gone: set[str] = set()
        self.requeued: set[str] = set()
        """Of those that are to be requeued once: the ones that were, in this batch or before."""
        self.pending: int | None = None
        self._look_up_all()

    def _look_up_all(self) -> None:
        ids: list[str] = [requeue.task_id for requeue in self.batch.requeues]
        keys: list[str] = []
        for submit in self.batch.submits:
            ids.extend(submit.chosen_ids)
            keys.extend(row.idempotency_key for row in submit.rows if row.idempotency_key is not None)
        self.gone = self.tx.deleted(ids) if ids else set()
        once = [requeue.task_id for requeue in self.batch.requeues if requeue.is_once]
        self.requeued = self.tx.requeued(once) if once else set()
        if ids or keys:
            for row in self.tx.find(ids=ids, idempotency_keys=keys):
                self._remember(row)

    def _remember(self, row: TaskRow) -> None:
        self.by_id[row.id] = row
        if row.idempotency_key is not None:
            self.by_key[row.idempotency_key] = row

    def admit(self, submit: Submit) -> list[Receipt]:
        """Decide on one submission, all or none.

        Raises:
            IdempotencyConflict, QueueFull, TaskExpired: nothing of it is stored.
        """
        receipts: list[Receipt] = []
        new: list[TaskRow] = []
        # What this submission itself brings; apart, since it may be refused as a whole.
        own_ids: dict[str, TaskRow] = {}
        own_keys: dict[str, TaskRow] = {}
        for row in submit.rows:
            existing = self._existing(row, submit, own_ids, own_keys)
            if existing is not None:
                receipts.append(Receipt(id=existing.id, created=False, state=existing.state))
                continue
            self._set_first_state(row)
            new.append(row)
            if row.id in submit.chosen_ids:
                own_ids[row.id] = row
            if row.idempotency_key is not None:
                own_keys[row.idempotency_key] = row
            receipts.append(Receipt(id=row.id, created=True, state=row.state))
        self._check_room(submit, len(new))
        for row in new:
            self._accept(row, submit.actor, None)
        return receipts

    def _existing(
        self, row: TaskRow, submit: Submit, own_ids: dict[str, TaskRow], own_keys: dict[str, TaskRow]
    ) -> TaskRow | None:
        if row.id in submit.chosen_ids:
            if row.id in self.gone:
                raise TaskExpired(row.id)
            existing = self.by_id.get(row.id) or own_ids.get(row.id)
            if existing is not None:
                return _same_payload(existing, row, row.id, "task id")
        key = row.idempotency_key
        if key is None:
            return None
        existing = self.by_key.get(key) or own_keys.get(key)
        return None if existing is None else _same_payload(existing, row, key, "idempotency key")

    def _set_first_state(self, row: TaskRow) -> None:
        # What was due when it was made is due, whatever the wall clock has done since.
        is_later = row.due_at > max(self.batch.now, row.created_at)
        trigger = Trigger.USER_SUBMIT_LATER if is_later else Trigger.USER_SUBMIT
        row.state = step(State.PENDING, trigger)

    def _check_room(self, submit: Submit, count: int) -> None:
        limit = self.batch.max_pending
        if limit is None or not submit.is_bounded or count == 0:
            return
        if self.pending is None:
            self.pending = self.tx.pending()
        # The counters do not know yet what this tick has accepted, bounded or not.
        pending = self.pending + len(self.accepted)
        if pending + count > limit:
            raise QueueFull(max_pending=limit, pending=pending)

    def _accept(self, row: TaskRow, actor: str, reason: str | None) -> None:
        ledger = self.ledger
        row.key = ledger.next_key()
        row.version = 1
        trigger = Trigger.USER_SUBMIT_LATER
        if row.state is State.QUEUED:
            row.rank = ledger.next_rank(row.priority)
            trigger = Trigger.USER_SUBMIT
        first = HistoryRow(row.key, 1, State.PENDING, row.state, row.created_at, trigger, actor, reason, 0, None)
        ledger.record(row.name, State.PENDING, row.state, (first,))
        self.accepted.append(row)
        if row.idempotency_key is not None:
            self.by_key[row.idempotency_key] = row
        self.by_id[row.id] = row

    def requeue(self, requeue: Requeue) -> Receipt:
        """Make a new task of a finished one.

        Raises:
            TaskNotFound, TaskExpired, NotFinished: nothing is stored.
        """
        old = self.by_id.get(requeue.task_id)
        if old is None:
            raise TaskExpired(requeue.task_id) if requeue.task_id in self.gone else TaskNotFound(requeue.task_id)
        if old.state not in FINAL:
            raise NotFinished(task_id=old.id, state=old.state, operation="requeue")
        if requeue.is_once and old.id in self.requeued:
            return Receipt(id=old.id, created=False, state=old.state)
        self.requeued.add(old.id)
        now = self.batch.now
        row = TaskRow(
            key=0,
            id=requeue.new_id,
            name=old.name,
            args=old.args,
            state=State.QUEUED,
            max_attempts=old.max_attempts,
            recover=old.recover,
            priority=old.priority,
            due_at=now,
            created_at=now,
            send_key=(old.send_key or old.id) if requeue.keep_key else requeue.new_id,
            requeued_from=old.id,
            retry=old.retry,
            tags=old.tags,
            metadata=old.metadata,
            label=old.label,
            timeouts=old.timeouts,
            deadline_at=_later_deadline(old, now),
            start_within=old.start_within,
            callbacks=old.callbacks,
        )
        self._accept(row, requeue.actor, f"requeued from {old.id}")
        return Receipt(id=row.id, created=True, state=row.state)

    def call_back(self, name: str, arguments: str, ended: TaskRow, cause: str, new_id: str) -> None:
        """Take a callback of a task that has just ended; `max_pending` does not refuse it."""
        now = self.batch.now
        known = self.batch.defaults.get(name)
        row = TaskRow(
            key=0,
            id=new_id,
            name=name,
            args=arguments,
            state=State.QUEUED,
            max_attempts=known.max_attempts if known else None,
            recover=known.recover if known else None,
            priority=ended.priority,
            due_at=now,
            created_at=now,
            deadline_at=known.timeouts.deadline_at(now) if known else None,
            start_within=known.timeouts.start_within() if known else None,
        )
        self._accept(row, f"callback:{ended.id}", f"on_{cause} of {ended.name}")


def _later_deadline(old: TaskRow, now: int) -> int | None:
    """Give a requeued task as long as the old one had, from now on."""
    return None if old.deadline_at is None else now + max(0, old.deadline_at - old.created_at)


def _same_payload(existing: TaskRow, row: TaskRow, token: str, what: str) -> TaskRow:
    if existing.name != row.name or existing.args != row.args:
        raise IdempotencyConflict(key=token, task_id=existing.id, what=what)
    return existing
