"""A store in memory: a verified fake that passes the same contract suite as the durable ones.

For tests and for work that may die with the process. As atomic as the others: what a transaction changes is noted
first, and put back if the block raises.
"""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any

import msgspec
from attrs import evolve

from taskengine.core.errors import StoreClosed, StoreError
from taskengine.core.lifecycle import CLAIMABLE, FINAL, LEASED, TIMED, WAITING, State, Trigger
from taskengine.core.model import CommandRow, HistoryRow, OwnerRow, TaskFilter, TaskRow, TaskWrite, to_micros
from taskengine.ports import Head

_Undo = Callable[[], Any]


class MemoryStore:
    """Tasks in this process's memory. Several engines, also in several threads, may share one."""

    inline = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: dict[int, TaskRow] = {}
        self._by_id: dict[str, TaskRow] = {}
        self._by_key: dict[str, TaskRow] = {}
        self._owned: dict[str, dict[int, TaskRow]] = defaultdict(dict)
        self._queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._due: list[tuple[int, int]] = []
        self._held: set[int] = set()
        self._history: list[HistoryRow] = []
        self._histories: dict[int, list[int]] = defaultdict(list)
        self._states: Counter[tuple[str, State]] = Counter()
        self._triggers: Counter[Trigger] = Counter()
        self._owners: dict[str, OwnerRow] = {}
        self._commands: dict[str, CommandRow] = {}
        self._tombstones: set[str] = set()
        self._head = [1, 1, 0]
        self._commits = 0
        self._opened = 0
        self._listeners: list[Callable[[], None]] = []

    def open(self) -> None:
        """Count one more user; see `ports.Store.open`."""
        with self._lock:
            self._opened += 1

    def close(self) -> None:
        """Count one user less. The tasks stay, so that a test can open the store again and look."""
        with self._lock:
            self._opened = max(0, self._opened - 1)

    @contextmanager
    def transact(self) -> "Iterator[MemoryTransaction]":
        """See `ports.Store.transact`."""
        with self._lock:
            if not self._opened:
                raise StoreClosed("the memory store is closed")
            tx = MemoryTransaction(self)
            try:
                yield tx
            except BaseException:
                for undo in reversed(tx.undo):
                    undo()
                raise
            self._commits += 1
        for listener in list(self._listeners):
            listener()

    def reader(self) -> "MemoryReader":
        """Return the reading side."""
        if not self._opened:
            raise StoreClosed("the memory store is closed")
        return MemoryReader(self)

    def foreign_commits(self) -> int:
        """Return the number of commits; the engine hears of them through `subscribe`."""
        return self._commits

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each commit, in the committing thread; return how to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None


class MemoryTransaction:
    """Primitives over the dicts of a MemoryStore; the contract is `ports.Transaction`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.undo: list[_Undo] = []

    # --- indexes ---

    def _index(self, row: TaskRow) -> None:
        store = self._store
        if row.held is not None:
            store._held.add(row.key)
        if row.state in CLAIMABLE:
            if row.held is None:
                _insert(store._queue[row.name], (row.rank, row.key))
        elif row.state in TIMED:
            _insert(store._due, (row.due_at, row.key))
        elif row.owner is not None:
            store._owned[row.owner][row.key] = row

    def _unindex(self, row: TaskRow) -> None:
        store = self._store
        if row.held is not None:
            store._held.discard(row.key)
        if row.state in CLAIMABLE:
            if row.held is None:
                _remove(store._queue[row.name], (row.rank, row.key))
        elif row.state in TIMED:
            _remove(store._due, (row.due_at, row.key))
        elif row.owner is not None:
            owned = store._owned[row.owner]
            owned.pop(row.key, None)
            if not owned:
                del store._owned[row.owner]

    def _changing(self, row: TaskRow) -> None:
        """Take the row out of the indexes and note how to put it back as it is."""
        self._unindex(row)
        self.undo.append(partial(self._put_back, row, _values(row)))

    def _put_back(self, row: TaskRow, values: tuple[Any, ...]) -> None:
        self._unindex(row)
        for name, value in zip(_COLUMNS, values, strict=True):
            setattr(row, name, value)
        self._index(row)

    # --- head ---

    def head(self, owner: str | None) -> Head:
        store = self._store
        known = owner is None or owner in store._owners
        others = len(store._owners) - (owner in store._owners)
        has_commands = any(command.owner == owner for command in store._commands.values())
        next_key, next_position, last_rank = store._head
        return Head(next_key, next_position, last_rank, known, others, has_commands)

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
            own = _copy(row)  # What the caller does to its row later must not reach the indexes.
            store._tasks[own.key] = store._by_id[own.id] = own
            if own.idempotency_key is not None:
                store._by_key[own.idempotency_key] = own
            self._index(own)
            self.undo.append(lambda row=own: self._drop(row))  # type: ignore[misc]  # binds the loop's row

    def _drop(self, row: TaskRow) -> None:
        store = self._store
        self._unindex(row)
        del store._tasks[row.key], store._by_id[row.id]
        if row.idempotency_key is not None:
            del store._by_key[row.idempotency_key]

    def find(self, *, ids: Sequence[str] = (), idempotency_keys: Sequence[str] = ()) -> list[TaskRow]:
        store = self._store
        found = {row.key: row for token in ids if (row := store._by_id.get(token)) is not None}
        found |= {row.key: row for token in idempotency_keys if (row := store._by_key.get(token)) is not None}
        return [_copy(row) for row in found.values()]

    def deleted(self, ids: Sequence[str]) -> set[str]:
        return self._store._tombstones.intersection(ids)

    def update(self, writes: Sequence[TaskWrite]) -> set[int]:
        won = set()
        for write in writes:
            row = self._store._tasks.get(write.key)
            if row is None or row.attempt != write.expected_attempt or row.version != write.expected_version:
                continue
            self._changing(row)
            for name, value in zip(_WRITTEN, write[3:], strict=True):
                setattr(row, name, value)
            self._index(row)
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

    def due(self, now: int, limit: int) -> list[TaskRow]:
        store = self._store
        end = bisect_right(store._due, (now, _LAST_KEY))
        return [_copy(store._tasks[key]) for _, key in store._due[: min(end, limit)]]

    def next_due(self) -> int | None:
        return self._store._due[0][0] if self._store._due else None

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        store = self._store
        heads: list[tuple[int, int]] = []
        for name in names:
            if name in store._queue:
                heads.extend(store._queue[name][:limit])
        if len(names) > 1:
            heads.sort()
        return [_copy(store._tasks[key]) for _, key in heads[:limit]]

    def claim(self, keys: Sequence[int], owner: str) -> None:
        for key in keys:
            row = self._store._tasks[key]
            self._changing(row)
            row.state = State.STARTING
            row.attempt += 1
            row.charged += 1
            row.version += 1
            row.owner = owner
            self._index(row)

    def set_defaults(self, key: int, max_attempts: int, recover: str) -> None:
        row = self._store._tasks[key]
        self._changing(row)
        row.max_attempts, row.recover = max_attempts, recover
        self._index(row)

    def owned(self, owner: str, limit: int) -> list[TaskRow]:
        rows = sorted(self._store._owned.get(owner, {}).items())  # by key, as every store has it
        return [_copy(row) for _, row in islice(rows, limit) if row.state in LEASED]

    def delete(self, keys: Sequence[int]) -> None:
        store = self._store
        for key in keys:
            row = store._tasks[key]
            positions = store._histories.pop(key, [])
            self._drop(row)
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
        self._index(row)

    # --- owners and commands ---

    def _put(self, table: dict[str, Any], key: str, value: Any) -> None:
        old = table.get(key)
        table[key] = value
        self.undo.append(lambda: table.pop(key, None) if old is None else table.__setitem__(key, old))

    def _take(self, table: dict[str, Any], key: str) -> None:
        old = table.pop(key, None)
        if old is not None:
            self.undo.append(lambda: table.__setitem__(key, old))

    def put_owner(self, owner: OwnerRow) -> None:
        self._put(self._store._owners, owner.id, owner)

    def get_owner(self, owner: str) -> OwnerRow | None:
        return self._store._owners.get(owner)

    def beat(self, owner: str) -> bool:
        row = self._store._owners.get(owner)
        if row is None:
            return False
        self._put(self._store._owners, owner, evolve(row, beat=row.beat + 1))
        return True

    def drop_owner(self, owner: str) -> None:
        self._take(self._store._owners, owner)
        self.drop_commands([command.id for command in self.commands(owner)])

    def put_command(self, command: CommandRow) -> None:
        if command.id not in self._store._commands:
            self._put(self._store._commands, command.id, command)

    def commands(self, owner: str) -> list[CommandRow]:
        mine = [command for command in self._store._commands.values() if command.owner == owner]
        return sorted(mine, key=lambda command: (command.created_at, command.id))

    def drop_commands(self, ids: Sequence[str]) -> None:
        for id_ in ids:
            self._take(self._store._commands, id_)


class MemoryReader:
    """Queries over the dicts of a MemoryStore; the contract is `ports.Reader`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def get(self, task_id: str) -> TaskRow | None:
        with self._store._lock:
            row = self._store._by_id.get(task_id)
            return None if row is None else _copy(row)

    def was_deleted(self, task_id: str) -> bool:
        with self._store._lock:
            return task_id in self._store._tombstones

    def select(
        self, where: TaskFilter, *, limit: int, before_key: int | None = None, claim_order: bool = False
    ) -> list[TaskRow]:
        with self._store._lock:
            matching = (
                row
                for row in self._candidates(claim_order)
                if (before_key is None or row.key < before_key) and _matches(row, where)
            )
            return [_copy(row) for row in islice(matching, limit)]

    def _candidates(self, claim_order: bool) -> Iterator[TaskRow]:
        tasks = self._store._tasks
        if claim_order:
            heads = sorted(head for queue in self._store._queue.values() for head in queue)
            return (tasks[key] for _, key in heads)
        return (tasks[key] for key in reversed(tasks))

    def history(self, task_id: str) -> list[tuple[int, HistoryRow]]:
        store = self._store
        with store._lock:
            row = store._by_id.get(task_id)
            positions = [] if row is None else store._histories[row.key]
            return [(position, store._history[position - 1]) for position in positions]

    def events(self, after: int, limit: int) -> list[tuple[int, str, str, HistoryRow]]:
        store = self._store
        with store._lock:
            found = []
            for position in range(max(0, after) + 1, len(store._history) + 1):
                row = store._history[position - 1]
                task = store._tasks.get(row.task_key)
                if task is not None:
                    found.append((position, task.id, task.name, row))
                    if len(found) == limit:
                        break
            return found

    def last_position(self) -> int:
        with self._store._lock:
            return self._store._head[1] - 1

    def tallies(self) -> tuple[dict[tuple[str, State], int], dict[Trigger, int]]:
        with self._store._lock:
            return dict(self._store._states), dict(self._store._triggers)

    def held(self, names: Sequence[str] | None) -> int:
        with self._store._lock:
            rows = (self._store._tasks[key] for key in self._store._held)
            return sum(row.state not in FINAL and (names is None or row.name in names) for row in rows)

    def finished(self, ids: Sequence[str]) -> set[str]:
        by_id = self._store._by_id
        with self._store._lock:
            return {id_ for id_ in ids if (row := by_id.get(id_)) is not None and row.state in FINAL}

    def owners(self) -> list[OwnerRow]:
        with self._store._lock:
            return list(self._store._owners.values())

    def ownerless(self) -> list[str]:
        with self._store._lock:
            return [owner for owner, rows in self._store._owned.items() if rows and owner not in self._store._owners]


_COLUMNS = tuple(TaskRow.__annotations__)
_values = attrgetter(*_COLUMNS)
_WRITTEN = TaskWrite._fields[3:]
_LAST_KEY = 2**63


def _copy(row: TaskRow) -> TaskRow:
    return TaskRow(*_values(row))


def _insert(index: list[tuple[int, int]], entry: tuple[int, int]) -> None:
    # Most entries come in order, and appending is cheaper than searching.
    if not index or index[-1] < entry:
        index.append(entry)
    else:
        insort(index, entry)


def _remove(index: list[tuple[int, int]], entry: tuple[int, int]) -> None:
    at = bisect_left(index, entry)
    if at < len(index) and index[at] == entry:
        del index[at]


def _matches(row: TaskRow, where: TaskFilter) -> bool:
    return (
        (where.ids is None or row.id in where.ids)
        and (where.states is None or row.state in where.states)
        and (where.name is None or row.name == where.name)
        and (where.tag is None or (row.tags is not None and where.tag in msgspec.json.decode(row.tags)))
        and (where.created_after is None or row.created_at >= to_micros(where.created_after))
        and (where.created_before is None or row.created_at < to_micros(where.created_before))
    )
