"""Stopping, pausing and resuming what another process runs; and processes that die while a task is paused."""

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from taskengine import Engine, State, TaskCall, TaskContext, Trigger
from taskengine.ports import Store
from tests.bodies import Sign, reach, same_store, stay_on_loop, step_on_loop
from tests.test_recovery import check, hear, worker
from tests.worker_program import TASKS


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    sign = Sign(tmp_path)
    yield sign
    sign.give()


BODIES = ["step_on_loop", "step_in_thread", "step_in_child"]


async def test_a_task_of_another_process_is_paused_resumed_and_stopped(tmp_path: Path, go: Sign) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        with worker(path, "trio") as process:
            await hear(process, "ready")
            handles = [await client.submit(TaskCall.of(name, go.path)) for name in BODIES]
            for handle in handles:
                await reach(client, handle, State.RUNNING)
                with anyio.fail_after(30):
                    assert await client.pause(handle, reason="lunch", actor="anna")
                    task = await handle.task()
                    assert task.state is State.PAUSED
                    assert task.wish is not None
                    assert (task.wish.actor, task.wish.reason) == ("anna", "lunch")
                    assert await client.pause(handle)
                    assert await client.resume(handle, actor="bert")
                    assert (await handle.task()).state is State.RUNNING
                    assert await client.resume(handle)
                    assert await client.pause(handle)
                    ended = await client.stop(handle, reason="enough", actor="cleo")
                assert ended.state is State.STOPPED
                last = (await handle.history())[-1]
                assert (last.trigger, last.actor, last.reason) == (Trigger.RUNTIME_STOP_DONE, "cleo", "enough")
    check(path)


async def test_a_remote_pause_that_is_missed_is_answered_so(tmp_path: Path, go: Sign) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        with worker(path, "asyncio", "pause_window=0.2") as process:
            await hear(process, "ready")
            handle = await client.submit(TaskCall.of("stay_on_loop", go.path))
            await reach(client, handle, State.RUNNING)
            with anyio.fail_after(30):
                assert await client.pause(handle) is False
                assert (await handle.task()).state is State.RUNNING
                go.give()
                assert (await handle.wait()).ok


async def test_many_of_another_process_are_asked(tmp_path: Path, go: Sign) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        with worker(path, "asyncio") as process:
            await hear(process, "ready")
            handles = await client.submit_many([TaskCall.of("step_on_loop", go.path)] * 20)
            for handle in handles:
                await reach(client, handle, State.RUNNING)
            assert await client.pause_many(name="step_on_loop") == 20
            for handle in handles:
                await reach(client, handle, State.PAUSED)
            assert await client.resume_many(states="paused") == 20
            assert await client.stop_many(name="step_on_loop") == 20
            assert await client.wait_all(handles, timeout=30)
            assert {(await handle.task()).state for handle in handles} == {State.STOPPED}
    check(path)


@pytest.mark.parametrize("state", [State.PAUSED, State.PAUSING])
async def test_what_is_paused_when_its_process_is_killed_stays_held(tmp_path: Path, go: Sign, state: State) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        name = "step_on_loop" if state is State.PAUSED else "stay_on_loop"
        with worker(path, "asyncio", "pause_window=60") as process:
            await hear(process, "ready")
            handle = await client.submit(TaskCall.of(name, go.path))
            await reach(client, handle, State.RUNNING)
            assert await client.pause_many(ids=[handle], actor="anna", reason="lunch") == 1
            await reach(client, handle, state)
            process.send_signal(signal.SIGKILL)
            process.wait()
        async with Engine(path, tasks=TASKS) as engine:
            await reach(engine, handle, State.QUEUED)
            with anyio.fail_after(30):
                async for event in engine.events(after=0):
                    if event.trigger is Trigger.OWNER_REQUEUE:
                        break
                assert await engine.drain()
            task = await engine.get(handle.id)
            assert (task.state, task.attempt, task.crashes) == (State.QUEUED, 1, 1)
            assert task.held is not None
            assert (task.held.actor, task.held.reason) == ("anna", "lunch")
            go.give()
            assert await engine.resume(handle.id)
            with anyio.fail_after(30):
                assert (await (await engine.handle(handle.id)).wait()).ok
    check(path)


async def test_a_request_that_its_process_did_not_live_to_hear_is_kept(tmp_path: Path, go: Sign) -> None:
    """A stopped process (SIGSTOP) cannot answer; it is killed, and who recovers its tasks obeys."""
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        with worker(path, "asyncio") as process:
            await hear(process, "ready")
            stopped, paused, cancelled = await client.submit_many([TaskCall.of("step_on_loop", go.path)] * 3)
            for handle in (stopped, paused, cancelled):
                await reach(client, handle, State.RUNNING)
            process.send_signal(signal.SIGSTOP)
            assert not (await client.stop(stopped, timeout=0.1)).is_final
            assert not (await client.cancel(cancelled, timeout=0.1)).is_final
            assert await client.pause_many(ids=[paused]) == 1
            process.kill()
            process.wait()
        async with Engine(path, tasks=TASKS, shutdown_grace=0) as engine:
            with anyio.fail_after(30):
                assert (await (await engine.handle(stopped.id)).wait()).state is State.STOPPED
                assert (await (await engine.handle(cancelled.id)).wait()).state is State.CANCELLED
            task = await engine.get(paused.id)
            assert task.state is State.QUEUED
            assert task.held is not None
    check(path)


async def test_a_hold_reaches_another_process(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        with worker(path, "asyncio") as process:
            await hear(process, "ready")
            await client.hold()
            handles = await client.submit_many([TaskCall.of("add", n) for n in range(50)])
            with anyio.move_on_after(0.5):
                await client.wait_all(handles)
            assert (await client.stats()).by_state["queued"] == 50
            assert await client.release()
            assert await client.wait_all(handles, timeout=30)


# --- two engines on one store -----------------------------------------------------------------------------------


async def test_a_remote_pause_of_a_body_that_has_just_begun_is_never_a_lie(store: Store) -> None:
    """That it has begun is stored a moment later; until then the store says that it is only claimed."""
    gates: dict[int, anyio.Event] = {n: anyio.Event() for n in range(10)}

    async def note(ctx: TaskContext, n: int) -> int:
        gates[n].set()
        while ctx.attempt == 1:
            await ctx.acheckpoint()
            await anyio.sleep(0.001)
        return n

    async with (
        Engine(store, tasks=[note], shutdown_grace=0, pause_window=5) as owner,
        Engine(same_store(store), pause_window=5) as client,
    ):
        for n, begun in gates.items():
            handle = await owner.submit(TaskCall.of("note", n))
            await begun.wait()
            with anyio.fail_after(30):
                answer = await client.pause(handle)
            with anyio.move_on_after(0.05):  # Longer than it takes until `running` is stored.
                await anyio.sleep_forever()
            task = await client.get(handle)
            assert answer
            assert (task.state is State.PAUSED) or (task.state is State.QUEUED and task.held is not None), task.state
            await client.cancel(handle)


async def test_a_remote_stop_of_a_body_that_has_just_begun_ends_it(store: Store) -> None:
    begun = anyio.Event()

    async def note(ctx: TaskContext) -> None:
        begun.set()
        while True:
            await ctx.acheckpoint()
            await anyio.sleep(0.001)

    async with Engine(store, tasks=[note], shutdown_grace=0) as owner, Engine(same_store(store)) as client:
        handle = await owner.submit(TaskCall.of("note"))
        await begun.wait()
        with anyio.fail_after(30):
            assert (await client.stop(handle)).state is State.STOPPED


async def test_owner_and_client_agree_whoever_asks(store: Store, go: Sign) -> None:
    async with (
        Engine(store, tasks=[step_on_loop, stay_on_loop], shutdown_grace=0) as owner,
        Engine(same_store(store)) as client,
    ):
        handle = await owner.submit(step_on_loop.bind(go.path))
        await reach(owner, handle, State.RUNNING)
        with anyio.fail_after(60):
            for _ in range(3):
                assert await client.pause(handle)
                assert (await owner.stats()).slots_paused == 1
                assert await owner.resume(handle)
                assert await owner.pause(handle)
                assert await client.resume(handle)
            assert (await owner.get(handle)).state is State.RUNNING
            assert (await client.cancel(handle)).state is State.CANCELLED
