"""Functions that a child process can find by name, and those that it cannot."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest

from taskengine import InvalidOption
from taskengine.importable import check_name, check_resolves, refuse_unfit
from tests.executors import bodies_for_children as bodies


class Callable_:
    def __call__(self) -> None: ...

    def method(self) -> None: ...


@pytest.mark.parametrize("function", [bodies.add, bodies.decorated, bodies.Holder.nested, bodies.add_slowly])
def test_a_function_at_the_top_of_a_module_is_fit(function: Callable[..., Any]) -> None:
    refuse_unfit(function)


def test_what_has_no_name_to_import_by_is_refused_with_the_fix() -> None:
    def local() -> None: ...

    for function, words in (
        (local, "at the top"),
        (lambda: None, "at the top"),
        (functools.partial(bodies.add, 1), "wrap it"),
        (Callable_(), "wrap it"),
    ):
        with pytest.raises(InvalidOption, match=words) as caught:
            check_name(function)
        assert caught.value.option == "executor"


def test_a_function_of_the_program_itself_is_refused_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies.add, "__module__", "__main__")
    with pytest.raises(InvalidOption, match="move it to a module"):
        refuse_unfit(bodies.add)


def test_a_name_that_leads_elsewhere_or_nowhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match="something else"):
        check_resolves(bodies.original_not_importable)
    with pytest.raises(InvalidOption, match="something else"):
        refuse_unfit(Callable_().method)
    monkeypatch.delitem(sys.modules, bodies.__name__)
    with pytest.raises(InvalidOption, match="something else"):
        refuse_unfit(bodies.add)
