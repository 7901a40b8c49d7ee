"""What the memory store promises beyond the contract: several users, in several threads."""

import threading

import pytest

from taskengine import MemoryStore
from taskengine.core.errors import StoreClosed, StoreError
from taskengine.core.model import TaskFilter
from taskengine.testing.contract_tools import make_row, submit
from taskengine.testing.invariants import check_invariants


def test_it_is_open_as_long_as_one_of_its_users_is() -> None:
    store = MemoryStore()
    with pytest.raises(StoreClosed), store.transact():
        pass
    store.open()
    store.open()
    store.close()
    with store.transact() as tx:
        submit(tx, make_row("a"))
    store.close()
    with pytest.raises(StoreClosed):
        store.reader()


def test_listeners_hear_of_commits_and_of_nothing_else() -> None:
    store = MemoryStore()
    store.open()
    heard: list[int] = []
    unsubscribe = store.subscribe(lambda: heard.append(store.foreign_commits()))
    with store.transact() as tx:
        submit(tx, make_row("a"))
        assert heard == []
    with pytest.raises(ValueError), store.transact() as tx:
        submit(tx, make_row("b"))
        raise ValueError
    assert heard == [1]
    unsubscribe()
    unsubscribe()
    with store.transact():
        pass
    assert heard == [1]


def test_a_history_row_in_the_wrong_place_is_refused() -> None:
    store = MemoryStore()
    store.open()
    with pytest.raises(StoreError, match="does not follow"), store.transact() as tx:
        tx.append([], 7)


def test_transactions_of_several_threads_do_not_mix() -> None:
    store = MemoryStore()
    store.open()

    def work(name: str) -> None:
        for number in range(50):
            with store.transact() as tx:
                submit(tx, make_row(f"{name}{number}"), make_row(f"{name}{number}x"))
            store.reader().select(TaskFilter(), limit=5)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert check_invariants(store) == []
    assert len(store.reader().select(TaskFilter(), limit=1000)) == 400
