"""SQLite's errors, told in ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from taskengine.core.errors import StoreClosed, StoreError, StoreFull, StoreIncompatible, StoreUnavailable


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite raises in the block into the error that the ports name for it."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(f"{path} is locked by another process") from error
    except apsw.FullError as error:
        raise StoreFull(f"no room to write {path}: {error}") from error
    except apsw.NotADBError as error:
        raise StoreIncompatible(f"{path} is no SQLite database; choose another file") from error
    except apsw.ConnectionClosedError as error:
        raise StoreClosed(f"{path} is closed") from error
    except (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.CorruptError) as error:
        raise StoreUnavailable(f"{path} cannot be used: {error}") from error
    except apsw.Error as error:
        raise StoreError(f"{path}: {error}") from error
