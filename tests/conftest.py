"""What all tests share: both backends, limits on hanging, and how hard hypothesis tries."""

import faulthandler
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from taskengine import MemoryStore, SqliteStore
from taskengine.ports import Store
from taskengine.testing.invariants import check_invariants
from tests.bodies import Sign

HANG_LIMIT = 150
"""Seconds for one test with its fixtures; above pytest-timeout's, which reports better but lets a teardown hang."""
LONG_HANG_LIMIT = 1200

_stderr = pytest.StashKey[int]()

# Machines that test are shared and slow at times: neither deadlines nor "too slow" say anything about the code.
settings.register_profile(
    "ci", deadline=None, print_blob=True, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=2000)


@pytest.fixture(
    scope="module",
    params=[pytest.param(("asyncio", {"debug": True}), id="asyncio"), pytest.param(("trio", {}), id="trio")],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run every async test on both backends; asyncio in its debug mode."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run tests marked slow, and let hypothesis try 2000 examples")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "ci")
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        config.stash[_stderr] = os.dup(2)
    else:
        with capture.global_and_fixture_disabled():  # else the stacks of a hang would end in a deleted file
            config.stash[_stderr] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    if _stderr in config.stash:
        os.close(config.stash[_stderr])
        del config.stash[_stderr]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.skip(reason="slow; runs with --long"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the run with all stacks if a test hangs, wherever it does: set-up, call or teardown."""
    limit = LONG_HANG_LIMIT if item.config.getoption("--long") else HANG_LIMIT
    faulthandler.dump_traceback_later(limit, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Run an engine test on both stores; afterwards the store must hold every invariant."""
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "tasks.db")
    yield made
    made.open()
    try:
        assert check_invariants(made) == []
    finally:
        made.close()


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    """The file for which bodies wait; it is there in the end, so that no thread is left waiting."""
    sign = Sign(tmp_path)
    yield sign
    sign.give()
