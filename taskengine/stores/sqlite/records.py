"""The write side, as far as it is about what is kept besides tasks: owners, commands, holds, what bodies say."""

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from taskengine.core.model import CommandKind, CommandRow, HoldRow, HoldScope, LogRow, OwnerRow, SideRow
from taskengine.stores.sqlite.rows import columns_of, decode_lists, encode_rows, gather

OWNER_COLUMNS = "id, boot_id, pid_namespace, pid, process_started, beat, started_at, CAST(names AS BLOB)"
"""`names` as a blob: it is for people, and damage to it must not keep an owner from being recovered."""

_HOLD_COLUMNS = "scope, target, actor, reason, until, created_at, is_released"
HOLDS = gather(_HOLD_COLUMNS, f"(SELECT {_HOLD_COLUMNS} FROM hold ORDER BY created_at, scope, target)")

# What a body says of a task that was deleted meanwhile is dropped: nothing would ever delete it.
PUT_SIDES = f"""
INSERT INTO side SELECT v.c0, v.c1, v.c2, v.c3 FROM {columns_of(len(SideRow._fields))}
WHERE EXISTS (SELECT 1 FROM task WHERE key = v.c0)
ON CONFLICT (task_key) DO UPDATE SET attempt = excluded.attempt, seen_at = excluded.seen_at,
    progress = iif(excluded.attempt = attempt, ifnull(excluded.progress, progress), excluded.progress)
WHERE excluded.attempt >= attempt
"""
APPEND_LOGS = f"""
INSERT OR IGNORE INTO log SELECT {", ".join(f"v.c{index}" for index in range(len(LogRow._fields)))}
FROM {columns_of(len(LogRow._fields))} WHERE EXISTS (SELECT 1 FROM task WHERE key = v.c0)
"""
# Numbers begin at 1, so that an attempt whose highest number is not above ?2 has nothing to spare and is not counted.
TRIM_LOGS = """
DELETE FROM log WHERE (task_key, attempt, number) IN (
    SELECT old.task_key, old.attempt, old.number
    FROM (SELECT DISTINCT value->>0 AS task_key, value->>1 AS attempt FROM jsonb_each(?1)) AS touched
    CROSS JOIN log AS old ON old.task_key = touched.task_key AND old.attempt = touched.attempt
    WHERE ?2 < (SELECT max(number) FROM log WHERE task_key = touched.task_key AND attempt = touched.attempt)
    AND old.number <= (
        SELECT number FROM log WHERE task_key = touched.task_key AND attempt = touched.attempt
        ORDER BY number DESC LIMIT 1 OFFSET ?2
    )
)
"""
COUNT_HOLD_CHANGE = "UPDATE counter SET holds_version = holds_version + 1"

_KINDS = frozenset(kind.value for kind in CommandKind)
_SCOPES = {scope.value: scope for scope in HoldScope}


class SqliteRecords:
    """Primitives of an open BEGIN IMMEDIATE; the contract is `ports.Transaction`."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection

    def _one(self, sql: str, *values: Any) -> Any:
        # fetchall and not next(): a statement that is not read to its end keeps its part of the transaction open.
        rows = self._db.execute(sql, values).fetchall()
        return rows[0]

    # --- owners and commands ---

    def put_owner(self, owner: OwnerRow) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO owner VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                owner.id,
                owner.boot_id,
                owner.pid_namespace,
                owner.pid,
                owner.process_started,
                owner.beat,
                owner.started_at,
                encode_rows(owner.names),
            ),
        )

    def get_owner(self, owner: str) -> OwnerRow | None:
        rows = self._db.execute(f"SELECT {OWNER_COLUMNS} FROM owner WHERE id = ?", (owner,)).fetchall()
        return owner_row(rows[0]) if rows else None

    def beat(self, owner: str) -> bool:
        self._db.execute("UPDATE owner SET beat = beat + 1 WHERE id = ?", (owner,))
        return self._db.changes() == 1

    def drop_owner(self, owner: str) -> None:
        self._db.execute("DELETE FROM owner WHERE id = ?", (owner,))
        self._db.execute("DELETE FROM command WHERE owner = ?", (owner,))

    def put_command(self, command: CommandRow) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO command VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                command.id,
                command.task_id,
                command.owner,
                command.kind.value,
                command.actor,
                command.reason,
                command.created_at,
            ),
        )

    def commands(self, owner: str) -> list[CommandRow]:
        sql = "SELECT * FROM command WHERE owner = ? ORDER BY created_at, id"
        rows: list[Any] = self._db.execute(sql, (owner,)).fetchall()
        # A kind that is not known here was written by a newer version, for an owner that knows it.
        rows = [row for row in rows if row[3] in _KINDS]
        return [
            CommandRow(
                id=id_, task_id=task_id, owner=of, kind=CommandKind(kind), actor=actor, reason=reason, created_at=at
            )
            for id_, task_id, of, kind, actor, reason, at in rows
        ]

    def drop_commands(self, ids: Sequence[str]) -> None:
        self._db.execute("DELETE FROM command WHERE id IN (SELECT value FROM json_each(?))", (encode_rows(ids),))

    # --- holds of many ---

    def put_hold(self, hold: HoldRow) -> None:
        self._db.execute(
            f"INSERT OR REPLACE INTO hold ({_HOLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                hold.scope.value,
                hold.target,
                hold.actor,
                hold.reason,
                hold.until,
                hold.created_at,
                hold.is_released,
            ),
        )
        self._db.execute(COUNT_HOLD_CHANGE)

    def drop_hold(self, scope: HoldScope, target: str) -> None:
        self._db.execute("DELETE FROM hold WHERE scope = ? AND target = ?", (scope.value, target))
        self._db.execute(COUNT_HOLD_CHANGE)

    def holds(self) -> list[HoldRow]:
        return hold_rows(self._one(HOLDS)[0])

    # --- what bodies say ---

    def put_sides(self, rows: Sequence[SideRow]) -> None:
        self._db.execute(PUT_SIDES, (encode_rows(rows),))

    def append_logs(self, rows: Sequence[LogRow], keep: int) -> None:
        self._db.execute(APPEND_LOGS, (encode_rows(rows),))
        touched = {(row.task_key, row.attempt) for row in rows}
        self._db.execute(TRIM_LOGS, (encode_rows(list(touched)), keep))


def texts(text: str | bytes) -> tuple[str, ...]:
    """Read a stored list of texts; damaged, it is empty."""
    try:
        return tuple(msgspec.json.decode(text, type=list[str]))
    except (msgspec.MsgspecError, ValueError):
        return ()


def owner_row(columns: Sequence[Any]) -> OwnerRow:
    """Build an owner from its columns."""
    id_, boot_id, pid_namespace, pid, process_started, beat, started_at, names = columns
    return OwnerRow(
        id=id_,
        boot_id=boot_id,
        pid_namespace=pid_namespace,
        pid=pid,
        process_started=process_started,
        beat=beat,
        started_at=started_at,
        names=texts(names),
    )


def hold_rows(text: bytes) -> list[HoldRow]:
    """Read what the `HOLDS` query returned; a scope that is not known here was written by a newer version."""
    return [
        HoldRow(
            scope=_SCOPES[scope],
            target=target,
            actor=actor,
            reason=reason,
            until=until,
            created_at=created_at,
            is_released=bool(is_released),
        )
        for scope, target, actor, reason, until, created_at, is_released in decode_lists(text)
        if scope in _SCOPES
    ]
