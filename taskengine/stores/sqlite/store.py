"""One SQLite file: connections, durability, the lock, and foreign errors made ours.

WAL mode; every write begins IMMEDIATE, because a read transaction that turns into a write fails at once when somebody
else wrote in between (SQLITE_BUSY_SNAPSHOT), whatever the busy timeout. One connection writes and checkpoints, another
reads. A lock held by somebody else is reported as StoreUnavailable after a quarter of a second; waiting longer is the
persister's business, which can be interrupted where SQLite's own wait cannot.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from taskengine.core.errors import (
    EngineNotRunning,
    InvalidOption,
    StoreClosed,
    StoreGone,
    StoreIncompatible,
    StoreUnavailable,
)
from taskengine.stores.sqlite.errors import translated
from taskengine.stores.sqlite.reader import SqliteReader
from taskengine.stores.sqlite.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from taskengine.stores.sqlite.transaction import SqliteTransaction

BUSY_TIMEOUT_MS = 250
OPEN_PATIENCE = 10.0
"""Seconds that opening waits for another process's lock."""

_SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}


class SqliteStore:
    """Tasks in one file.

    Args:
        path: the file; created with mode 0600 if it is not there. Its folder must exist.
        durability: "full" (default) syncs each commit: what was acknowledged survives power loss. "fast" survives
            kill -9 but not power loss.
    """

    inline = False

    def __init__(self, path: str | os.PathLike[str], *, durability: str = "full") -> None:
        if durability not in _SYNCHRONOUS:
            raise InvalidOption("durability", f"{durability!r} is neither 'full' nor 'fast'")
        if str(path) == ":memory:" or not str(path):
            raise InvalidOption("path", "a SQLite store needs a file; use MemoryStore() for one without")
        self.path = Path(path).absolute()  # The host may change its folder.
        self.durability = durability
        self._writer: apsw.Connection | None = None
        self._reading: apsw.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"SqliteStore({str(self.path)!r}, durability={self.durability!r})"

    # --- opening and closing ---

    def open(self) -> None:
        """Create or migrate the file; see `ports.Store.open`."""
        if self._writer is not None:
            raise EngineNotRunning("this SqliteStore is open already; give each engine a SqliteStore of its own")
        self._is_closed = False
        self._inode = None
        self._create_file()
        with translated(self.path):
            self._open_writer(OPEN_PATIENCE)

    def _create_file(self) -> None:
        if self.path.is_dir():
            raise StoreIncompatible(f"{self.path} is a folder; name a file in it")
        try:
            # Ours before SQLite makes it: -wal and -shm get the mode of the database file.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except FileNotFoundError as error:
            raise StoreUnavailable(f"cannot create {self.path}: its folder does not exist") from error
        except OSError as error:
            raise StoreUnavailable(f"cannot write {self.path}: {error.strerror}") from error

    def _open_writer(self, patience: float) -> None:
        """Connect; wait up to `patience` seconds for another process's lock."""
        deadline = time.monotonic() + patience
        while True:
            db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            try:
                db.set_busy_timeout(BUSY_TIMEOUT_MS)
                _keep_plans(db)
                self._prepare(db)
            except (apsw.BusyError, apsw.LockedError):
                db.close(True)
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)  # Some locks are refused at once, whatever the busy timeout.
                continue
            except BaseException:
                db.close(True)
                raise
            break
        self._writer = db
        self._inode = _inode(self.path)

    def _prepare(self, db: apsw.Connection) -> None:
        if db.readonly("main"):
            raise StoreUnavailable(f"{self.path} is read-only; a store must be writable")
        self._check_ours(db)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[self.durability]}")
        if _pragma(db, "user_version") < SCHEMA_VERSION:
            self._migrate(db)

    def _check_ours(self, db: apsw.Connection) -> None:
        # One statement, so one snapshot: another process may be creating the file at this moment.
        ((application, version, has_tables),) = db.execute(
            "SELECT (SELECT * FROM pragma_application_id), (SELECT * FROM pragma_user_version), "
            "EXISTS (SELECT 1 FROM sqlite_schema)"
        ).fetchall()
        if application not in (0, APPLICATION_ID) or (application == 0 and has_tables):
            raise StoreIncompatible(f"{self.path} is a SQLite database of another program; choose another file")
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise StoreIncompatible(
                f"{self.path} has schema version {version} and this library knows up to {SCHEMA_VERSION}; "
                "upgrade taskengine"
            )

    def _migrate(self, db: apsw.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            # Read again under the lock: another process may have done it in the meantime.
            self._check_ours(db)
            for version in range(_pragma(db, "user_version"), SCHEMA_VERSION):
                db.execute(MIGRATIONS[version])
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close both connections. Idempotent."""
        self._is_closed = True
        for db in (self._reading, self._writer):
            if db is not None:
                db.close(True)
        self._reading = self._writer = None

    # --- writing ---

    @contextmanager
    def transact(self) -> Iterator[SqliteTransaction]:
        """See `ports.Store.transact`."""
        if self._is_closed:
            raise StoreClosed(f"{self.path} is closed")
        with translated(self.path):
            self._check_file()
            if self._writer is None:
                self._open_writer(0.0)  # After an I/O error; whoever waits for the store does it outside.
            db = self._writer
            assert db is not None
            db.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteTransaction(db)
                db.execute("COMMIT")
            except BaseException as error:
                self._roll_back(db, error)
                raise

    def _roll_back(self, db: apsw.Connection, error: BaseException) -> None:
        try:
            if db.in_transaction:
                db.execute("ROLLBACK")
        except apsw.Error:
            error = apsw.IOError()
        if isinstance(error, apsw.IOError | apsw.CorruptError):
            # After a failed write or sync the page cache cannot be trusted (Rebello et al., ATC 2020): begin anew.
            self._writer = None
            db.close(True)

    def _check_file(self) -> None:
        if self._inode is not None and _inode(self.path) != self._inode:
            raise StoreGone(f"{self.path} was deleted or replaced while it was open; nothing is written to it")

    def foreign_commits(self) -> int:
        """Return SQLite's data_version of the writing connection, which others' commits change."""
        if self._writer is None:
            return 0
        try:
            return _pragma(self._writer, "data_version")
        except apsw.Error:
            return 0

    # --- reading ---

    def reader(self) -> SqliteReader:
        """Return the reading side, on a connection of its own."""
        if self._is_closed:
            raise StoreClosed(f"{self.path} is closed")
        if self._reading is None:
            with translated(self.path):
                db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
                db.set_busy_timeout(5000)
                _keep_plans(db)
                db.execute("PRAGMA wal_autocheckpoint = 0")  # The writer alone checkpoints.
                db.execute("PRAGMA query_only = ON")
                self._reading = db
        return SqliteReader(self._reading, self.path)


def _keep_plans(db: apsw.Connection) -> None:
    # Otherwise SQLite looks at the number behind `LIMIT ?` and prepares such a statement anew whenever it is bound,
    # which costs many times what the statement does. What our indexes are for, no number changes.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)


def _pragma(db: apsw.Connection, name: str) -> int:
    ((value,),) = db.execute(f"PRAGMA {name}").fetchall()
    assert isinstance(value, int), name
    return value


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
