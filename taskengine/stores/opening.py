"""From what a user names to a store."""

import os
from pathlib import Path

from taskengine import defaults
from taskengine.core.errors import InvalidOption
from taskengine.ports import Store


def open_store(store: str | os.PathLike[str] | Store, durability: str | None) -> Store:
    """Make the SQLite store of a path; a Store is passed on.

    Raises:
        InvalidOption: a PostgreSQL address, or a durability for a store that has its own.
    """
    if isinstance(store, str | os.PathLike):
        if str(store).startswith(("postgres://", "postgresql://")):
            raise InvalidOption("store", "this version has no PostgreSQL store; pass the path of a SQLite file")
        from taskengine.stores.sqlite.store import SqliteStore  # Late: it loads apsw.

        return SqliteStore(store, durability=durability or defaults.DURABILITY)
    if not hasattr(store, "transact"):
        raise InvalidOption("store", f"{store!r} is neither a path nor a Store")
    if durability is not None:
        raise InvalidOption("durability", "it belongs to a path; give it to the store that you pass")
    return store


def default_artifacts(store: Store) -> Path | None:
    """Return the folder for artifacts beside a store's file; None where it has none."""
    path = getattr(store, "path", None)
    return path.with_name(f"{path.name}.artifacts") if isinstance(path, Path) else None
