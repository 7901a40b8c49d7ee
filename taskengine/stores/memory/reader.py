"""The reading side of the memory store."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from taskengine.core.lifecycle import FINAL, WAITING, State, Trigger
from taskengine.core.model import HistoryRow, HoldRow, LogRow, OwnerRow, SideRow, TaskFilter, TaskRow, to_micros
from taskengine.stores.memory.indexes import copy_row
from taskengine.stores.memory.records import sorted_holds

if TYPE_CHECKING:
    from taskengine.stores.memory.store import MemoryStore


class MemoryReader:
    """Queries over the dicts of a MemoryStore; the contract is `ports.Reader`."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    def get(self, task_id: str) -> TaskRow | None:
        with self._store._lock:
            row = self._store._by_id.get(task_id)
            return None if row is None else copy_row(row)

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
                if (before_key is None or row.key < before_key) and self._matches(row, where)
            )
            return [copy_row(row) for row in islice(matching, limit)]

    def _candidates(self, claim_order: bool) -> Iterator[TaskRow]:
        tasks = self._store._tasks
        if claim_order:
            heads = sorted(head for queue in self._store._indexes.queue.values() for head in queue)
            return (tasks[key] for _, key in heads)
        return (tasks[key] for key in reversed(tasks))

    def _matches(self, row: TaskRow, where: TaskFilter) -> bool:
        indexes = self._store._indexes
        return (
            (where.ids is None or row.id in where.ids)
            and (where.states is None or row.state in where.states)
            and (where.name is None or row.name == where.name)
            and (where.tag is None or row.key in indexes.tagged.get(where.tag, ()))
            and (where.created_after is None or row.created_at >= to_micros(where.created_after))
            and (where.created_before is None or row.created_at < to_micros(where.created_before))
            and (where.held is None or where.held == (row.held is not None))
            and (where.requeued is None or where.requeued == (row.id in indexes.requeued))
        )

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

    def held(self, names: Sequence[str] | None, tags: Sequence[str] = ()) -> int:
        indexes, tasks = self._store._indexes, self._store._tasks
        with self._store._lock:
            held = {key for key in indexes.held if tasks[key].state not in FINAL}
            tagged = {key for tag in tags for key in indexes.tagged.get(tag, ()) if tasks[key].state in WAITING}
            return sum(names is None or tasks[key].name in names for key in held | tagged)

    def holds(self) -> list[HoldRow]:
        with self._store._lock:
            return sorted_holds(self._store._holds.values())

    def sides(self, keys: Sequence[int]) -> dict[int, SideRow]:
        sides = self._store._sides
        with self._store._lock:
            return {key: sides[key] for key in keys if key in sides}

    def logs(self, task_id: str, *, attempt: int | None = None, limit: int) -> list[LogRow]:
        with self._store._lock:
            row = self._store._by_id.get(task_id)
            of_task = {} if row is None else self._store._logs.get(row.key, {})
            lines = [line for number in sorted(of_task) if attempt in (None, number) for line in of_task[number]]
            return lines[max(0, len(lines) - limit) :]

    def finished(self, ids: Sequence[str]) -> set[str]:
        by_id = self._store._by_id
        with self._store._lock:
            return {id_ for id_ in ids if (row := by_id.get(id_)) is not None and row.state in FINAL}

    def owners(self) -> list[OwnerRow]:
        with self._store._lock:
            return list(self._store._owners.values())

    def ownerless(self) -> list[str]:
        with self._store._lock:
            return [
                owner for owner, rows in self._store._indexes.owned.items() if rows and owner not in self._store._owners
            ]
