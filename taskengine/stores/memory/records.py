"""The write side, as far as it is about what is kept besides tasks: owners, commands, holds, what bodies say."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve

from taskengine.core.model import CommandRow, HoldRow, HoldScope, LogRow, OwnerRow, SideRow

if TYPE_CHECKING:
    from taskengine.stores.memory.store import MemoryStore


class MemoryRecords:
    """Primitives over the dicts of a MemoryStore; the contract is `ports.Transaction`."""

    def __init__(self, store: "MemoryStore") -> None:
        self._store = store
        self.undo: list[Callable[[], Any]] = []

    def _put(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        old = table.get(key)
        table[key] = value
        self.undo.append(lambda: table.pop(key, None) if old is None else table.__setitem__(key, old))

    def _take(self, table: dict[Any, Any], key: Any) -> None:
        old = table.pop(key, None)
        if old is not None:
            self.undo.append(lambda: table.__setitem__(key, old))

    # --- owners and commands ---

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

    # --- holds of many ---

    def put_hold(self, hold: HoldRow) -> None:
        self._put(self._store._holds, (hold.scope, hold.target), hold)
        self._count_hold_change()

    def drop_hold(self, scope: HoldScope, target: str) -> None:
        self._take(self._store._holds, (scope, target))
        self._count_hold_change()

    def _count_hold_change(self) -> None:
        before = self._store._holds_version
        self._store._holds_version = before + 1
        self.undo.append(lambda: setattr(self._store, "_holds_version", before))

    def holds(self) -> list[HoldRow]:
        return sorted_holds(self._store._holds.values())

    # --- what bodies say ---

    def put_sides(self, rows: Sequence[SideRow]) -> None:
        sides = self._store._sides
        for row in rows:
            kept = sides.get(row.task_key)
            if row.task_key not in self._store._tasks or (kept is not None and row.attempt < kept.attempt):
                continue
            if kept is not None and row.progress is None and row.attempt == kept.attempt:
                row = row._replace(progress=kept.progress)
            self._put(sides, row.task_key, row)

    def append_logs(self, rows: Sequence[LogRow], keep: int) -> None:
        logs = self._store._logs
        added: dict[tuple[int, int], dict[int, LogRow]] = defaultdict(dict)
        for row in rows:
            if row.task_key in self._store._tasks:
                added[row.task_key, row.attempt].setdefault(row.number, row)
        for (key, attempt), lines in added.items():
            of_task = logs.get(key, {})
            lines |= {row.number: row for row in of_task.get(attempt, ())}
            newest = [lines[number] for number in sorted(lines)][max(0, len(lines) - keep) :]
            # A new dict, not the changed one: what was there must be there again after a rollback.
            self._put(logs, key, {**of_task, attempt: tuple(newest)})


def sorted_holds(holds: Iterable[HoldRow]) -> list[HoldRow]:
    """Order holds of many as every store does: oldest first."""
    return sorted(holds, key=lambda hold: (hold.created_at, hold.scope, hold.target))
