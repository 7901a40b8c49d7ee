"""The store that fails by script."""

from collections.abc import Callable

import pytest

from taskengine import MemoryStore
from taskengine.core.errors import StoreError, StoreFull, StoreUnavailable
from taskengine.core.model import TaskFilter
from taskengine.testing.contract_tools import make_row, submit
from taskengine.testing.faults import FaultyStore, Point


@pytest.fixture
def store() -> FaultyStore:
    store = FaultyStore(MemoryStore())
    store.open()
    return store


def add(store: FaultyStore, id_: str) -> None:
    with store.transact() as tx:
        submit(tx, make_row(id_))


def stored(store: FaultyStore) -> list[str]:
    return [row.id for row in store.inner.reader().select(TaskFilter(), limit=99)]


def test_without_faults_it_is_the_inner_store(store: FaultyStore) -> None:
    add(store, "a")
    assert stored(store) == ["a"]
    assert (store.inline, store.transactions, store.failures, store.has_faults) == (True, 1, 0, False)
    assert "MemoryStore" in repr(store)
    assert store.foreign_commits() == 1


def test_the_nth_transaction_fails_once(store: FaultyStore) -> None:
    store.fail(StoreUnavailable("locked"), at=2)
    add(store, "a")
    waiting = [store.has_faults]
    with pytest.raises(StoreUnavailable, match="locked"):
        add(store, "b")
    waiting.append(store.has_faults)
    add(store, "c")
    assert waiting == [True, False]
    assert stored(store) == ["c", "a"]
    assert (store.transactions, store.failures) == (3, 1)


def test_a_lasting_fault_ends_when_it_is_healed(store: FaultyStore) -> None:
    store.fail(StoreFull("disk full"), at=2, until_healed=True)
    add(store, "a")
    for _ in range(3):
        with pytest.raises(StoreFull):
            add(store, "b")
    store.heal()
    add(store, "b")
    assert stored(store) == ["b", "a"]
    assert store.failures == 3


@pytest.mark.parametrize(
    ("point", "is_done", "is_stored"),
    [("begin", False, False), ("commit", True, False), ("after_commit", True, True)],
)
def test_a_transaction_fails_before_at_or_after_its_commit(
    store: FaultyStore, point: Point, is_done: bool, is_stored: bool
) -> None:
    store.fail(StoreUnavailable("broken"), point=point)
    done = []
    with pytest.raises(StoreUnavailable), store.transact() as tx:
        submit(tx, make_row("a"))
        done.append("a")
    assert (bool(done), bool(stored(store))) == (is_done, is_stored)


def test_a_primitive_fails_and_its_transaction_with_it(store: FaultyStore) -> None:
    store.fail(StoreError("refused"), during="append", at=2)
    add(store, "a")
    with store.transact() as tx:
        assert tx.pending() == 1
    with pytest.raises(StoreError, match="refused"):
        add(store, "b")
    add(store, "c")
    assert stored(store) == ["c", "a"]


def test_a_primitive_that_does_not_exist_is_a_mistake_of_the_test(store: FaultyStore) -> None:
    with pytest.raises(ValueError, match="no method 'apend'"):
        store.fail(StoreError("never"), during="apend")


@pytest.mark.parametrize(
    ("point", "use"), [("open", lambda store: store.open()), ("reader", lambda store: store.reader())]
)
def test_opening_and_reading_fail_too(store: FaultyStore, point: Point, use: Callable[[FaultyStore], object]) -> None:
    store.fail(OSError("gone"), point=point)
    add(store, "a")
    with pytest.raises(OSError, match="gone"):
        use(store)
    use(store)


def test_the_first_fault_strikes_and_the_next_waits(store: FaultyStore) -> None:
    store.fail(StoreUnavailable("first"))
    store.fail(StoreUnavailable("second"))
    for text in ("first", "second"):
        with pytest.raises(StoreUnavailable, match=text):
            add(store, "a")
    add(store, "a")


def test_what_only_the_inner_store_has_is_passed_through(store: FaultyStore) -> None:
    heard: list[bool] = []
    unsubscribe = store.subscribe(lambda: heard.append(True))
    add(store, "a")
    unsubscribe()
    add(store, "b")
    assert heard == [True]
    assert getattr(store, "absent", None) is None
    store.close()
