"""A store that fails when a test says so, around any other.

```python
store = FaultyStore(SqliteStore(path))
store.fail(StoreUnavailable("locked"))                                  # the next transaction, once
store.fail(StoreFull("disk full"), at=3, until_healed=True)             # from the third one on, until store.heal()
store.fail(StoreError("refused"), during="claim")                       # the next transaction that claims
store.fail(OSError("gone"), point="reader")                             # the next read
```
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

from attrs import define

from taskengine.ports import Reader, Store, Transaction

Point = Literal["open", "begin", "commit", "after_commit", "reader"]
"""Where a fault strikes.

`begin`: before anything of the transaction is done. `commit`: everything was done, and is rolled back. `after_commit`:
it is committed and reported as failed, as when a connection breaks between the two.
"""


@define(eq=False)
class _Fault:
    error: BaseException
    point: Point
    countdown: int
    until_healed: bool
    during: str | None

    def is_due(self) -> bool:
        """Count one occasion; tell whether the fault strikes at it."""
        self.countdown -= 1
        return self.countdown == 0 or (self.until_healed and self.countdown < 0)


class FaultyStore:
    """Passes everything on to another store, and fails by script.

    What it does not know itself, such as the memory store's `subscribe`, it takes from the inner store. Faults may be
    set from any thread. Where several would strike at one occasion, the one that was set first does, and the occasion
    does not count for the others.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.inline = inner.inline
        self.transactions = 0
        """How many were begun, failed ones included; the renewals of leases are among them."""
        self.failures = 0
        """How often a fault has struck."""
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def fail(
        self,
        error: BaseException,
        *,
        at: int = 1,
        until_healed: bool = False,
        point: Point = "begin",
        during: str | None = None,
    ) -> None:
        """Have `error` raised.

        Args:
            at: strike at this occasion from now on, counted from 1.
            until_healed: strike at each later occasion as well, until `heal`.
            point: where; see `Point`.
            during: name of a method of `ports.Transaction`: an occasion is a call of it, and the transaction that makes
                the call fails in place of it. `point` has no meaning then.
        """
        if during is not None and not hasattr(Transaction, during):
            raise ValueError(f"a transaction has no method {during!r}")
        with self._lock:
            self._faults.append(_Fault(error, point, at, until_healed, during))

    def heal(self) -> None:
        """Forget every fault."""
        with self._lock:
            self._faults.clear()

    @property
    def has_faults(self) -> bool:
        """Whether some fault has not struck yet, or strikes until it is healed."""
        with self._lock:
            return any(fault.until_healed or fault.countdown > 0 for fault in self._faults)

    def _reach(self, point: Point, method: str | None = None) -> None:
        with self._lock:
            for fault in self._faults:
                if (fault.point == point or method is not None) and fault.during == method and fault.is_due():
                    self.failures += 1
                    raise fault.error.with_traceback(None)

    # --- the port ---

    def open(self) -> None:
        """See `ports.Store.open`."""
        self._reach("open")
        self.inner.open()

    @contextmanager
    def transact(self) -> Iterator[Transaction]:
        """See `ports.Store.transact`."""
        with self._lock:
            self.transactions += 1
        self._reach("begin")
        with self.inner.transact() as tx:
            yield cast(Transaction, _FaultyTransaction(self, tx))
            self._reach("commit")
        self._reach("after_commit")

    def reader(self) -> Reader:
        """See `ports.Store.reader`."""
        self._reach("reader")
        return self.inner.reader()

    def foreign_commits(self) -> int:
        """See `ports.Store.foreign_commits`."""
        return self.inner.foreign_commits()

    def close(self) -> None:
        """See `ports.Store.close`."""
        self.inner.close()


class _FaultyTransaction:
    """Passes the primitives on, after asking whether one of them is to fail."""

    def __init__(self, store: FaultyStore, inner: Transaction) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        self._store._reach("begin", name)
        return getattr(self._inner, name)
