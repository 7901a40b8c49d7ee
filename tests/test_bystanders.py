"""What must not pay for the troubles of others: the next body, the host, the other owner, the processor."""

import asyncio
import logging
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from taskengine import Engine, MemoryStore, State, TaskCall, TaskContext, Transition, task
from taskengine.ports import Store
from tests.actors.ticking import Engine as Them
from tests.actors.ticking import recovery
from tests.bodies import add


async def test_claims_under_a_lost_lease_are_not_begun_beside_their_new_owner() -> None:
    """The lease is taken while claims wait for a slot: those tasks are somebody else's now."""
    begun: list[int] = []
    release = anyio.Event()

    async def note(number: int) -> None:
        begun.append(number)
        if number < 0:
            await release.wait()

    store = MemoryStore()
    async with Engine(store, tasks=[note], concurrency=1, beat=0.05, lease=1.0) as engine:
        await engine.wait_all(await engine.submit_many([_call(0)] * 30))  # Short ones, so that some are claimed ahead.
        begun.clear()
        first = await engine.submit(_call(-1))
        rest = await engine.submit_many([_call(number) for number in range(1, 9)])
        await engine.wait_all([], timeout=1)
        async for move in engine.events(after=0):
            if move.task_id == first.id and move.target is State.RUNNING:
                break
        (owner,) = store.reader().owners()
        them = Them(store, owner="them")
        them.tick(recoveries=[recovery(owner.id)])
        assert len(them.claim(names=("note",))) == 9
        with anyio.fail_after(30):
            while {each.id for each in store.reader().owners()} in ({"them"}, {"them", owner.id}):
                await anyio.wait_all_tasks_blocked()
            await anyio.wait_all_tasks_blocked()
            assert [number for number in begun if number > 0] == []
            release.set()
            them.tick(recoveries=[recovery("them")])
            assert await engine.wait_all([first, *rest], timeout=30)
    assert sorted(number for number in begun if number > 0) == list(range(1, 9))


def _call(number: int) -> TaskCall[Any]:
    return TaskCall.of("note", number)


async def test_large_tasks_that_must_wait_for_a_slot_cost_no_processor() -> None:
    release = anyio.Event()

    @task
    async def hold_slot() -> None:
        await release.wait()

    @task(max_attempts=1)
    async def take(text: str) -> int:
        return len(text)

    async with Engine(MemoryStore(), tasks=[hold_slot, take, add], concurrency=2) as engine:
        await engine.wait_all(await engine.submit_many([add.bind(1)] * 50))  # So that claiming ahead is worth it.
        blockers = await engine.submit_many([hold_slot.bind()] * 2)
        large = await engine.submit_many([take.bind("x" * 900_000)] * 12)
        with anyio.fail_after(30):
            await anyio.wait_all_tasks_blocked()  # Never comes about while the actors keep each other awake.
            release.set()
            assert await engine.wait_all([*blockers, *large])


class Raising(logging.Handler):
    """A handler that breaks the rules."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the handler's own trouble")


async def test_a_log_handler_that_raises_does_not_fail_the_body(store: Store) -> None:
    @task
    async def talk(ctx: TaskContext) -> str:
        ctx.log("a line")
        return "said"

    logger, handler = logging.getLogger("taskengine.task"), Raising()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        async with Engine(store, tasks=[talk]) as engine:
            handle = await engine.submit(talk.bind())
            assert (await handle.wait()).value == "said"
            assert [line.message for line in await handle.logs()] == ["a line"]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


async def test_a_timeout_that_a_listener_leaves_behind_strikes_neither_the_host_nor_the_listener(store: Store) -> None:
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        pytest.skip("asyncio's own timeouts exist on asyncio only")
    heard: list[str] = []

    async def listener(move: Transition) -> None:
        if not heard:
            await asyncio.timeout(0.01).__aenter__()
        heard.append(move.task_id)

    async with Engine(store, tasks=[add]) as engine:
        listening = engine.listen(listener, after=0)
        with anyio.fail_after(30):
            await (await engine.submit(add.bind(1))).wait()
            while not listening.failures:
                await anyio.wait_all_tasks_blocked()
                await anyio.lowlevel.checkpoint()
            last = await engine.submit(add.bind(2))
            await last.wait()
    assert last.id in heard
