"""What the SQLite store promises beyond the contract: files, locks, disks, several processes."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from taskengine import SqliteStore
from taskengine.core.errors import (
    EngineNotRunning,
    InvalidOption,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreUnavailable,
)
from taskengine.core.model import TaskFilter
from taskengine.stores.sqlite import store as store_module
from taskengine.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from taskengine.testing.contract_tools import make_row, submit
from taskengine.testing.invariants import check_invariants

EVERYTHING = TaskFilter()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@contextmanager
def opened(path: Path, durability: str = "full") -> Iterator[SqliteStore]:
    store = SqliteStore(path, durability=durability)
    store.open()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def foreign(path: Path) -> Iterator[apsw.Connection]:
    """Connect as another program would; not by sqlite3, since two SQLite libraries in one process share no locks."""
    connection = apsw.Connection(str(path))
    try:
        yield connection
    finally:
        connection.close()


def add(store: SqliteStore, *ids: str) -> None:
    with store.transact() as tx:
        submit(tx, *(make_row(id_) for id_ in ids))


def stored(store: SqliteStore) -> list[str]:
    return [row.id for row in store.reader().select(EVERYTHING, limit=1000)]


def writer(store: SqliteStore) -> apsw.Connection:
    assert store._writer is not None
    return store._writer


# --- files ---


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("fast", 1)])
def test_the_file_is_in_wal_mode_and_synced_as_asked(path: Path, durability: str, synchronous: int) -> None:
    with opened(path, durability) as store:
        assert writer(store).execute("PRAGMA journal_mode").fetchall() == [("wal",)]
        assert writer(store).execute("PRAGMA synchronous").fetchall() == [(synchronous,)]
        assert repr(store) == f"SqliteStore({str(path)!r}, durability={durability!r})"


def test_files_are_readable_by_their_owner_alone_whatever_the_umask(path: Path) -> None:
    before = os.umask(0o000)
    try:
        with opened(path) as store:
            add(store, "a")
            store.reader().get("a")
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"tasks.db": 0o600, "tasks.db-wal": 0o600, "tasks.db-shm": 0o600}


def test_after_closing_only_the_one_file_is_left_and_no_descriptor_is_open(path: Path) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with opened(path) as store:
            store.reader().last_position()
    assert [file.name for file in path.parent.iterdir()] == ["tasks.db"]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_existing_empty_file_is_used(path: Path) -> None:
    path.touch()
    with opened(path) as store:
        add(store, "a")
        assert stored(store) == ["a"]


def test_a_store_is_opened_once_at_a_time(path: Path) -> None:
    with opened(path) as store, pytest.raises(EngineNotRunning, match="own"):
        store.open()


@pytest.mark.parametrize("content", [b"xy", b"no database\n" * 3, bytes(range(256)) * 400], ids=["2", "36", "102400"])
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreIncompatible, match="no SQLite database"):
        SqliteStore(path).open()
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    with foreign(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreIncompatible, match="another program"):
        SqliteStore(path).open()
    assert path.read_bytes() == before


def test_a_database_that_says_whose_it_is_is_refused(path: Path) -> None:
    with foreign(path) as other:
        other.execute("PRAGMA application_id = 42")
    with pytest.raises(StoreIncompatible, match="another program"):
        SqliteStore(path).open()


def test_a_newer_schema_is_refused_with_both_versions(path: Path) -> None:
    with opened(path) as store:
        add(store, "a")
    with foreign(path) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(StoreIncompatible, match=rf"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}; upgrade"):
        SqliteStore(path).open()


def test_an_older_schema_is_brought_up_to_date_and_keeps_its_tasks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        add(store, "a")
    next_version = ("CREATE TABLE addition (x TEXT) STRICT",)
    monkeypatch.setattr(store_module, "MIGRATIONS", MIGRATIONS + next_version)
    monkeypatch.setattr(store_module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    for _ in range(2):
        with opened(path) as store:
            assert stored(store) == ["a"]
            assert writer(store).execute("SELECT count(*) FROM addition").fetchall() == [(0,)]


def test_a_migration_that_fails_half_way_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        add(store, "a")
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE half (x); NO SQL"))
        patched.setattr(store_module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(StoreError, match="syntax error"):
            SqliteStore(path).open()
    with opened(path) as store:
        assert stored(store) == ["a"]
        assert writer(store).execute("SELECT * FROM sqlite_schema WHERE name = 'half'").fetchall() == []


def test_a_folder_and_a_missing_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(StoreIncompatible, match="is a folder"):
        SqliteStore(tmp_path).open()
    with pytest.raises(StoreUnavailable, match="folder does not exist"):
        SqliteStore(tmp_path / "absent" / "tasks.db").open()


@pytest.mark.parametrize("path", [":memory:", ""])
def test_what_names_no_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidOption, match="MemoryStore"):
        SqliteStore(path)


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOption, match="'none' is neither"):
        SqliteStore(path, durability="none")


@contextmanager
def without_root() -> Iterator[None]:
    """Let permissions count: they do not for root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "tasks.db") as store:
        add(store, "a")
    _open_to_all(tmp_path)
    (tmp_path / "tasks.db").chmod(0o444)
    with without_root(), pytest.raises(StoreUnavailable, match=r"cannot write .*Permission denied"):
        SqliteStore(tmp_path / "tasks.db").open()


def test_a_file_in_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "tasks.db") as store:
        add(store, "a")
    _open_to_all(tmp_path)
    (tmp_path / "tasks.db").chmod(0o666)
    tmp_path.chmod(0o555)
    with without_root(), pytest.raises(StoreUnavailable):
        SqliteStore(tmp_path / "tasks.db").open()
    with without_root(), pytest.raises(StoreUnavailable, match="cannot write"):
        SqliteStore(tmp_path / "new.db").open()


def _open_to_all(folder: Path) -> None:
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.getuid() and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)


# --- locks ---


def test_a_foreign_lock_is_reported_after_a_short_wait_and_passes(path: Path) -> None:
    with opened(path) as store, foreign(path) as other:
        add(store, "before")
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            add(store, "during")
        assert time.monotonic() - begun < 5
        assert stored(store) == ["before"], "reading waits for no writer"
        other.execute("ROLLBACK")
        add(store, "after")
        assert stored(store) == ["after", "before"]
        assert check_invariants(store) == []


def test_a_store_opens_while_somebody_else_writes(path: Path) -> None:
    with opened(path):
        pass
    with foreign(path) as other:
        other.execute("BEGIN IMMEDIATE")
        with opened(path) as store, pytest.raises(StoreUnavailable):
            add(store, "a")


def test_creating_a_store_waits_for_a_foreign_lock_and_then_gives_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "OPEN_PATIENCE", 0.1)
    with foreign(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked"):
            SqliteStore(path).open()
    with opened(path) as store:
        add(store, "a")


def test_every_write_begins_immediate_so_that_a_snapshot_cannot_be_too_old(path: Path) -> None:
    statements: list[str] = []

    def trace(_: object, sql: str, __: object) -> bool:
        statements.append(sql)
        return True

    with opened(path) as store, opened(path) as second:
        writer(store).exec_trace = trace
        add(store, "a")
        with store.transact() as tx:
            tx.find(ids=["a"])
            with pytest.raises(StoreUnavailable):
                add(second, "b")
            submit(tx, make_row("c"))
        add(second, "b")
        assert stored(store) == ["b", "c", "a"]
    assert [sql for sql in statements if sql.startswith("BEGIN")] == ["BEGIN IMMEDIATE"] * 2


def test_commits_of_others_change_the_number_and_own_ones_do_not(path: Path) -> None:
    with opened(path) as store, opened(path) as second:
        first = store.foreign_commits()
        add(store, "a")
        assert store.foreign_commits() == first
        add(second, "b")
        assert store.foreign_commits() != first
        store.reader().last_position()
    assert store.foreign_commits() == 0


# --- disks ---


def test_a_full_disk_stores_nothing_and_is_over_when_there_is_room(path: Path) -> None:
    with opened(path) as store:
        add(store, "before")
        ((pages,),) = writer(store).execute("PRAGMA page_count").fetchall()
        assert isinstance(pages, int)
        writer(store).execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(2):
            with pytest.raises(StoreFull, match="no room"), store.transact() as tx:
                submit(tx, *(make_row(f"large-{n}", args='["' + "x" * 9000 + '"]') for n in range(9)))
            assert stored(store) == ["before"]
        writer(store).execute("PRAGMA max_page_count = 1000000")
        add(store, "after")
        assert stored(store) == ["after", "before"]
        assert check_invariants(store) == []


def test_after_a_failed_write_the_connection_is_made_anew(path: Path) -> None:
    with opened(path) as store:
        add(store, "before")
        old = writer(store)
        with pytest.raises(StoreUnavailable, match="cannot be used"), store.transact() as tx:
            submit(tx, make_row("during"))
            raise apsw.IOError("disk I/O error")
        assert store.foreign_commits() == 0
        with foreign(path) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                add(store, "locked")
            other.execute("ROLLBACK")
        add(store, "after")
        assert writer(store) is not old
        assert stored(store) == ["after", "before"]
        assert check_invariants(store) == []


@pytest.mark.parametrize("is_connection_lost", [False, True], ids=["open", "after an I/O error"])
@pytest.mark.parametrize("fate", ["deleted", "replaced"])
def test_a_file_that_was_deleted_or_replaced_is_not_written_to(path: Path, fate: str, is_connection_lost: bool) -> None:
    with opened(path) as store:
        add(store, "a")
        other = path.with_name("other.db")
        with opened(other) as theirs:
            add(theirs, "theirs")
        if fate == "deleted":
            path.unlink()
        else:
            os.replace(other, path)
        if is_connection_lost:
            writer(store).close()
            store._writer = None
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="deleted or replaced"):
                add(store, "b")
    assert fate == "replaced" or not path.exists()


def test_a_damaged_page_is_an_error_of_ours_when_it_is_read(path: Path) -> None:
    with opened(path) as store, store.transact() as tx:
        submit(tx, *(make_row(f"t{n}", args='["' + "x" * 500 + '"]') for n in range(200)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(StoreError), opened(path) as store:
        stored(store)


def test_a_reader_that_was_kept_says_that_the_store_is_closed(path: Path) -> None:
    with opened(path) as store:
        reader = store.reader()
    with pytest.raises(StoreClosed):
        reader.last_position()


def test_readers_cannot_write(path: Path) -> None:
    with opened(path) as store:
        reader = store.reader()
        with pytest.raises(apsw.ReadOnlyError):
            reader._db.execute("DELETE FROM task")


# --- several processes ---

OPENING = """
import sys
from taskengine.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
store.open()
with store.transact() as tx:
    head = tx.head(None)
store.reader().last_position()
store.close()
print("opened", flush=True)
"""


def test_six_processes_that_open_a_new_file_at_once_all_come_up(path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPENING, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in processes]
    assert answers == [("opened\n", "")] * 6
    with foreign(path) as other:
        assert other.execute("PRAGMA user_version").fetchall() == [(SCHEMA_VERSION,)]
        assert other.execute("PRAGMA application_id").fetchall() == [(APPLICATION_ID,)]
        assert other.execute("SELECT count(*) FROM counter").fetchall() == [(1,)]
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


WRITING = """
import sys
from taskengine.core.errors import StoreUnavailable
from taskengine.stores.sqlite import SqliteStore
from taskengine.testing.contract_tools import make_row, submit
store = SqliteStore(sys.argv[1], durability="fast")
store.open()
with store.transact() as tx:
    submit(tx, make_row(sys.argv[2]))
print("written", flush=True)
with store.transact() as tx:
    submit(tx, make_row("never committed"))
    print("open", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("durability", ["full", "fast"])
def test_a_process_killed_in_a_transaction_leaves_what_it_committed(path: Path, durability: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING.replace("fast", durability), str(path), "committed"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["written\n", "open\n"]
    process.kill()
    process.communicate(timeout=30)
    with opened(path) as store:
        assert stored(store) == ["committed"]
        assert check_invariants(store) == []
        add(store, "next")
