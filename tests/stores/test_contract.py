"""The published contract suite, over every store that ships."""

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from taskengine import MemoryStore, SqliteStore
from taskengine.ports import Reader, Store, Transaction
from taskengine.testing import (
    contract_limits,
    contract_reading,
    contract_records,
    contract_sides,
    contract_tasks,
    contract_tools,
    contract_transactions,
)
from taskengine.testing.contract import Check, contract_checks, run_contract
from taskengine.testing.faults import FaultyStore

StoreMaker = Callable[[], Store]

_PARTS = (contract_transactions, contract_tasks, contract_limits, contract_records, contract_sides, contract_reading)


@pytest.fixture(params=["memory", "sqlite-full", "sqlite-fast", "faulty"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreMaker:
    made: list[Store] = []

    def make() -> Store:
        if request.param == "memory":
            store: Store = MemoryStore()
        elif request.param == "faulty":
            store = FaultyStore(MemoryStore())
        else:
            durability = request.param.removeprefix("sqlite-")
            store = SqliteStore(tmp_path / f"{len(made)}.db", durability=durability)
        made.append(store)
        return store

    return make


@pytest.mark.parametrize("check", contract_checks(), ids=str)
def test_the_store_keeps_the_contract(check: Check, make_store: StoreMaker) -> None:
    check.run(make_store)


def test_the_whole_contract_is_one_call_without_pytest() -> None:
    run_contract(MemoryStore)


def test_every_primitive_of_the_ports_is_used_by_some_check() -> None:
    used = {name for module in (*_PARTS, contract_tools) for name in _names_in(module)}
    for port in (Store, Transaction, Reader):
        primitives = {name for name, member in vars(port).items() if callable(member) and not name.startswith("_")}
        assert primitives - used <= {"foreign_commits"}, port  # it takes two stores on one thing; see the stores' tests


def test_names_of_checks_are_sentences() -> None:
    names = [check.name for check in contract_checks()]
    assert all(" " in name and "_" not in name for name in names)
    assert len(set(names)) == len(names) > 40


def _names_in(module: ModuleType) -> set[str]:
    source = ast.parse(inspect.getsource(module))
    return {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}


class _Lossy(MemoryStore):
    """Breaks one promise: it commits what raised."""

    @contextmanager
    def transact(self) -> Iterator[Transaction]:  # type: ignore[override]
        with super().transact() as tx:
            try:
                yield tx
            except ValueError as error:
                failure = error
            else:
                return
        raise failure


def test_a_store_that_breaks_a_promise_is_told_which() -> None:
    with pytest.raises(AssertionError, match="an exception in the block undoes everything") as broken:
        run_contract(_Lossy)
    assert str(broken.value).startswith("1 of ")
    assert isinstance(broken.value.__cause__, AssertionError)
