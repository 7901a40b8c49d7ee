"""What the package offers, all of it and nothing else."""

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import taskengine
import taskengine.tasks
import taskengine.testing
from taskengine import Engine
from taskengine.asking import Asking
from taskengine.context import TaskContext
from taskengine.handles import TaskHandle
from taskengine.looking import Looking

PUBLIC = [taskengine, taskengine.tasks]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_what_is_listed_can_be_imported(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__, key=_isort_key)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


def _isort_key(name: str) -> tuple[int, str]:
    """Order as the linter does: constants, classes, the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_what_a_public_module_exports_is_listed(module: ModuleType) -> None:
    exported = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name not in ("TYPE_CHECKING", "Any")
    }
    late = {"Cron", "Every", "MemoryStore", "Months", "Once", "SqliteStore"} if module is taskengine else set()
    assert exported | late == {name for name in module.__all__ if not name.startswith("_")}


def test_everything_public_is_documented() -> None:
    undocumented = []
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isclass(value) or inspect.isfunction(value)) and not (value.__doc__ or "").strip():
                undocumented.append(f"{module.__name__}.{name}")
    for holder in (Engine, Asking, Looking, TaskHandle, TaskContext):
        for name, member in vars(holder).items():
            is_own = inspect.isfunction(member) or isinstance(member, property)
            if is_own and not name.startswith("_") and not (member.__doc__ or "").strip():
                undocumented.append(f"{holder.__name__}.{name}")
    assert undocumented == []


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        taskengine.no_such_thing  # noqa: B018


def test_every_module_says_what_it_holds() -> None:
    silent = []
    for info in pkgutil.walk_packages(taskengine.__path__, "taskengine."):
        if info.name == "taskengine.__main__":
            continue
        module = importlib.import_module(info.name)
        text = Path(module.__file__ or "").read_text()
        if text.strip() and not (module.__doc__ or "").strip():
            silent.append(info.name)
    assert silent == []


def test_the_package_is_typed_and_knows_its_version() -> None:
    assert (Path(taskengine.__file__).parent / "py.typed").exists()
    assert taskengine.__version__.count(".") == 2
