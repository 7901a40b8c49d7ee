"""The write side, as far as it is about tasks: each primitive is one or two statements over a whole set."""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from taskengine.core.lifecycle import FINAL, LEASED, WAITING, State, Trigger
from taskengine.core.model import HistoryRow, TaskRow, TaskWrite
from taskengine.ports import CLAIM_BYTES, Head
from taskengine.stores.sqlite.records import SqliteRecords, texts
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
from taskengine.stores.sqlite.schema import (
    DUE,
    HOLD_END,
    HOLD_ENDING,
    MARK,
    MARKED,
    QUEUED,
    TIME_LIMIT,
    TIME_LIMITED,
    words,
)

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
_NO_LIMITS = (None, None, None, None)
_LIMITS = ("timeouts", "deadline_at", "start_within", "callbacks")
"""What few tasks have; where none of a set has any of it, it is not written at all."""

HEAD = """
SELECT next_key, next_position, last_rank,
       ?1 IS NULL OR EXISTS (SELECT 1 FROM owner WHERE id = ?1),
       (SELECT count(*) FROM owner WHERE id IS NOT ?1),
       EXISTS (SELECT 1 FROM command WHERE owner = ?1),
       holds_version
FROM counter
"""
SAVE_HEAD = "UPDATE counter SET next_key = ?, next_position = ?, last_rank = ?"


def _insert(columns: Sequence[str]) -> str:
    values = ", ".join(f"value->>{index}" for index in range(len(columns)))
    return f"INSERT INTO task ({', '.join(columns)}) SELECT {values} FROM jsonb_each(?)"


INSERT = _insert(_INSERTED)
INSERT_WITH_LIMITS = _insert(_INSERTED + _LIMITS)
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
# Each index holds exactly the tasks that its condition names, so that nothing is read of those that have no such limit.
_BY_TIME_LIMIT = f"task INDEXED BY task_by_time_limit WHERE {TIME_LIMITED}"
_BY_HOLD_END = f"task INDEXED BY task_by_hold_end WHERE {HOLD_ENDING} AND state NOT IN ({words(FINAL)})"
_BY_MARK = f"task INDEXED BY task_by_mark WHERE {MARKED} AND state NOT IN ({words(FINAL)})"
# One statement for three looks at the first entry of an index: it is asked in every tick.
NEXT_DUE = f"""
SELECT (SELECT min(due_at) FROM {_BY_DUE}),
       (SELECT min({TIME_LIMIT}) FROM {_BY_TIME_LIMIT}),
       (SELECT min({HOLD_END}) FROM {_BY_HOLD_END})
"""
EXPIRED = gather(
    TASK_SELECT_LIGHT, f"(SELECT * FROM {_BY_TIME_LIMIT} AND {TIME_LIMIT} <= ? ORDER BY {TIME_LIMIT}, key LIMIT ?)"
)
HOLD_ENDED = gather(
    TASK_SELECT_LIGHT, f"(SELECT * FROM {_BY_HOLD_END} AND {HOLD_END} <= ? ORDER BY {HOLD_END}, key LIMIT ?)"
)
MARKED_TASKS = gather(TASK_SELECT_LIGHT, f"(SELECT * FROM {_BY_MARK} AND {MARK} = ? ORDER BY key LIMIT ?)")
TAGS_OF = gather(
    "wanted.value, tag.tag",
    """json_each(?1) AS wanted CROSS JOIN json_each(?2) AS one
    CROSS JOIN tag ON tag.tag = one.value AND tag.task_key = wanted.value""",
)
# What is left out is left as it is.
SET_DEFAULTS = """
UPDATE task SET max_attempts = ?2, recover = ?3, deadline_at = coalesce(?4, deadline_at) WHERE key = ?1
"""
EXTEND = f"UPDATE task SET deadline_at = v.c2 FROM {columns_of(3)} WHERE task.key = v.c0 AND task.attempt = v.c1"
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


class SqliteTransaction(SqliteRecords):
    """Primitives of an open BEGIN IMMEDIATE; the contract is `ports.Transaction`."""

    def __init__(self, connection: apsw.Connection) -> None:
        super().__init__(connection)
        self._written: dict[int, int] = {}
        """key -> version that this transaction has written, whose history row may still be to come."""

    def head(self, owner: str | None) -> Head:
        next_key, next_position, last_rank, known, others, has_commands, holds = self._one(HEAD, owner)
        return Head(next_key, next_position, last_rank, bool(known), others, bool(has_commands), holds)

    def save_head(self, head: Head) -> None:
        self._db.execute(SAVE_HEAD, (head.next_key, head.next_position, head.last_rank))

    def pending(self) -> int:
        return int(self._one(PENDING)[0])

    def insert(self, rows: Sequence[TaskRow]) -> None:
        values: list[tuple[Any, ...]] = [
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
        limits = [(row.timeouts, row.deadline_at, row.start_within, row.callbacks) for row in rows]
        if all(limit == _NO_LIMITS for limit in limits):
            self._db.execute(INSERT, (encode_rows(values),))
        else:
            values = [value + limit for value, limit in zip(values, limits, strict=True)]
            self._db.execute(INSERT_WITH_LIMITS, (encode_rows(values),))
        tags = [(tag, row.key) for row in rows if row.tags is not None for tag in texts(row.tags)]
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

    def requeued(self, ids: Sequence[str]) -> set[str]:
        sql = gather("requeued_from", "task WHERE requeued_from IN (SELECT value FROM json_each(?))")
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

    def expired(self, now: int, limit: int) -> list[TaskRow]:
        return sorted(decode_tasks(self._one(EXPIRED, now, limit)[0]), key=lambda row: row.key)

    def hold_ended(self, now: int, limit: int) -> list[TaskRow]:
        return sorted(decode_tasks(self._one(HOLD_ENDED, now, limit)[0]), key=lambda row: row.key)

    def marked(self, by: str, limit: int) -> list[TaskRow]:
        return sorted(decode_tasks(self._one(MARKED_TASKS, by, limit)[0]), key=lambda row: row.key)

    def next_due(self) -> int | None:
        # int: what is too large for SQLite's integers comes as a float, and is as far away.
        return min((int(instant) for instant in self._one(NEXT_DUE) if instant is not None), default=None)

    def tags_of(self, keys: Sequence[int], tags: Sequence[str]) -> dict[int, str]:
        return dict(decode_lists(self._one(TAGS_OF, encode_rows(list(keys)), encode_rows(list(tags)))[0]))

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        if len(names) == 1:
            text = self._one(CLAIMABLE_OF_ONE, names[0], limit)[0]
        else:
            text = self._one(CLAIMABLE_OF_MANY, encode_rows(names), limit)[0]
        return sorted(decode_tasks(text), key=lambda row: (row.rank, row.key))

    def claim(self, keys: Sequence[int], owner: str) -> None:
        self._db.execute(CLAIM, (owner, encode_rows(keys)))

    def set_defaults(self, key: int, max_attempts: int, recover: str, deadline_at: int | None) -> None:
        self._db.execute(SET_DEFAULTS, (key, max_attempts, recover, deadline_at))

    def extend(self, deadlines: Sequence[tuple[int, int, int]]) -> None:
        # Of two for one attempt the later one counts; a statement that meets both would take any.
        newest = {(key, attempt): deadline_at for key, attempt, deadline_at in deadlines}
        self._db.execute(EXTEND, (encode_rows([(*guard, deadline_at) for guard, deadline_at in newest.items()]),))

    def owned(self, owner: str, limit: int) -> list[TaskRow]:
        return decode_tasks(self._one(OWNED, owner, limit)[0])

    def delete(self, keys: Sequence[int]) -> None:
        text = encode_rows(keys)
        chosen = "(SELECT value FROM json_each(?))"
        self._db.execute(f"INSERT OR IGNORE INTO tombstone SELECT id FROM task WHERE key IN {chosen}", (text,))
        self._db.execute(f"DELETE FROM task WHERE key IN {chosen}", (text,))
        for table in ("history", "tag", "side", "log"):
            self._db.execute(f"DELETE FROM {table} WHERE task_key IN {chosen}", (text,))
