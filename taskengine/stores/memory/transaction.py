"""The write side of the memory store, as far as it is about tasks; each change notes how it is undone."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from taskengine.core.errors import StoreError
from taskengine.core.lifecycle import LEASED, WAITING, State, Trigger
from taskengine.core.model import HistoryRow, TaskRow, TaskWrite
from taskengine.ports import Head
from taskengine.stores.memory.indexes import COLUMNS, copy_row, until, values_of
from taskengine.stores.memory.records import MemoryRecords

_WRITTEN = TaskWrite._fields[3:]


class MemoryTransaction(MemoryRecords):
    """Primitives over the dicts of a MemoryStore; the contract is `ports.Transaction`."""

    # --- undoing ---

    def _changing(self, row: TaskRow) -> None:
        """Take the row out of the indexes and note how to put it back as it is."""
        self._store._indexes.remove(row)
        self.undo.append(partial(self._put_back, row, values_of(row)))

    def _put_back(self, row: TaskRow, values: tuple[Any, ...]) -> None:
        self._store._indexes.remove(row)
        for name, value in zip(COLUMNS, values, strict=True):
            setattr(row, name, value)
        self._store._indexes.add(row)

    # --- head ---

    def head(self, owner: str | None) -> Head:
        store = self._store
        known = owner is None or owner in store._owners
        others = len(store._owners) - (owner in store._owners)
        has_commands = any(command.owner == owner for command in store._commands.values())
        next_key, next_position, last_rank = store._head
        return Head(next_key, next_position, last_rank, known, others, has_commands, store._holds_version)

    def save_head(self, head: Head) -> None:
        old = self._store._head
        self._store._head = [head.next_key, head.next_position, head.last_rank]
        self.undo.append(lambda: setattr(self._store, "_head", old))

    def pending(self) -> int:
        return sum(n for (_, state), n in self._store._states.items() if state in WAITING)

    # --- tasks ---

    def insert(self, rows: Sequence[TaskRow]) -> None:
        store = self._store
        for row in rows:
            if row.id in store._by_id or row.key in store._tasks or row.idempotency_key in store._by_key:
                raise StoreError(f"task {row.id} (or its idempotency key) exists already")
            own = copy_row(row)  # What the caller does to its row later must not reach the indexes.
            store._tasks[own.key] = store._by_id[own.id] = own
            if own.idempotency_key is not None:
                store._by_key[own.idempotency_key] = own
            store._indexes.enter(own)
            self.undo.append(lambda row=own: self._drop(row))  # type: ignore[misc]  # binds the loop's row

    def _drop(self, row: TaskRow) -> None:
        store = self._store
        store._indexes.leave(row)
        del store._tasks[row.key], store._by_id[row.id]
        if row.idempotency_key is not None:
            del store._by_key[row.idempotency_key]

    def find(self, *, ids: Sequence[str] = (), idempotency_keys: Sequence[str] = ()) -> list[TaskRow]:
        store = self._store
        found = {row.key: row for token in ids if (row := store._by_id.get(token)) is not None}
        found |= {row.key: row for token in idempotency_keys if (row := store._by_key.get(token)) is not None}
        return [copy_row(row) for row in found.values()]

    def deleted(self, ids: Sequence[str]) -> set[str]:
        return self._store._tombstones.intersection(ids)

    def requeued(self, ids: Sequence[str]) -> set[str]:
        return {task_id for task_id in ids if self._store._indexes.requeued.get(task_id)}

    def update(self, writes: Sequence[TaskWrite]) -> set[int]:
        won = set()
        for write in writes:
            row = self._store._tasks.get(write.key)
            if row is None or row.attempt != write.expected_attempt or row.version != write.expected_version:
                continue
            self._changing(row)
            for name, value in zip(_WRITTEN, write[3:], strict=True):
                setattr(row, name, value)
            self._store._indexes.add(row)
            won.add(write.key)
        return won

    def append(self, rows: Sequence[HistoryRow], first_position: int) -> None:
        store = self._store
        if first_position != len(store._history) + 1:
            raise StoreError(f"position {first_position} does not follow {len(store._history)}")
        for offset, row in enumerate(rows):
            store._histories[row.task_key].append(first_position + offset)
        store._history.extend(rows)

        def undo() -> None:
            del store._history[first_position - 1 :]
            for row in rows:
                positions = store._histories[row.task_key]
                del positions[bisect_left(positions, first_position) :]

        self.undo.append(undo)

    def tally(self, states: Mapping[tuple[str, State], int], triggers: Mapping[Trigger, int]) -> None:
        store = self._store
        for (name, state), n in states.items():
            store._states[name, state] += n
        for trigger, n in triggers.items():
            store._triggers[trigger] += n

        def undo() -> None:
            store._states.subtract(states)
            store._triggers.subtract(triggers)

        self.undo.append(undo)

    # --- the clock, holds and tags ---

    def due(self, now: int, limit: int) -> list[TaskRow]:
        return self._copies(until(self._store._indexes.due, now, limit))

    def _copies(self, keys: Iterable[int]) -> list[TaskRow]:
        return [copy_row(self._store._tasks[key]) for key in keys]

    def expired(self, now: int, limit: int) -> list[TaskRow]:
        return self._copies(sorted(until(self._store._indexes.time_limits, now, limit)))

    def hold_ended(self, now: int, limit: int) -> list[TaskRow]:
        return self._copies(sorted(until(self._store._indexes.hold_ends, now, limit)))

    def marked(self, by: str, limit: int) -> list[TaskRow]:
        return self._copies(until(self._store._indexes.marked.get(by, []), 0, limit))

    def next_due(self) -> int | None:
        return self._store._indexes.next_due()

    def tags_of(self, keys: Sequence[int], tags: Sequence[str]) -> dict[int, str]:
        tagged = self._store._indexes.tagged
        return {key: tag for tag in tags if tag in tagged for key in keys if key in tagged[tag]}

    # --- the queue ---

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        queue = self._store._indexes.queue
        heads: list[tuple[int, int]] = []
        for name in names:
            if name in queue:
                heads.extend(queue[name][:limit])
        if len(names) > 1:
            heads.sort()
        return self._copies(key for _, key in heads[:limit])

    def claim(self, keys: Sequence[int], owner: str) -> None:
        for key in keys:
            row = self._store._tasks[key]
            self._changing(row)
            row.state = State.STARTING
            row.attempt += 1
            row.charged += 1
            row.version += 1
            row.owner = owner
            self._store._indexes.add(row)

    def set_defaults(self, key: int, max_attempts: int, recover: str, deadline_at: int | None) -> None:
        row = self._store._tasks[key]
        self._changing(row)
        row.max_attempts, row.recover = max_attempts, recover
        if deadline_at is not None:
            row.deadline_at = deadline_at
        self._store._indexes.add(row)

    def extend(self, deadlines: Sequence[tuple[int, int, int]]) -> None:
        for key, attempt, deadline_at in deadlines:
            row = self._store._tasks.get(key)
            if row is not None and row.attempt == attempt:
                self._changing(row)
                row.deadline_at = deadline_at
                self._store._indexes.add(row)

    def owned(self, owner: str, limit: int) -> list[TaskRow]:
        rows = sorted(self._store._indexes.owned.get(owner, {}).items())  # by key, as every store has it
        return [copy_row(row) for _, row in islice(rows, limit) if row.state in LEASED]

    def delete(self, keys: Sequence[int]) -> None:
        store = self._store
        for key in keys:
            row = store._tasks[key]
            positions = store._histories.pop(key, [])
            self._drop(row)
            self._take(store._sides, key)
            self._take(store._logs, key)
            store._tombstones.add(row.id)
            self.undo.append(lambda row=row, positions=positions: self._restore(row, positions))  # type: ignore[misc]

    def _restore(self, row: TaskRow, positions: list[int]) -> None:
        store = self._store
        store._tasks[row.key] = store._by_id[row.id] = row
        store._tasks = dict(sorted(store._tasks.items()))  # Listings follow the order of the keys.
        if row.idempotency_key is not None:
            store._by_key[row.idempotency_key] = row
        store._histories[row.key] = positions
        store._tombstones.discard(row.id)
        store._indexes.enter(row)
