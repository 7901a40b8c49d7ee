"""The write side: each primitive is one or two statements over a whole set."""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from taskengine.core.lifecycle import LEASED, WAITING, State, Trigger
from taskengine.core.model import CommandRow, HistoryRow, OwnerRow, TaskRow, TaskWrite, WishKind
from taskengine.ports import CLAIM_BYTES, Head
from taskengine.stores.sqlite.rows import (
    HISTORY_COLUMNS,
    TASK_SELECT,
    TASK_SELECT_LIGHT,
    columns_of,
    decode_lists,
    decode_tasks,
    encode_rows,
    gather,
)
from taskengine.stores.sqlite.schema import DUE, QUEUED, words

_INSERTED = (
    "key",
    "id",
    "name",
    "args",
    "state",
    "version",
    "max_attempts",
    "recover",
    "priority",
    "rank",
    "due_at",
    "created_at",
    "idempotency_key",
    "send_key",
    "requeued_from",
    "retry",
    "tags",
    "metadata",
    "label",
)

HEAD = """
SELECT next_key, next_position, last_rank,
       ?1 IS NULL OR EXISTS (SELECT 1 FROM owner WHERE id = ?1),
       (SELECT count(*) FROM owner WHERE id IS NOT ?1),
       EXISTS (SELECT 1 FROM command WHERE owner = ?1)
FROM counter
"""
SAVE_HEAD = "UPDATE counter SET next_key = ?, next_position = ?, last_rank = ?"
INSERT = (
    f"INSERT INTO task ({', '.join(_INSERTED)}) "
    f"SELECT {', '.join(f'value->>{index}' for index in range(len(_INSERTED)))} FROM jsonb_each(?)"
)
INSERT_TAGS = "INSERT OR IGNORE INTO tag SELECT value->>0, value->>1 FROM jsonb_each(?)"
FIND_IDS = gather(TASK_SELECT, "task WHERE id IN (SELECT value FROM json_each(?))")
FIND_KEYS = gather(TASK_SELECT, "task WHERE idempotency_key IN (SELECT value FROM json_each(?))")
UPDATE = f"""
UPDATE task SET state = v.c3, version = v.c4, charged = v.c5, crashes = v.c6, rank = v.c7, due_at = v.c8,
    started_at = v.c9, finished_at = v.c10, owner = v.c11, wish = v.c12, held = v.c13, result = v.c14, failure = v.c15
FROM {columns_of(len(TaskWrite._fields))}
WHERE task.key = v.c0 AND task.attempt = v.c1 AND task.version = v.c2
"""
# Asked only where some guard was lost. A row that lost it was moved by somebody else: it is not as our write made it,
# or a history row stands where ours would go. (Ours are appended at the end of the transaction.) RETURNING would tell
# the same, at the price of a step for each row of every tick.
WINNERS = gather(
    "v.c0",
    f"""{columns_of(len(TaskWrite._fields))} JOIN task ON task.key = v.c0 AND task.attempt = v.c1
    WHERE ({", ".join(f"task.{name}" for name in TaskWrite._fields[3:])})
        IS ({", ".join(f"v.c{index}" for index in range(3, len(TaskWrite._fields)))})
    AND NOT EXISTS (SELECT 1 FROM history WHERE task_key = v.c0 AND version = v.c2 + 1)""",
)
APPEND = (
    f"INSERT INTO history (position, {', '.join(HISTORY_COLUMNS)}) "
    f"SELECT ?1 + key, {', '.join(f'value->>{index}' for index in range(len(HISTORY_COLUMNS)))} FROM jsonb_each(?2)"
)
TALLY = """
INSERT INTO tally SELECT value->>0, value->>1, value->>2 FROM jsonb_each(?) WHERE true
ON CONFLICT DO UPDATE SET n = n + excluded.n
"""
PENDING = f"SELECT coalesce(sum(n), 0) FROM tally WHERE name <> '' AND word IN ({words(WAITING)})"
# Left to itself the planner prefers task_by_state here, and sorts everything that is scheduled in every tick.
_BY_DUE = f"task INDEXED BY task_by_due WHERE {DUE}"
DUE_TASKS = gather(TASK_SELECT_LIGHT, f"(SELECT * FROM {_BY_DUE} AND due_at <= ? ORDER BY due_at, key LIMIT ?)")
NEXT_DUE = f"SELECT min(due_at) FROM {_BY_DUE}"
# A row with nothing left to charge was not made by us; it is passed over.
_RUNNABLE = f"{QUEUED} AND (max_attempts IS NULL OR charged < max_attempts)"
# What is claimed is held in memory, so it is bounded in bytes as well; the first task always passes. Keys and sizes
# first, which costs no look at the values themselves, and then the rows.
_SIZE = "octet_length(args) + ifnull(octet_length(metadata), 0) AS size"
_WITHIN_BYTES = """task WHERE key IN (
    SELECT key FROM (SELECT key, sum(size) OVER (ORDER BY rank, key) - size AS before FROM {heads})
    WHERE before < {limit})"""
_HEADS_OF_ONE = f"(SELECT key, rank, {_SIZE} FROM task WHERE {_RUNNABLE} AND name = ?1 ORDER BY rank, key LIMIT ?2)"
# The heads of each name, from the index: what waits under other names costs nothing.
_HEADS_OF_MANY = f"""(SELECT head.key, head.rank, {_SIZE} FROM json_each(?1) AS wanted CROSS JOIN task AS head
    WHERE head.key IN (SELECT key FROM task WHERE {_RUNNABLE} AND name = wanted.value ORDER BY rank, key LIMIT ?2)
    ORDER BY head.rank, head.key LIMIT ?2)"""
CLAIMABLE_OF_ONE = gather(TASK_SELECT, _WITHIN_BYTES.format(heads=_HEADS_OF_ONE, limit=CLAIM_BYTES))
CLAIMABLE_OF_MANY = gather(TASK_SELECT, _WITHIN_BYTES.format(heads=_HEADS_OF_MANY, limit=CLAIM_BYTES))
CLAIM = """
UPDATE task SET state = 'starting', attempt = attempt + 1, charged = charged + 1, version = version + 1, owner = ?1
WHERE key IN (SELECT value FROM json_each(?2))
"""
OWNED = gather(
    TASK_SELECT_LIGHT, f"(SELECT * FROM task WHERE owner = ? AND state IN ({words(LEASED)}) ORDER BY key LIMIT ?)"
)


class SqliteTransaction:
    """Primitives of an open BEGIN IMMEDIATE; the contract is `ports.Transaction`."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self._written: dict[int, int] = {}
        """key -> version that this transaction has written, whose history row may still be to come."""

    def _one(self, sql: str, *values: Any) -> Any:
        # fetchall and not next(): a statement that is not read to its end keeps its part of the transaction open.
        rows = self._db.execute(sql, values).fetchall()
        return rows[0]

    def head(self, owner: str | None) -> Head:
        next_key, next_position, last_rank, known, others, has_commands = self._one(HEAD, owner)
        return Head(next_key, next_position, last_rank, bool(known), others, bool(has_commands))

    def save_head(self, head: Head) -> None:
        self._db.execute(SAVE_HEAD, (head.next_key, head.next_position, head.last_rank))

    def pending(self) -> int:
        return int(self._one(PENDING)[0])

    def insert(self, rows: Sequence[TaskRow]) -> None:
        values = [
            (
                row.key,
                row.id,
                row.name,
                row.args,
                row.state,
                row.version,
                row.max_attempts,
                row.recover,
                row.priority,
                row.rank,
                row.due_at,
                row.created_at,
                row.idempotency_key,
                row.send_key,
                row.requeued_from,
                row.retry,
                row.tags,
                row.metadata,
                row.label,
            )
            for row in rows
        ]
        self._db.execute(INSERT, (encode_rows(values),))
        tags = [(tag, row.key) for row in rows if row.tags is not None for tag in _texts(row.tags)]
        if tags:
            self._db.execute(INSERT_TAGS, (encode_rows(tags),))

    def find(self, *, ids: Sequence[str] = (), idempotency_keys: Sequence[str] = ()) -> list[TaskRow]:
        found: dict[int, TaskRow] = {}
        for sql, tokens in ((FIND_IDS, ids), (FIND_KEYS, idempotency_keys)):
            if tokens:
                for row in decode_tasks(self._one(sql, encode_rows(tokens))[0]):
                    found[row.key] = row
        return list(found.values())

    def deleted(self, ids: Sequence[str]) -> set[str]:
        sql = gather("id", "tombstone WHERE id IN (SELECT value FROM json_each(?))")
        return {row[0] for row in decode_lists(self._one(sql, encode_rows(ids))[0])}

    def update(self, writes: Sequence[TaskWrite]) -> set[int]:
        if not writes:
            return set()
        self._db.execute(UPDATE, (encode_rows(writes),))
        written = self._written
        if self._db.changes() == len(writes):
            won = {write.key for write in writes}
        else:
            known = [write for write in writes if written.get(write.key, write[2]) == write.expected_version]
            won = {row[0] for row in decode_lists(self._one(WINNERS, encode_rows(known))[0])}
        written.update((write.key, write.version) for write in writes if write.key in won)
        return won

    def append(self, rows: Sequence[HistoryRow], first_position: int) -> None:
        self._db.execute(APPEND, (first_position, encode_rows(rows)))

    def tally(self, states: Mapping[tuple[str, State], int], triggers: Mapping[Trigger, int]) -> None:
        deltas: list[tuple[str, str, int]] = [(name, state, n) for (name, state), n in states.items() if n]
        deltas.extend(("", trigger, n) for trigger, n in triggers.items())
        self._db.execute(TALLY, (encode_rows(deltas),))

    def due(self, now: int, limit: int) -> list[TaskRow]:
        return sorted(decode_tasks(self._one(DUE_TASKS, now, limit)[0]), key=lambda row: (row.due_at, row.key))

    def next_due(self) -> int | None:
        due: int | None = self._one(NEXT_DUE)[0]
        return due

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        if len(names) == 1:
            text = self._one(CLAIMABLE_OF_ONE, names[0], limit)[0]
        else:
            text = self._one(CLAIMABLE_OF_MANY, encode_rows(names), limit)[0]
        return sorted(decode_tasks(text), key=lambda row: (row.rank, row.key))

    def claim(self, keys: Sequence[int], owner: str) -> None:
        self._db.execute(CLAIM, (owner, encode_rows(keys)))

    def set_defaults(self, key: int, max_attempts: int, recover: str) -> None:
        self._db.execute("UPDATE task SET max_attempts = ?, recover = ? WHERE key = ?", (max_attempts, recover, key))

    def owned(self, owner: str, limit: int) -> list[TaskRow]:
        return decode_tasks(self._one(OWNED, owner, limit)[0])

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
                id=id_, task_id=task_id, owner=of, kind=WishKind(kind), actor=actor, reason=reason, created_at=at
            )
            for id_, task_id, of, kind, actor, reason, at in rows
        ]

    def drop_commands(self, ids: Sequence[str]) -> None:
        self._db.execute("DELETE FROM command WHERE id IN (SELECT value FROM json_each(?))", (encode_rows(ids),))

    def delete(self, keys: Sequence[int]) -> None:
        text = encode_rows(keys)
        chosen = "(SELECT value FROM json_each(?))"
        self._db.execute(f"INSERT OR IGNORE INTO tombstone SELECT id FROM task WHERE key IN {chosen}", (text,))
        self._db.execute(f"DELETE FROM task WHERE key IN {chosen}", (text,))
        self._db.execute(f"DELETE FROM history WHERE task_key IN {chosen}", (text,))
        self._db.execute(f"DELETE FROM tag WHERE task_key IN {chosen}", (text,))


OWNER_COLUMNS = "id, boot_id, pid_namespace, pid, process_started, beat, started_at, CAST(names AS BLOB)"
"""`names` as a blob: it is for people, and damage to it must not keep an owner from being recovered."""

_KINDS = frozenset(kind.value for kind in WishKind)


def _texts(text: str | bytes) -> tuple[str, ...]:
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
        names=_texts(names),
    )
