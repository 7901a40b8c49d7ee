"""The reading side, on a connection of its own: it sees committed facts and waits for no writer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

from taskengine.core.lifecycle import FINAL, WAITING, State, Trigger
from taskengine.core.model import HistoryRow, HoldRow, LogRow, OwnerRow, SideRow, TaskFilter, TaskRow, to_micros
from taskengine.stores.sqlite.errors import translated
from taskengine.stores.sqlite.records import HOLDS, OWNER_COLUMNS, hold_rows, owner_row
from taskengine.stores.sqlite.rows import (
    HISTORY_COLUMNS,
    TASK_COLUMNS,
    TASK_SELECT,
    decode_lists,
    decode_tasks,
    encode_rows,
    gather,
    history_row,
)
from taskengine.stores.sqlite.schema import QUEUED, words

_QUALIFIED = ", ".join(f"task.{column}" for column in TASK_COLUMNS)
_HISTORY = ", ".join(f"history.{column}" for column in HISTORY_COLUMNS)
_SIDE = ", ".join(SideRow._fields)
_LOG = ", ".join(LogRow._fields)
_IN_JSON = "IN (SELECT value FROM json_each(?))"


class SqliteReader:
    """Queries; the contract is `ports.Reader`."""

    def __init__(self, connection: apsw.Connection, path: Path) -> None:
        self._db = connection
        self._path = path

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with translated(self._path):
            return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> Any:
        return self._all(sql, *values)[0][0]

    def get(self, task_id: str) -> TaskRow | None:
        rows = decode_tasks(self._one(gather(TASK_SELECT, "task WHERE id = ?"), task_id))
        return rows[0] if rows else None

    def was_deleted(self, task_id: str) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM tombstone WHERE id = ?)", task_id))

    def select(
        self, where: TaskFilter, *, limit: int, before_key: int | None = None, claim_order: bool = False
    ) -> list[TaskRow]:
        terms, values = _conditions(where)
        source = "task"
        if where.held and where.ids is None and where.tag is None:
            source = "task INDEXED BY task_held"  # The planner would rather look at every task there is.
        if where.tag is not None:
            source = "task JOIN tag ON tag.task_key = task.key AND tag.tag = ?"
            values.insert(0, where.tag)
        if before_key is not None:
            terms.append("task.key < ?")
            values.append(before_key)
        if claim_order:
            terms.append(QUEUED)
        order = "rank, key" if claim_order else "key DESC"
        sql = gather(
            TASK_SELECT,
            f"(SELECT {_QUALIFIED} FROM {source} WHERE {' AND '.join(terms) or 'true'} "
            f"ORDER BY {', '.join('task.' + part for part in order.split(', '))} LIMIT ?)",
        )
        rows = decode_tasks(self._one(sql, *values, limit))
        if claim_order:
            return sorted(rows, key=lambda row: (row.rank, row.key))
        return sorted(rows, key=lambda row: row.key, reverse=True)

    def history(self, task_id: str) -> list[tuple[int, HistoryRow]]:
        source = "history WHERE task_key = (SELECT key FROM task WHERE id = ?)"
        rows = decode_lists(self._one(gather(f"position, {_HISTORY}", source), task_id))
        return sorted((row[0], history_row(row[1:])) for row in rows)

    def events(self, after: int, limit: int) -> list[tuple[int, str, str, HistoryRow]]:
        source = (
            f"(SELECT history.position, task.id, task.name, {_HISTORY} FROM history JOIN task ON task.key = task_key "
            "WHERE position > ? ORDER BY position LIMIT ?)"
        )
        columns = f"position, id, name, {', '.join(HISTORY_COLUMNS)}"
        rows = decode_lists(self._one(gather(columns, source), after, limit))
        return sorted((row[0], row[1], row[2], history_row(row[3:])) for row in rows)

    def last_position(self) -> int:
        return int(self._one("SELECT next_position - 1 FROM counter"))

    def tallies(self) -> tuple[dict[tuple[str, State], int], dict[Trigger, int]]:
        rows = decode_lists(self._one(gather("name, word, n", "tally")))
        states = {(name, State(word)): n for name, word, n in rows if name}
        return states, {Trigger(word): n for name, word, n in rows if not name}

    def held(self, names: Sequence[str] | None, tags: Sequence[str] = ()) -> int:
        named, values = ("", ()) if names is None else (f"AND task.name {_IN_JSON}", (encode_rows(names),))
        marked = f"SELECT count(*) FROM task WHERE held IS NOT NULL AND state NOT IN ({words(FINAL)}) {named}"
        if not tags:
            return int(self._one(marked, *values))
        tagged = (
            "SELECT count(DISTINCT task.key) FROM json_each(?) AS wanted CROSS JOIN tag ON tag.tag = wanted.value "
            f"CROSS JOIN task ON task.key = tag.task_key WHERE held IS NULL AND state IN ({words(WAITING)}) {named}"
        )
        return int(self._one(f"SELECT ({marked}) + ({tagged})", *values, encode_rows(tags), *values))

    def holds(self) -> list[HoldRow]:
        return hold_rows(self._one(HOLDS))

    def sides(self, keys: Sequence[int]) -> dict[int, SideRow]:
        rows = decode_lists(self._one(gather(_SIDE, f"side WHERE task_key {_IN_JSON}"), encode_rows(list(keys))))
        return {row[0]: SideRow(*row) for row in rows}

    def logs(self, task_id: str, *, attempt: int | None = None, limit: int) -> list[LogRow]:
        source = (
            "(SELECT * FROM log WHERE task_key = (SELECT key FROM task WHERE id = ?) "
            f"{'' if attempt is None else 'AND attempt = ?'} ORDER BY attempt DESC, number DESC LIMIT ?)"
        )
        values = (task_id, limit) if attempt is None else (task_id, attempt, limit)
        return sorted(LogRow(*row) for row in decode_lists(self._one(gather(_LOG, source), *values)))

    def finished(self, ids: Sequence[str]) -> set[str]:
        source = f"task WHERE state IN ({words(FINAL)}) AND id {_IN_JSON}"
        return {row[0] for row in decode_lists(self._one(gather("id", source), encode_rows(ids)))}

    def owners(self) -> list[OwnerRow]:
        return [owner_row(row) for row in self._all(f"SELECT {OWNER_COLUMNS} FROM owner")]

    def ownerless(self) -> list[str]:
        source = "(SELECT DISTINCT owner FROM task WHERE owner IS NOT NULL AND owner NOT IN (SELECT id FROM owner))"
        return [row[0] for row in decode_lists(self._one(gather("owner", source)))]


def _conditions(where: TaskFilter) -> tuple[list[str], list[Any]]:
    terms: list[str] = []
    values: list[Any] = []
    if where.ids is not None:
        terms.append(f"task.id {_IN_JSON}")
        values.append(encode_rows(where.ids))
    if where.states is not None:
        terms.append(f"task.state {_IN_JSON}")
        values.append(encode_rows(sorted(where.states)))
    if where.name is not None:
        terms.append("task.name = ?")
        values.append(where.name)
    if where.created_after is not None:
        terms.append("task.created_at >= ?")
        values.append(to_micros(where.created_after))
    if where.created_before is not None:
        terms.append("task.created_at < ?")
        values.append(to_micros(where.created_before))
    if where.held is not None:
        terms.append(f"task.held IS {'NOT NULL' if where.held else 'NULL'}")
    if where.requeued is not None:
        if where.requeued:
            terms.append("task.id IN (SELECT requeued_from FROM task WHERE requeued_from IS NOT NULL)")
        else:
            terms.append("NOT EXISTS (SELECT 1 FROM task AS later WHERE later.requeued_from = task.id)")
    return terms, values
