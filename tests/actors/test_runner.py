"""Bodies that misbehave: each costs its own attempt, at most its slot, and never a neighbour or the exit."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from taskengine import Engine, FailureKind, Outcome, State, TaskCall, TaskContext, TaskStopped
from taskengine.ports import Store
from tests.bodies import add, sleep_long

var: ContextVar[str] = ContextVar("var", default="clean")


async def raise_cancelled() -> None:
    # trio's cannot be made by hand, so there it is what a body gets from a scope of its own.
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        raise asyncio.CancelledError
    raise KeyboardInterrupt


async def raise_system_exit() -> None:
    raise SystemExit(3)


async def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


async def raise_generator_exit() -> None:
    raise GeneratorExit


async def raise_stop_iteration() -> None:
    raise StopIteration(4)


async def raise_task_stopped() -> None:
    raise TaskStopped


async def raise_group() -> None:
    raise BaseExceptionGroup("both", [ValueError("a"), KeyboardInterrupt()])


async def raise_unprintable() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    raise Unprintable


async def cancel_own_asyncio_task() -> None:
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        raise RuntimeError("asyncio only")
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await anyio.sleep(10)


FAILING = [
    raise_cancelled,
    raise_system_exit,
    raise_keyboard_interrupt,
    raise_generator_exit,
    raise_stop_iteration,
    raise_task_stopped,
    raise_group,
    raise_unprintable,
    cancel_own_asyncio_task,
]


async def leak_a_scope() -> str:
    anyio.CancelScope().__enter__()
    return "done"


async def leak_a_cancelled_scope() -> str:
    anyio.CancelScope().__enter__().cancel()
    return "done"


async def leak_a_task_group() -> str:
    tg = anyio.create_task_group()
    await tg.__aenter__()
    tg.start_soon(anyio.sleep_forever)
    return "done"


async def cancel_own_task_and_return() -> str:
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    return "done"


LEAKING = [leak_a_scope, leak_a_cancelled_scope, leak_a_task_group, cancel_own_task_and_return]


async def run_beside_neighbours(store: Store, body: Callable[..., Awaitable[Any]]) -> Outcome[Any]:
    """Run a body among others in two slots, and afterwards check that both slots still work."""
    async with Engine(store, tasks=[body, add, sleep_long], concurrency=2, kill_grace=0.1, shutdown_grace=0) as engine:
        neighbour = await engine.submit(sleep_long.bind(0.05))
        handle = await engine.submit(TaskCall.of(body.__name__), max_attempts=1)
        with anyio.fail_after(20):
            outcome = await handle.wait()
            assert (await neighbour.wait()).ok
            after = await engine.submit_many([sleep_long.bind(0.01) for _ in range(6)])
            assert await engine.wait_all(after)
            assert all([(await each.wait()).ok for each in after])
    return outcome


@pytest.mark.parametrize("body", FAILING, ids=lambda body: body.__name__)
async def test_whatever_a_body_raises_is_a_failed_attempt_and_nothing_more(
    store: Store, body: Callable[..., Awaitable[None]]
) -> None:
    outcome = await run_beside_neighbours(store, body)
    assert outcome.state is State.FAILED
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.EXCEPTION


@pytest.mark.parametrize("body", LEAKING, ids=lambda body: body.__name__)
async def test_a_body_that_leaks_costs_its_slot_and_keeps_its_result(
    store: Store, body: Callable[..., Awaitable[str]]
) -> None:
    outcome = await run_beside_neighbours(store, body)
    assert outcome.value == "done"


async def test_a_body_that_swallows_its_cancellation_is_lost_and_its_slot_replaced(store: Store) -> None:
    async def swallow() -> None:
        while True:
            try:
                await anyio.sleep(3600)
            except BaseException:
                continue

    async with Engine(store, tasks=[swallow, add], concurrency=1, kill_grace=0.1, shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("swallow"))
        await running(engine, handle.id)
        with anyio.fail_after(20):
            assert (await handle.cancel()).state is State.LOST
            assert (await (await engine.submit(add.bind(1))).wait()).ok


async def test_a_body_that_ends_its_cancellation_with_a_value_succeeded(store: Store) -> None:
    async def refuse() -> str:
        try:
            await anyio.sleep(3600)
        except anyio.get_cancelled_exc_class():
            return "made it"
        return ""

    async with Engine(store, tasks=[refuse]) as engine:
        handle = await engine.submit(TaskCall.of("refuse"))
        await running(engine, handle.id)
        ended = await handle.cancel()
    assert (ended.state, ended.result) == (State.SUCCEEDED, "made it")


async def test_a_body_that_answers_its_cancellation_with_an_error_is_cancelled_and_the_error_kept(
    store: Store,
) -> None:
    async def fail_late() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            raise ValueError("on the way out")

    async with Engine(store, tasks=[fail_late]) as engine:
        handle = await engine.submit(TaskCall.of("fail_late"))
        await running(engine, handle.id)
        ended = await handle.cancel()
    assert ended.state is State.CANCELLED
    assert ended.error == "ValueError: on the way out"


async def test_child_tasks_of_a_body_die_with_it(store: Store) -> None:
    ended = []

    async def child() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            ended.append(1)

    async def parent() -> None:
        async with anyio.create_task_group() as tg:
            for _ in range(3):
                tg.start_soon(child)

    async with Engine(store, tasks=[parent]) as engine:
        handle = await engine.submit(TaskCall.of("parent"))
        await running(engine, handle.id)
        assert (await handle.cancel()).state is State.CANCELLED
        assert len(ended) == 3


async def test_a_thread_that_does_not_listen_is_lost_and_one_that_does_is_cancelled(store: Store) -> None:
    release = threading.Event()

    def deaf() -> None:
        release.wait(60)

    def listens(ctx: TaskContext) -> None:
        while True:
            ctx.checkpoint()
            release.wait(0.005)

    try:
        async with Engine(store, tasks=[deaf, listens, add], concurrency=1, kill_grace=0.2) as engine:
            first = await engine.submit(TaskCall.of("deaf"))
            await running(engine, first.id)
            assert (await first.cancel()).state is State.LOST
            second = await engine.submit(TaskCall.of("listens"))
            await running(engine, second.id)
            assert (await second.cancel(reason="enough")).state is State.CANCELLED
            assert (await (await engine.submit(add.bind(1))).wait()).ok
    finally:
        release.set()


async def test_each_attempt_has_context_variables_of_its_own(store: Store) -> None:
    async def look() -> str:
        before = var.get()
        var.set("dirty")
        await anyio.lowlevel.checkpoint()
        return before + "," + var.get()

    async with Engine(store, tasks=[look], concurrency=1) as engine:
        for _ in range(3):
            assert (await (await engine.submit(TaskCall.of("look"))).wait()).value == "clean,dirty"


async def test_no_more_bodies_than_slots_run_at_once(store: Store) -> None:
    now = most = 0

    async def count() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await anyio.sleep(0.002)
        now -= 1

    async with Engine(store, tasks=[count], concurrency=3) as engine:
        handles = await engine.submit_many([TaskCall.of("count") for _ in range(60)])
        assert await engine.wait_all(handles, timeout=30)
    assert most == 3


async def running(engine: Engine, task_id: str) -> None:
    """Wait until a task's body is known to be at work."""
    with anyio.fail_after(20):
        async for event in engine.events(after=0):
            if event.task_id == task_id and event.target is State.RUNNING:
                return
