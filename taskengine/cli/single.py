"""A store of which an engine claims one task only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from taskengine.core.lifecycle import CLAIMABLE
from taskengine.core.model import TaskRow
from taskengine.ports import Reader, Store, Transaction


class SingleTaskStore:
    """Passes everything on to another store; what may be claimed is narrowed down to one task.

    `run` shares a file with workers and their backlog. Its engine must neither wait behind that backlog nor begin
    bodies that it would have to interrupt when its own task is done.

    Args:
        store: where the tasks live.
        task_id: the one that may be claimed; or
        key: the one that has this idempotency key.
    """

    def __init__(self, store: Store, *, task_id: str, key: str | None) -> None:
        self._store = store
        self._task_id = task_id
        self._key = key
        self.inline = store.inline

    def open(self) -> None:
        """See `ports.Store.open`."""
        self._store.open()

    @contextmanager
    def transact(self) -> Iterator[Any]:
        """See `ports.Store.transact`."""
        with self._store.transact() as transaction:
            yield _Narrowed(transaction, self._task_id, self._key)

    def reader(self) -> Reader:
        """See `ports.Store.reader`."""
        return self._store.reader()

    def foreign_commits(self) -> int:
        """See `ports.Store.foreign_commits`."""
        return self._store.foreign_commits()

    def close(self) -> None:
        """See `ports.Store.close`."""
        self._store.close()


class _Narrowed:
    def __init__(self, transaction: Transaction, task_id: str, key: str | None) -> None:
        self._transaction = transaction
        self._task_id = task_id
        self._keys = (key,) if key is not None else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        rows = self._transaction.find(ids=(self._task_id,), idempotency_keys=self._keys)
        return [row for row in rows if row.state in CLAIMABLE and row.held is None and row.name in names][:limit]
