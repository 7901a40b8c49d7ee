"""Engines in fixtures, on both backends, also where a fixture is entered and left in different anyio tasks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from taskengine import Engine, EngineNotRunning, MemoryStore, State, StoreIncompatible
from taskengine.testing.faults import FaultyStore
from taskengine.testing.fixtures import engine_in_background
from tests.bodies import add, sleep_long


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with engine_in_background(Engine(MemoryStore(), tasks=[add, sleep_long], shutdown_grace=0)) as running:
        yield running


async def test_a_fixture_gives_a_running_engine(engine: Engine) -> None:
    assert (await (await engine.submit(add.bind(1, b=2))).wait()).value == 3


async def test_a_test_may_leave_bodies_behind(engine: Engine) -> None:
    await engine.submit(sleep_long.bind())
    async for event in engine.events(after=0):
        if event.target is State.RUNNING:
            break


async def test_what_runs_is_given_back_on_the_way_out() -> None:
    store = MemoryStore()
    async with engine_in_background(Engine(store, tasks=[sleep_long], shutdown_grace=0)) as engine:
        handle = await engine.submit(sleep_long.bind())
        async for event in engine.events(after=0):
            if event.target is State.RUNNING:
                break
    with pytest.raises(EngineNotRunning):
        await engine.stats()
    async with Engine(store) as client:
        assert (await client.get(handle.id)).state is State.QUEUED


async def test_the_exception_of_the_block_leaves_as_it_was_raised() -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with engine_in_background(Engine(MemoryStore(), tasks=[add])):
            raise error
    assert caught.value is error


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    path.write_bytes(b"this is no database at all " * 100)
    with pytest.raises(StoreIncompatible):
        async with engine_in_background(Engine(path, tasks=[add])):
            pytest.fail("it was entered")


async def test_an_engine_that_crashed_is_told_at_the_end_and_hangs_nobody() -> None:
    store = FaultyStore(MemoryStore())

    async def use(engine: Engine) -> None:
        with suppress(EngineNotRunning):
            await engine.submit(add.bind(1))

    with pytest.raises(ExceptionGroup) as caught:
        async with engine_in_background(Engine(store, tasks=[add], shutdown_grace=0)) as engine:
            moves = engine.events(after=0)
            store.fail(RuntimeError("bug in the store"))
            async with anyio.create_task_group() as tg:
                tg.start_soon(use, engine)
                with anyio.fail_after(20):
                    assert [move async for move in moves] == []
                tg.cancel_scope.cancel()
    assert caught.group_contains(RuntimeError, match="bug in the store")


async def test_a_cancelled_user_still_leaves_the_engine() -> None:
    with anyio.move_on_after(10) as scope:
        async with engine_in_background(Engine(MemoryStore(), tasks=[sleep_long], shutdown_grace=0)) as engine:
            await engine.submit(sleep_long.bind())
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(EngineNotRunning):
        await engine.stats()


def test_entering_and_leaving_may_happen_in_different_asyncio_tasks() -> None:
    """pytest-asyncio's way: the fixture's two halves and the test are tasks of their own on one loop."""

    async def fixture() -> AsyncIterator[Engine]:
        async with engine_in_background(Engine(MemoryStore(), tasks=[add])) as running:
            yield running

    async def use(engine: Engine) -> None:
        assert (await (await engine.submit(add.bind(2))).wait()).value == 2

    async def leave(halves: AsyncIterator[Engine]) -> None:
        with pytest.raises(StopAsyncIteration):
            await anext(halves)

    async def enter(halves: AsyncIterator[Engine]) -> Engine:
        return await anext(halves)

    with asyncio.Runner(debug=True) as runner:
        halves = fixture()
        engine = runner.run(enter(halves))
        runner.run(use(engine))
        runner.run(leave(halves))
