"""A file of the first version goes on as it was, and damage in a row harms no statement."""

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from taskengine import SqliteStore
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import CommandKind, HoldScope, LogRow, SideRow, TaskFilter
from taskengine.stores.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION, VERSION_1
from taskengine.testing.contract_tools import NOW, claim, make_hold, make_row, move, one, submit
from taskengine.testing.invariants import check_invariants

EVERYTHING = TaskFilter()

FIRST_VERSION = f"""
{VERSION_1}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = 1;

INSERT INTO task (key, id, name, args, state, version, due_at, created_at, tags, metadata, label)
VALUES (1, 'queued', 'mail', '[["größe"],{{}}]', 'queued', 1, {NOW}, {NOW}, '["a"]', '{{"m":1}}', 'label');
INSERT INTO task (key, id, name, args, state, version, attempt, max_attempts, recover, due_at, created_at, held)
VALUES (2, 'held', 'mail', '[[],{{}}]', 'queued', 3, 1, 3, 'retry', {NOW}, {NOW},
    '{{"actor":"user","reason":null,"until":{NOW + 5}}}');
INSERT INTO task (key, id, name, args, state, version, attempt, charged, max_attempts, recover, due_at, created_at,
    started_at, owner)
VALUES (3, 'running', 'mail', '[[],{{}}]', 'running', 3, 1, 1, 3, 'retry', {NOW}, {NOW}, {NOW}, 'owner-1');
INSERT INTO task (key, id, name, args, state, version, due_at, created_at, finished_at, requeued_from)
VALUES (4, 'done', 'größe', '[[],{{}}]', 'cancelled', 2, {NOW}, {NOW}, {NOW}, 'long gone');
INSERT INTO tag VALUES ('a', 1);

INSERT INTO history VALUES
    (1, 1, 1, 'pending', 'queued', {NOW}, 'user:submit', 'user', NULL, 0, NULL),
    (2, 2, 1, 'pending', 'queued', {NOW}, 'user:submit', 'user', NULL, 0, NULL),
    (3, 3, 1, 'pending', 'queued', {NOW}, 'user:submit', 'user', NULL, 0, NULL),
    (4, 4, 1, 'pending', 'queued', {NOW}, 'user:submit', 'user', NULL, 0, NULL),
    (5, 2, 2, 'queued', 'starting', {NOW}, 'claimer:claim', 'engine', NULL, 1, NULL),
    (6, 3, 2, 'queued', 'starting', {NOW}, 'claimer:claim', 'engine', NULL, 1, NULL),
    (7, 2, 3, 'starting', 'queued', {NOW}, 'engine:release', 'engine', NULL, 1, NULL),
    (8, 3, 3, 'starting', 'running', {NOW}, 'executor:launched', 'engine', NULL, 1, NULL),
    (9, 4, 2, 'queued', 'cancelled', {NOW}, 'user:cancel', 'user', NULL, 0, NULL);
UPDATE counter SET next_key = 5, next_position = 10, last_rank = 77;
INSERT INTO tally VALUES ('mail', 'queued', 2), ('mail', 'running', 1), ('größe', 'cancelled', 1),
    ('', 'user:submit', 4), ('', 'claimer:claim', 2), ('', 'engine:release', 1), ('', 'executor:launched', 1),
    ('', 'user:cancel', 1);
INSERT INTO owner VALUES ('owner-1', 'b', 'n', 7, '1', 3, {NOW}, '["mail"]');
INSERT INTO command VALUES ('c1', 'running', 'owner-1', 'stop', 'user', NULL, {NOW});
INSERT INTO tombstone VALUES ('deleted');
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file as the first version has left it."""
    path = tmp_path / "tasks.db"
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(FIRST_VERSION)
    db.close()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, durability="fast")
    store.open()
    yield store
    store.close()


def test_everything_of_the_first_version_is_there_in_the_next(store: SqliteStore) -> None:
    reader = store.reader()
    rows = {row.id: row for row in reader.select(EVERYTHING, limit=99)}
    assert list(rows) == ["done", "running", "held", "queued"]
    assert {(row.timeouts, row.deadline_at, row.start_within, row.callbacks) for row in rows.values()} == {(None,) * 4}
    queued, held = rows["queued"], rows["held"]
    assert (queued.args, queued.tags, queued.metadata, queued.label) == ('[["größe"],{}]', '["a"]', '{"m":1}', "label")
    assert held.held == f'{{"actor":"user","reason":null,"until":{NOW + 5}}}'
    assert [row.id for row in reader.select(TaskFilter(tag="a"), limit=9)] == ["queued"]
    assert reader.last_position() == 9
    assert reader.was_deleted("deleted")
    assert [owner.beat for owner in reader.owners()] == [3]
    assert (reader.holds(), reader.sides([1, 2, 3, 4]), reader.logs("running", limit=9)) == ([], {}, [])
    assert check_invariants(store) == []
    with store.transact() as tx:
        head = tx.head("owner-1")
        assert (head.next_key, head.next_position, head.last_rank, head.holds_version) == (5, 10, 77, 0)
        assert [command.kind for command in tx.commands("owner-1")] == [CommandKind.STOP]
    db = store._writer
    assert db is not None
    assert db.execute("PRAGMA user_version").fetchall() == [(SCHEMA_VERSION,)]
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_tasks_of_the_first_version_get_what_is_new(store: SqliteStore) -> None:
    with store.transact() as tx:
        assert [row.id for row in tx.hold_ended(NOW + 5, 9)] == ["held"]
        assert tx.next_due() == NOW + 5
        running = one(tx.find(ids=["running"]))
        tx.extend([(running.key, 1, NOW + 9)])
        tx.put_sides([SideRow(running.key, 1, NOW, '{"done":1}')])
        tx.append_logs([LogRow(running.key, 1, 1, NOW, 20, "line")], keep=9)
        tx.put_hold(make_hold("a"))
        move(tx, "running", Trigger.ATTEMPT_RETRY, due_at=NOW + 20)
        submit(tx, make_row("new", requeued_from="done", start_within=1))
        assert sorted(row.id for row in tx.expired(NOW + 9, 9)) == ["new", "running"]
        assert tx.head(None).holds_version == 1
    reader = store.reader()
    assert [row.id for row in reader.select(TaskFilter(requeued=True), limit=9)] == ["done"]
    assert len(reader.logs("running", limit=9)) == 1
    assert check_invariants(store) == []


def test_several_that_open_a_file_of_the_first_version_at_once_all_come_up(path: Path) -> None:
    stores = [SqliteStore(path, durability="fast") for _ in range(4)]
    together = threading.Barrier(len(stores))
    failures: list[BaseException] = []

    def open_one(store: SqliteStore) -> None:
        together.wait(10)
        try:
            store.open()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_one, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert failures == []
        assert all(len(store.reader().select(EVERYTHING, limit=99)) == 4 for store in stores)
    finally:
        for store in stores:
            store.close()


# --- damage ---

DAMAGED = (
    b"\xff",
    b'{"actor":"\xff","reason":null,"until":1,"by":"tag:a"}',
    b'{"actor":"user","reason":null,"until":1,"by":"\xff"}',
    b'{"until":1\x00,"by":"tag:a"}',
    b'{"until":99999999999999999999999999,"by":"tag:a"}',
    b'{"by":' + b"[" * 2000 + b"]" * 2000 + b"}",
    b'{"until":1,"until":2,"by":"a","by":"tag:b"}',
    b'{"\xff":1}',
    b"\x00",
    b"{",
)


@pytest.mark.parametrize("when", ["before the migration", "after it"])
@pytest.mark.parametrize("damage", DAMAGED, ids=lambda text: repr(text[:40]))
def test_a_damaged_hold_makes_no_statement_fail(path: Path, damage: bytes, when: str) -> None:
    def strike() -> None:
        db = apsw.Connection(str(path))
        db.execute("UPDATE task SET held = CAST(? AS TEXT) WHERE id IN ('held', 'queued', 'running')", (damage,))
        db.close()

    if when == "before the migration":
        strike()
    store = SqliteStore(path, durability="fast")
    store.open()
    try:
        if when == "after it":
            strike()
        _use_everything(store)
    finally:
        store.close()


def _use_everything(store: SqliteStore) -> None:
    """Ask every question and make every kind of write that a row in all indexes takes part in."""
    with store.transact() as tx:
        assert tx.claimable(["mail"], 9) == []
        assert {row.id for row in tx.hold_ended(2**62, 9)} <= {"held", "queued", "running"}
        assert {row.id for by in ("tag:a", "tag:b", "\ufffd") for row in tx.marked(by, 9)} <= {
            "held",
            "queued",
            "running",
        }
        assert {row.id for row in tx.due(2**62, 9) + tx.expired(2**62, 9)} == set()
        tx.next_due()
        assert [row.id for row in tx.owned("owner-1", 9)] == ["running"]
        (key, _, running) = (one(tx.find(ids=[id_])).key for id_ in ("queued", "held", "running"))
        tx.set_defaults(key, 3, "retry", NOW)
        tx.extend([(running, 1, NOW + 1)])
    with store.transact() as tx:
        claim(tx, "queued")
        move(tx, "queued", Trigger.ENGINE_RELEASE)
        move(tx, "running", Trigger.ATTEMPT_RETRY, due_at=NOW)
        move(tx, "running", Trigger.CLOCK_DUE)
        assert {row.id for row in tx.expired(NOW + 1, 9)} == {"queued", "running"}
    reader = store.reader()
    assert reader.held(None, ["a"]) == 3
    assert len(reader.select(TaskFilter(held=True), limit=9)) == 3
    with store.transact() as tx:
        for id_ in ("held", "queued", "running"):
            row = move(tx, id_, Trigger.USER_CANCEL, held=None)
        tx.delete([row.key])
    db = store._writer
    assert db is not None
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_damaged_text_of_a_hold_of_many_and_of_what_bodies_say_can_be_read(path: Path, store: SqliteStore) -> None:
    with store.transact() as tx:
        tx.put_hold(make_hold("a"))
        tx.put_hold(make_hold("b", HoldScope.NAME, created_at=NOW + 1))
        tx.put_sides([SideRow(3, 1, NOW, "1")])
        tx.append_logs([LogRow(3, 1, 1, NOW, 20, "line")], keep=9)
    db = apsw.Connection(str(path))
    db.execute(
        "UPDATE hold SET actor = CAST(x'61ff' AS TEXT), reason = CAST(x'ff' AS TEXT) WHERE scope = 'tag';"
        "INSERT INTO hold VALUES ('scope of a newer version', '', 'me', NULL, NULL, 0, 0);"
        "UPDATE side SET progress = CAST(x'ff' AS TEXT); UPDATE log SET message = CAST(x'62ff' AS TEXT)"
    )
    db.close()
    reader = store.reader()
    assert [(hold.scope, hold.target, hold.actor) for hold in reader.holds()] == [
        (HoldScope.TAG, "a", "a\ufffd"),
        (HoldScope.NAME, "b", "user"),
    ]
    assert reader.sides([3]) == {3: SideRow(3, 1, NOW, "\ufffd")}
    assert [line.message for line in reader.logs("running", limit=9)] == ["b\ufffd"]
    with store.transact() as tx:
        assert tx.holds() == reader.holds()
        tx.put_sides([SideRow(3, 1, NOW + 1, None)])
        tx.append_logs([LogRow(3, 1, 2, NOW, 20, "line")], keep=1)
    assert len(reader.logs("running", limit=9)) == 1


def test_a_task_that_ended_and_carries_a_hold_all_the_same_is_not_asked_about(path: Path, store: SqliteStore) -> None:
    db = apsw.Connection(str(path))
    db.execute("""UPDATE task SET held = '{"actor":"u","reason":null,"until":1,"by":"all:"}' WHERE id = 'done'""")
    db.execute("UPDATE task SET held = NULL WHERE id = 'held'")
    db.close()
    with store.transact() as tx:
        assert one(tx.find(ids=["done"])).state is State.CANCELLED
        assert (tx.hold_ended(NOW, 9), tx.marked("all:", 9), tx.next_due()) == ([], [], None)
