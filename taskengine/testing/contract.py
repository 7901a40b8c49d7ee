"""The contract of a store, as checks that need nothing but the store: for ours and for anybody's.

```python
from taskengine.testing.contract import contract_checks, run_contract

run_contract(lambda: MyStore(new_database()))                  # as it is; AssertionError names what was broken

@pytest.mark.parametrize("check", contract_checks(), ids=str)  # or one test for each promise
def test_my_store_keeps_the_contract(check):
    check.run(lambda: MyStore(new_database()))
```

`make_store` returns a store that is new, empty and not open yet; each check asks for one, opens it and closes it.
What is promised is told in `taskengine.ports`; here it is tried, a name for each promise.
"""

import inspect
from collections.abc import Callable

from attrs import frozen

from taskengine.testing.contract_limits import LimitChecks
from taskengine.testing.contract_reading import ReadingChecks
from taskengine.testing.contract_records import RecordChecks
from taskengine.testing.contract_sides import SideChecks
from taskengine.testing.contract_tasks import TaskChecks
from taskengine.testing.contract_tools import StoreMaker
from taskengine.testing.contract_transactions import TransactionChecks


class StoreContract(TransactionChecks, TaskChecks, LimitChecks, RecordChecks, SideChecks, ReadingChecks):
    """Every check as a method; each raises AssertionError if the store breaks its promise.

    Args:
        make_store: returns a new, empty, unopened store.
    """


@frozen
class Check:
    """One promise."""

    name: str
    """The promise as a sentence."""
    method: Callable[[StoreContract], None]

    def __str__(self) -> str:
        return self.name

    def run(self, make_store: StoreMaker) -> None:
        """Try it.

        Raises:
            AssertionError: the store breaks the promise.
        """
        self.method(StoreContract(make_store))


def contract_checks() -> list[Check]:
    """Return every check, in the order in which they build on each other."""
    return [
        Check(name.replace("_", " "), method)
        for part in StoreContract.__bases__
        for name, method in vars(part).items()
        if inspect.isfunction(method) and not name.startswith("_")
    ]


def run_contract(make_store: StoreMaker) -> None:
    """Run every check.

    Raises:
        AssertionError: names each broken promise; the first failure is its cause.
    """
    checks = contract_checks()
    failures: list[tuple[Check, Exception]] = []
    for check in checks:
        try:
            check.run(make_store)
        except Exception as error:  # a foreign store may fail with anything
            failures.append((check, error))
    if failures:
        lines = [f"{len(failures)} of {len(checks)} promises are broken:"]
        lines.extend(f"- {check.name}: {type(error).__name__}: {error}" for check, error in failures)
        raise AssertionError("\n".join(lines)) from failures[0][1]
