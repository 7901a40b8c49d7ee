"""Listeners in this process: they hear every committed move in order, and hurt nobody."""

import asyncio

import anyio
import pytest

from taskengine import Engine, InvalidOption, SqliteStore, State, StoreUnavailable, TaskCall, Transition
from taskengine.ports import Store
from taskengine.testing.faults import FaultyStore
from tests.bodies import add, reach


async def test_a_listener_hears_every_move_in_order_and_the_last_ones_too(store: Store) -> None:
    heard: list[Transition] = []
    async with Engine(store, tasks=[add]) as engine:
        listening = engine.listen(heard.append, after=0)
        handles = await engine.submit_many([add.bind(n) for n in range(50)])
        assert await engine.wait_all(handles, timeout=30)
        moves = [move for handle in handles for move in await handle.history()]
    # All of them, though the engine was left at once: they had been committed.
    assert heard == sorted(moves, key=lambda move: move.position)
    assert listening.failures == 0


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_is_committed_while_the_engine_is_left_is_heard(store: Store, is_async: bool) -> None:
    heard: list[State] = []

    async def listen(event: Transition) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append(event.target)

    async with Engine(store, tasks=[_sleep], shutdown_grace=0) as engine:
        engine.listen(listen if is_async else lambda event: heard.append(event.target), after=0)
        handle = await engine.submit(TaskCall.of("_sleep"))
        await reach(engine, handle, State.RUNNING)
    assert heard[-1] is State.QUEUED


async def _sleep() -> None:
    await anyio.sleep(3600)


ODD = [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), StopIteration(), asyncio.CancelledError()]


async def test_a_listener_that_raises_hears_of_the_next_move_all_the_same(store: Store) -> None:
    """Whatever it raises, at once or later."""
    heard: list[int] = []
    heard_later: list[int] = []

    def raise_it(event: Transition) -> None:
        heard.append(event.position)
        raise ODD[len(heard) % len(ODD)]

    async def raise_it_later(event: Transition) -> None:
        heard_later.append(event.position)
        await anyio.lowlevel.checkpoint()
        raise ODD[len(heard_later) % len(ODD)]

    async with Engine(store, tasks=[add]) as engine:
        listening = [engine.listen(raise_it, after=0), engine.listen(raise_it_later, after=0)]
        with anyio.fail_after(30):
            for n in range(5):
                assert (await (await engine.submit(add.bind(n))).wait()).ok
        last = (await engine.history((await engine.list(limit=1))[0].id))[-1].position
    assert heard == heard_later == list(range(1, last + 1))
    assert [each.failures for each in listening] == [last, last]


async def test_a_listener_that_is_slow_slows_nobody_else(store: Store) -> None:
    heard: list[Transition] = []
    gate = anyio.Event()

    async def slow(event: Transition) -> None:
        await gate.wait()
        heard.append(event)

    async with Engine(store, tasks=[add]) as engine:
        engine.listen(slow, after=0)
        quick: list[Transition] = []
        engine.listen(quick.append, after=0)
        handles = await engine.submit_many([add.bind(n) for n in range(20)])
        assert await engine.wait_all(handles, timeout=30)
        assert heard == []
        gate.set()
    assert heard == quick
    assert len(heard) == 80


async def test_a_listener_that_never_returns_does_not_keep_the_engine_from_being_left(store: Store) -> None:
    async def stuck(event: Transition) -> None:
        await anyio.sleep_forever()

    begin = anyio.current_time()
    async with Engine(store, tasks=[add]) as engine:
        engine.listen(stuck, after=0)
        engine.listen(stuck, after=0)
        await (await engine.submit(add.bind(1))).wait()
    assert anyio.current_time() - begin < 20


async def test_a_listener_can_be_stopped_also_by_itself(store: Store) -> None:
    heard: list[int] = []

    async def two(event: Transition) -> None:
        heard.append(event.position)
        if len(heard) == 2:
            listening.stop()
            listening.stop()

    async with Engine(store, tasks=[add]) as engine:
        listening = engine.listen(two, after=0)
        with anyio.fail_after(30):
            for n in range(3):
                await (await engine.submit(add.bind(n))).wait()
            await listening.ended()
    assert heard == [1, 2]
    assert listening.failures == 0


async def test_a_listener_that_cannot_be_called_is_refused(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        with pytest.raises(InvalidOption):
            engine.listen(5)  # type: ignore[arg-type]  # that is the fault to be shown
        with pytest.raises(InvalidOption):
            engine.listen(print, after=-1)


async def test_a_listener_may_use_the_engine(store: Store) -> None:
    seen: list[State] = []

    async def look(event: Transition) -> None:
        if event.target is State.SUCCEEDED:
            seen.append((await engine.get(event.task_id)).state)
            if event.name == "add":
                await engine.submit(TaskCall.of("then"))

    async def then() -> None:
        return None

    async with Engine(store, tasks=[add, then]) as engine:
        engine.listen(look)
        with anyio.fail_after(30):
            await (await engine.submit(add.bind(1))).wait()
            async for event in engine.events(after=0):
                if event.name == "then" and event.target is State.SUCCEEDED:
                    break
    assert seen[0] is State.SUCCEEDED


async def test_an_outage_of_the_store_does_not_end_the_engine_through_its_listener(store: Store) -> None:
    """What reads for the listener meets the outage; the listener hears the rest when it is over."""
    heard: list[State] = []
    faulty = FaultyStore(store)
    async with Engine(faulty, tasks=[add]) as engine:
        engine.listen(lambda event: heard.append(event.target), after=0)
        await (await engine.submit(add.bind(1))).wait()
        faulty.fail(StoreUnavailable("locked"), point="reader")
        handle = await engine.submit(add.bind(2))
        with anyio.fail_after(30):
            while faulty.has_faults:
                await anyio.lowlevel.checkpoint()
            assert (await handle.wait()).ok
    assert heard.count(State.SUCCEEDED) == 2
    assert isinstance(store, SqliteStore) or store.inline
