"""The memory store itself: what it keeps, who uses it, and one transaction at a time."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from taskengine.core.errors import StoreClosed
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import CommandRow, HistoryRow, HoldRow, HoldScope, LogRow, OwnerRow, SideRow, TaskRow
from taskengine.stores.memory.indexes import Indexes
from taskengine.stores.memory.reader import MemoryReader
from taskengine.stores.memory.transaction import MemoryTransaction


class MemoryStore:
    """Tasks in this process's memory. Several engines, also in several threads, may share one."""

    inline = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tasks: dict[int, TaskRow] = {}
        self._by_id: dict[str, TaskRow] = {}
        self._by_key: dict[str, TaskRow] = {}
        self._indexes = Indexes()
        self._history: list[HistoryRow] = []
        self._histories: dict[int, list[int]] = defaultdict(list)
        self._states: Counter[tuple[str, State]] = Counter()
        self._triggers: Counter[Trigger] = Counter()
        self._owners: dict[str, OwnerRow] = {}
        self._commands: dict[str, CommandRow] = {}
        self._tombstones: set[str] = set()
        self._holds: dict[tuple[HoldScope, str], HoldRow] = {}
        self._holds_version = 0
        self._sides: dict[int, SideRow] = {}
        self._logs: dict[int, dict[int, tuple[LogRow, ...]]] = {}
        """Task key -> attempt -> lines by number."""
        self._head = [1, 1, 0]
        self._commits = 0
        self._opened = 0
        self._listeners: list[Callable[[], None]] = []

    def open(self) -> None:
        """Count one more user; see `ports.Store.open`."""
        with self._lock:
            self._opened += 1

    def close(self) -> None:
        """Count one user less. The tasks stay, so that a test can open the store again and look."""
        with self._lock:
            self._opened = max(0, self._opened - 1)

    @contextmanager
    def transact(self) -> Iterator[MemoryTransaction]:
        """See `ports.Store.transact`."""
        with self._lock:
            if not self._opened:
                raise StoreClosed("the memory store is closed")
            tx = MemoryTransaction(self)
            try:
                yield tx
            except BaseException:
                for undo in reversed(tx.undo):
                    undo()
                raise
            self._commits += 1
        for listener in list(self._listeners):
            listener()

    def reader(self) -> MemoryReader:
        """Return the reading side."""
        if not self._opened:
            raise StoreClosed("the memory store is closed")
        return MemoryReader(self)

    def foreign_commits(self) -> int:
        """Return the number of commits; the engine hears of them through `subscribe`."""
        return self._commits

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called after each commit, in the committing thread; return how to end that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None
