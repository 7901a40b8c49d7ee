"""The schema says what the table of states says, and every query on the hot path uses the index made for it."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from taskengine import SqliteStore
from taskengine.core.errors import StoreError
from taskengine.core.lifecycle import CLAIMABLE, STORED, TIMED, WAITING, State
from taskengine.core.model import TaskFilter, TaskRow
from taskengine.stores.sqlite import records
from taskengine.stores.sqlite import transaction as sql
from taskengine.stores.sqlite.rows import TASK_COLUMNS, encode_rows
from taskengine.stores.sqlite.schema import MIGRATIONS, SCHEMA_VERSION, VERSION_1
from taskengine.testing.contract_limits import hold_text
from taskengine.testing.contract_tools import NOW, make_row, submit


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db", durability="fast")
    store.open()
    yield store
    store.close()


@pytest.fixture
def db(store: SqliteStore) -> apsw.Connection:
    assert store._writer is not None
    return store._writer


def _words(text: str) -> set[str]:
    return set(re.findall(r"'([a-z_]+)'", text))


def _definition(db: apsw.Connection, name: str) -> str:
    ((text,),) = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchall()
    assert isinstance(text, str)
    return text


# --- the table of states ---


def test_the_check_lists_exactly_the_states_that_a_stored_task_can_be_in(db: apsw.Connection) -> None:
    check = re.search(r"state TEXT NOT NULL CHECK \(state IN \((.*?)\)\)", _definition(db, "task"))
    assert check is not None
    assert _words(check[1]) == {state.value for state in STORED}


def test_the_claim_s_index_holds_exactly_what_can_be_claimed(db: apsw.Connection) -> None:
    _, condition = _definition(db, "task_by_rank").split(" WHERE ")
    assert _words(condition) == {state.value for state in CLAIMABLE}
    assert condition.endswith("AND held IS NULL")


def test_the_clock_s_index_holds_exactly_what_the_clock_moves(db: apsw.Connection) -> None:
    _, condition = _definition(db, "task_by_due").split(" WHERE ")
    assert _words(condition) == {state.value for state in TIMED}


def test_the_index_of_time_limits_holds_exactly_what_waits(db: apsw.Connection) -> None:
    expression, condition = _definition(db, "task_by_time_limit").split(" WHERE ", 1)
    conditions = re.findall(r"state IN \((.*?)\)", condition)
    assert _words(conditions[0]) == {state.value for state in WAITING}
    for text in (*conditions[1:], *re.findall(r"state IN \((.*?)\)", expression)):
        assert _words(text) == {state.value for state in CLAIMABLE}


def test_the_first_version_is_as_it_was_released() -> None:
    digest = hashlib.sha256(VERSION_1.encode()).hexdigest()
    assert digest == "118453b2bfc8c28adae502434f0b21eb93b95abf8e932784bf3f1674d01bcfd1"


def test_the_table_s_columns_are_those_of_a_row_in_their_order(db: apsw.Connection) -> None:
    columns = [name for _, name, *_ in db.execute("PRAGMA table_info(task)").fetchall()]
    assert tuple(columns) == TASK_COLUMNS


def test_the_file_says_which_schema_it_has(db: apsw.Connection) -> None:
    assert db.execute("PRAGMA user_version").fetchall() == [(SCHEMA_VERSION,)]
    assert len(MIGRATIONS) == SCHEMA_VERSION
    assert MIGRATIONS[0] is VERSION_1


def test_the_schema_itself_refuses_what_may_never_be(store: SqliteStore, db: apsw.Connection) -> None:
    with store.transact() as tx:
        submit(tx, make_row("a", max_attempts=1))
    for statement in (
        "UPDATE task SET state = 'pending'",
        "UPDATE task SET charged = 2",
        "UPDATE task SET recover = 'maybe'",
        "UPDATE history SET at = 0",
        "DELETE FROM history",
        "INSERT INTO counter VALUES (2, 1, 1, 0, 0)",
        "INSERT INTO hold VALUES ('all', '', 'me', NULL, NULL, 0, 2)",
    ):
        with pytest.raises(apsw.ConstraintError):
            db.execute(statement)
    with pytest.raises(StoreError), store.transact():
        db.execute("UPDATE task SET state = 'pending'")


# --- query plans ---


def _plan(db: apsw.Connection, statement: str, *values: object) -> list[str]:
    rows = db.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    return [str(row[3]) for row in rows]


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        pytest.param(sql.CLAIMABLE_OF_ONE, ("mail", 10), "task_by_rank", id="claim one"),
        pytest.param(sql.CLAIMABLE_OF_MANY, ('["a","b"]', 10), "task_by_rank", id="claim many"),
        pytest.param(sql.DUE_TASKS, (1, 10), "task_by_due", id="due"),
        pytest.param(sql.NEXT_DUE, (), "task_by_due", id="next due"),
        pytest.param(sql.NEXT_DUE, (), "task_by_time_limit", id="next time limit"),
        pytest.param(sql.NEXT_DUE, (), "task_by_hold_end", id="next hold end"),
        pytest.param(sql.EXPIRED, (1, 10), "task_by_time_limit", id="time limits"),
        pytest.param(sql.HOLD_ENDED, (1, 10), "task_by_hold_end", id="hold ends"),
        pytest.param(sql.MARKED_TASKS, ("all:", 10), "task_by_mark", id="marked"),
        pytest.param(sql.TAGS_OF, ("[1]", '["a"]'), "PRIMARY KEY (tag=? AND task_key=?)", id="tags"),
        pytest.param(sql.FIND_IDS, ('["a"]',), "sqlite_autoindex_task_1", id="ids"),
        pytest.param(sql.FIND_KEYS, ('["a"]',), "task_by_idempotency_key", id="keys"),
        pytest.param(sql.OWNED, ("me", 10), "task_by_owner", id="owned"),
        pytest.param(sql.UPDATE, ("[]",), "PRIMARY KEY", id="update"),
        pytest.param(sql.CLAIM, ("me", "[1]"), "PRIMARY KEY", id="claim"),
        pytest.param(sql.WINNERS, ("[]",), "PRIMARY KEY", id="winners"),
        pytest.param(sql.EXTEND, ("[]",), "PRIMARY KEY", id="extend"),
        pytest.param(sql.SET_DEFAULTS, (1, 1, "retry", None), "PRIMARY KEY", id="defaults"),
        pytest.param(records.PUT_SIDES, ("[]",), "PRIMARY KEY", id="sides"),
        pytest.param(records.APPEND_LOGS, ("[]",), "PRIMARY KEY", id="logs"),
        pytest.param(records.TRIM_LOGS, ("[]", 9), "(task_key=? AND attempt=? AND number<?)", id="old logs"),
    ],
)
def test_a_statement_of_the_tick_uses_its_index_and_scans_no_table(
    db: apsw.Connection, statement: str, values: tuple[object, ...], index: str
) -> None:
    plan = _plan(db, statement, *values)
    assert any(index in step for step in plan), plan
    # The minimum is read from the first entry of an index, which SQLite calls a search of it.
    assert not [step for step in plan if re.match(r"SCAN (task|history|head|tag|side|log|old)\b", step)], plan
    sorts = [step for step in plan if "TEMP B-TREE" in step and "DISTINCT" not in step]
    assert not sorts or statement in (sql.CLAIMABLE_OF_MANY, sql.FIND_IDS, sql.FIND_KEYS), plan


def test_plans_do_not_hang_on_the_numbers_that_are_bound(store: SqliteStore, db: apsw.Connection) -> None:
    # Otherwise each statement with a `LIMIT ?` is prepared anew whenever it is used.
    for connection in (db, store.reader()._db):
        assert connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1


# --- the cost of a backlog ---


def _steps(db: apsw.Connection, query: Callable[[], object]) -> int:
    """Count the steps of SQLite's virtual machine, which tell the work of a query without a clock."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    db.set_progress_handler(count, 1)
    try:
        query()
    finally:
        db.set_progress_handler(None)
    assert steps > 0
    return steps


def _add_backlog(db: apsw.Connection, state: State, due_at: int) -> None:
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50000) "
        "INSERT INTO task (key, id, name, args, state, version, rank, due_at, created_at) "
        "SELECT 1000 + i, 'b' || i, 'unknown', '[[],{}]', ?, 1, i, ? + i, 1 FROM n",
        (state.value, due_at),
    )


@pytest.mark.parametrize("names", [["mail"], ["mail", "other"]], ids=["one name", "two names"])
def test_a_backlog_of_unknown_names_does_not_make_a_claim_dearer(
    store: SqliteStore, db: apsw.Connection, names: list[str]
) -> None:
    with store.transact() as tx:
        submit(tx, *(make_row(f"t{n}", rank=10**9 + n) for n in range(100)))
        before = _steps(db, lambda: tx.claimable(names, 20))
        _add_backlog(db, State.QUEUED, NOW)
        assert len(tx.claimable(["unknown"], 1)) == 1
        assert len(tx.claimable(names, 20)) == 20
        after = _steps(db, lambda: tx.claimable(names, 20))
    assert after <= before * 1.1 + 50


def test_a_backlog_of_scheduled_tasks_does_not_make_the_look_for_due_ones_dearer(
    store: SqliteStore, db: apsw.Connection
) -> None:
    with store.transact() as tx:
        submit(tx, *(make_row(f"t{n}", State.SCHEDULED, due_at=NOW + n) for n in range(100)))
        before = _steps(db, lambda: tx.due(NOW + 5, 20)), _steps(db, tx.next_due)
        _add_backlog(db, State.SCHEDULED, NOW + 10**9)
        assert len(tx.due(NOW + 5, 20)) == 6
        after = _steps(db, lambda: tx.due(NOW + 5, 20)), _steps(db, tx.next_due)
    assert all(now <= then * 1.1 + 50 for now, then in zip(after, before, strict=True))


def test_a_backlog_with_limits_and_marks_does_not_make_the_clock_s_questions_dearer(
    store: SqliteStore, db: apsw.Connection
) -> None:
    with store.transact() as tx:
        rows = submit(tx, *(make_row(f"t{n}", deadline_at=NOW + n, start_within=n + 1) for n in range(100)))
        held = [(hold_text(NOW + n, f"tag:{n % 10}"), row.key) for n, row in enumerate(rows)]
        db.executemany("UPDATE task SET held = ? WHERE key = ?", held)
        questions: list[Callable[[], object]] = [
            tx.next_due,
            lambda: tx.expired(NOW + 5, 20),
            lambda: tx.hold_ended(NOW + 5, 20),
            lambda: tx.marked("tag:3", 5),
            lambda: tx.tags_of([row.key for row in rows], ["a", "b"]),
        ]
        before = [_steps(db, question) for question in questions]
        _add_backlog(db, State.QUEUED, NOW + 10**9)
        limits = "deadline_at = due_at, start_within = 7, tags = '[\"a\"]'"
        db.execute(f"UPDATE task SET {limits}, held = ? WHERE key > 1000", (hold_text(NOW + 10**9, "tag:3"),))
        db.execute("INSERT INTO tag SELECT 'a', key FROM task WHERE key > 1000")
        assert len(tx.expired(NOW + 5, 20)) == 6
        assert len(tx.hold_ended(NOW + 5, 20)) == 6
        after = [_steps(db, question) for question in questions]
    assert all(now <= then * 1.1 + 50 for now, then in zip(after, before, strict=True)), (before, after)


def test_a_backlog_without_limits_and_marks_is_in_none_of_their_indexes(
    store: SqliteStore, db: apsw.Connection
) -> None:
    with store.transact():
        _add_backlog(db, State.QUEUED, NOW)
        for index in ("task_by_time_limit", "task_by_hold_end", "task_by_mark", "task_by_origin"):
            _, condition = _definition(db, index).split(" WHERE ", 1)
            assert db.execute(f"SELECT count(*) FROM task INDEXED BY {index} WHERE {condition}").fetchall() == [(0,)]


def test_listing_what_is_held_or_was_requeued_does_not_look_at_every_task(
    store: SqliteStore, db: apsw.Connection
) -> None:
    with store.transact() as tx:
        (_, second) = submit(tx, make_row("first"), make_row("second", requeued_from="first"))
        db.execute("UPDATE task SET held = '{}' WHERE key = ?", (second.key,))
        _add_backlog(db, State.QUEUED, NOW)
    reader = store.reader()
    listings: list[Callable[[], list[TaskRow]]] = [
        lambda: reader.select(TaskFilter(held=True), limit=10),
        lambda: reader.select(TaskFilter(held=True, name="mail"), limit=10),
        lambda: reader.select(TaskFilter(requeued=True), limit=10),
        lambda: reader.select(TaskFilter(requeued=False, ids=("first", "second")), limit=10),
    ]
    assert [[row.id for row in listing()] for listing in listings] == [["second"], ["second"], ["first"], ["second"]]
    assert all(_steps(reader._db, listing) < 2000 for listing in listings)


def test_a_set_of_two_hundred_is_one_statement(store: SqliteStore, db: apsw.Connection) -> None:
    statements: list[str] = []

    def trace(_: object, text: str, __: object) -> bool:
        statements.append(text)
        return True

    with store.transact() as tx:
        rows = submit(tx, *(make_row(f"t{n}") for n in range(200)))
        db.exec_trace = trace
        tx.claim([row.key for row in rows], "me")
        assert len(tx.claimable(["mail"], 200)) == 0
        assert len(tx.find(ids=[row.id for row in rows])) == 200
        db.exec_trace = None
    assert len(statements) == 3
    assert encode_rows([(1, "a")]) == '[[1,"a"]]'
