"""The SQLite schema and its migrations.

Words for states come from the table in `core.lifecycle`; a test compares this text with the table. Instants are
integers, microseconds since the Unix epoch. Structured values are JSON text, written and read by `taskengine.codec`.
"""

from taskengine.core.lifecycle import CLAIMABLE, STORED, TIMED, WAITING, State

APPLICATION_ID = 0x7461736B
"""`task` in ASCII: tells our files from others (PRAGMA application_id)."""


def words(states: frozenset[State]) -> str:
    """Write states as the inside of an SQL IN list; sorted, so that text and partial index always match."""
    return ", ".join(f"'{state.value}'" for state in sorted(states))


QUEUED = f"state IN ({words(CLAIMABLE)}) AND held IS NULL"
"""The claim's partial index and every query on it say exactly this."""

DUE = f"state IN ({words(TIMED)})"

# Each of the following is the condition, or the expression, of one index below and of every query on it.

_START_LIMIT = f"CASE WHEN started_at IS NULL AND state IN ({words(CLAIMABLE)}) THEN due_at + start_within END"

TIME_LIMIT = f"coalesce(min(deadline_at, {_START_LIMIT}), deadline_at, {_START_LIMIT})"
"""When a task without a body is out of time. One expression for both limits: each index costs every move a look."""

TIME_LIMITED = (
    f"ifnull(deadline_at, start_within) IS NOT NULL AND state IN ({words(WAITING)}) AND {TIME_LIMIT} IS NOT NULL"
)


def _of_hold(name: str, kind: str) -> str:
    # Guarded at every step: an index is computed by each statement that writes the row, and a damaged text there would
    # make it fail. What has another type than ours is as good as absent.
    field = f"CASE json_type(held, '$.{name}') WHEN '{kind}' THEN held ->> '{name}' END"
    return f"CASE WHEN json_valid(held) THEN {field} END"


HOLD_END = _of_hold("until", "integer")
MARK = _of_hold("by", "text")

# Without the state, which would cost every claim a look at both: what has ended is not held.
HOLD_ENDING = f"held IS NOT NULL AND {HOLD_END} IS NOT NULL"
MARKED = f"held IS NOT NULL AND {MARK} IS NOT NULL"

VERSION_1 = f"""
CREATE TABLE task (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    args TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ({words(STORED)})),
    version INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    charged INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER,
    recover TEXT CHECK (recover IN ('retry', 'lost')),
    priority INTEGER NOT NULL DEFAULT 0,
    rank INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    owner TEXT,
    wish TEXT,
    held TEXT,
    idempotency_key TEXT,
    send_key TEXT,
    requeued_from TEXT,
    retry TEXT,
    tags TEXT,
    metadata TEXT,
    label TEXT,
    result TEXT,
    failure TEXT,
    CHECK (max_attempts IS NULL OR charged <= max_attempts)
) STRICT;

CREATE UNIQUE INDEX task_by_idempotency_key ON task (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX task_by_rank ON task (name, rank, key) WHERE {QUEUED};
CREATE INDEX task_by_due ON task (due_at, key) WHERE {DUE};
CREATE INDEX task_by_owner ON task (owner) WHERE owner IS NOT NULL;
CREATE INDEX task_by_state ON task (state);
CREATE INDEX task_held ON task (name) WHERE held IS NOT NULL;

CREATE TABLE tag (
    tag TEXT NOT NULL,
    task_key INTEGER NOT NULL,
    PRIMARY KEY (tag, task_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE history (
    position INTEGER PRIMARY KEY,
    task_key INTEGER NOT NULL,
    version INTEGER NOT NULL,
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    at INTEGER NOT NULL,
    trigger TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT,
    attempt INTEGER NOT NULL,
    failure TEXT
) STRICT;

CREATE UNIQUE INDEX history_by_task ON history (task_key, version);

CREATE TRIGGER history_is_append_only BEFORE UPDATE ON history
BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;

CREATE TRIGGER history_goes_with_its_task BEFORE DELETE ON history
WHEN EXISTS (SELECT 1 FROM task WHERE key = OLD.task_key)
BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;

CREATE TABLE counter (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    next_key INTEGER NOT NULL,
    next_position INTEGER NOT NULL,
    last_rank INTEGER NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 1, 1, 0);

-- Kept in the transaction that makes the moves, so that nobody ever counts tasks. name '' holds the triggers.
CREATE TABLE tally (
    name TEXT NOT NULL,
    word TEXT NOT NULL,
    n INTEGER NOT NULL,
    PRIMARY KEY (name, word)
) STRICT, WITHOUT ROWID;

CREATE TABLE owner (
    id TEXT PRIMARY KEY,
    boot_id TEXT NOT NULL,
    pid_namespace TEXT NOT NULL,
    pid INTEGER NOT NULL,
    process_started TEXT NOT NULL,
    beat INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    names TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE command (
    id TEXT PRIMARY KEY,
    task_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX command_by_owner ON command (owner, id);

CREATE TABLE tombstone (
    id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
"""

# Every index is partial and names first what is NULL where the feature is unused: a row that has none of it costs a
# look at one column, and the index stays empty.
VERSION_2 = f"""
ALTER TABLE task ADD COLUMN timeouts TEXT;
ALTER TABLE task ADD COLUMN deadline_at INTEGER;
ALTER TABLE task ADD COLUMN start_within INTEGER;
ALTER TABLE task ADD COLUMN callbacks TEXT;

CREATE INDEX task_by_time_limit ON task ({TIME_LIMIT}) WHERE {TIME_LIMITED};
CREATE INDEX task_by_hold_end ON task ({HOLD_END}) WHERE {HOLD_ENDING};
CREATE INDEX task_by_mark ON task ({MARK}) WHERE {MARKED};
CREATE INDEX task_by_origin ON task (requeued_from) WHERE requeued_from IS NOT NULL;

ALTER TABLE counter ADD COLUMN holds_version INTEGER NOT NULL DEFAULT 0;

-- What bodies say of themselves: apart from the task, so that it takes no part in its versions and guards.
CREATE TABLE side (
    task_key INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    progress TEXT
) STRICT;

CREATE TABLE log (
    task_key INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level INTEGER NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (task_key, attempt, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE hold (
    scope TEXT NOT NULL,
    target TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT,
    until INTEGER,
    created_at INTEGER NOT NULL,
    is_released INTEGER NOT NULL CHECK (is_released IN (0, 1)),
    PRIMARY KEY (scope, target)
) STRICT, WITHOUT ROWID;
"""

MIGRATIONS: tuple[str, ...] = (VERSION_1, VERSION_2)
"""Script n takes a file from version n to n + 1; each runs in the transaction that checks the version."""

SCHEMA_VERSION = len(MIGRATIONS)
