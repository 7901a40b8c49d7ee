"""The SQLite store. apsw is loaded when a store is made, not when this package is imported."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskengine.stores.sqlite.store import SqliteStore as SqliteStore


def __getattr__(name: str) -> Any:
    if name == "SqliteStore":
        from taskengine.stores.sqlite.store import SqliteStore

        return SqliteStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
