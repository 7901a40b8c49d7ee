"""Tasks that are submitted with the end of another: for every kind of end, once, and without a say in it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import (
    Engine,
    InvalidOption,
    QueueFull,
    RetryPolicy,
    State,
    TaskCall,
    TaskContext,
    TaskEnd,
    TaskHandle,
    Timeouts,
    Trigger,
    UnknownTask,
    task,
)
from taskengine.ports import Store
from tests.bodies import Sign, add, fail_until, reach, same_store, sleep_long, stay_on_loop
from tests.test_recovery import check, hear, worker

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    sign = Sign(tmp_path)
    yield sign
    sign.give()


@task
async def won(end: TaskEnd) -> None:
    return None


@task
async def failed(end: TaskEnd) -> None:
    return None


@task
async def settled(end: TaskEnd) -> None:
    return None


ALL: dict[str, Any] = {"on_success": won, "on_failure": failed, "on_settled": settled}
BODIES: list[Any] = [won, failed, settled, add, fail_until, sleep_long, stay_on_loop]


async def called(engine: Engine, handle: TaskHandle[Any]) -> list[str]:
    """Return the names of the callbacks of an ended task, and check how they were made."""
    names = []
    for callback in await engine.list(limit=1_000):
        first = (await engine.history(callback.id))[0]
        if first.actor == f"callback:{handle.id}":
            names.append(callback.name)
            end = callback.arguments[0][0]
            ended = await engine.get(handle.id)
            assert (end["id"], end["name"], end["state"]) == (ended.id, ended.name, ended.state.value)
            assert end["attempt"] == ended.attempt
    return sorted(names)


# --- every kind of end ------------------------------------------------------------------------------------------


async def test_a_task_that_succeeds_calls_success_and_settled_with_its_value(store: Store) -> None:
    ends: list[TaskEnd] = []

    async def note(end: TaskEnd) -> None:
        ends.append(end)

    async with Engine(store, tasks=[add, note, failed, settled]) as engine:
        handle = await engine.submit(
            add.bind(2, 3),
            on_success="note",
            on_failure=failed,
            on_settled=settled,
            label="sum",
            metadata={"who": "anna"},
        )
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
            assert await engine.drain()
        assert await called(engine, handle) == ["note", "settled"]
        assert (await handle.task()).callbacks == {"success": "note", "failure": "failed", "settled": "settled"}
    (end,) = ends
    assert (end.id, end.name, end.state, end.attempt, end.value) == (handle.id, "add", "succeeded", 1, 5)
    assert (end.failure, end.label, end.metadata) == (None, "sum", {"who": "anna"})


async def test_a_task_that_fails_for_good_calls_failure_and_settled_once(store: Store) -> None:
    ends: list[TaskEnd] = []

    async def note(end: TaskEnd) -> None:
        ends.append(end)

    async with Engine(store, tasks=[fail_until, note, won]) as engine:
        handle = await engine.submit(fail_until.bind(9), on_success=won, on_failure="note", on_settled="note")
        with anyio.fail_after(30):
            assert (await handle.wait()).state is State.FAILED
            assert await engine.drain()
        assert await called(engine, handle) == ["note", "note"]
    for end in ends:
        assert (end.state, end.attempt, end.value) == ("failed", 3, None)
        assert end.failure is not None
        assert (end.failure["kind"], end.failure["message"]) == ("exception", "attempt 3 fails")


async def test_waiting_tasks_that_are_ended_call_back_too(store: Store) -> None:
    async with Engine(store, tasks=BODIES) as engine:
        cancelled = await engine.submit(add.bind(1), delay=3600, **ALL)
        stopped = await engine.submit(add.bind(1), delay=3600, **ALL)
        late = await engine.submit(add.bind(1), delay=3600, timeout=Timeouts(total=0.1), **ALL)
        await engine.hold(name="add")
        unbegun = await engine.submit(add.bind(1), timeout=Timeouts(start=0.1), **ALL)
        await cancelled.cancel()
        await stopped.stop()
        with anyio.fail_after(30):
            assert (await late.wait()).state is State.FAILED
            assert (await unbegun.wait()).state is State.FAILED
            assert await engine.drain()
        assert await called(engine, cancelled) == ["settled"]
        assert await called(engine, stopped) == ["settled"]
        assert await called(engine, late) == ["failed", "settled"]
        assert await called(engine, unbegun) == ["failed", "settled"]


async def test_bodies_that_are_ended_call_back_too(store: Store, go: Sign) -> None:
    async def pointless(ctx: TaskContext) -> None:
        ctx.discard("no use")

    async with Engine(store, tasks=[*BODIES, pointless], stop_grace=0.1) as engine:
        cancelled, stopped = [await engine.submit(stay_on_loop.bind(go.path), **ALL) for _ in range(2)]
        timed = await engine.submit(sleep_long.bind(), timeout=0.1, retry=ONCE, **ALL)
        discarded = await engine.submit(TaskCall.of("pointless"), **ALL)
        await reach(engine, cancelled, State.RUNNING)
        await reach(engine, stopped, State.RUNNING)
        assert (await cancelled.cancel()).state is State.CANCELLED
        assert (await stopped.stop()).state is State.STOPPED
        with anyio.fail_after(30):
            assert await engine.drain()
        assert await called(engine, cancelled) == ["settled"]
        assert await called(engine, stopped) == ["settled"]
        assert await called(engine, timed) == ["failed", "settled"]
        assert await called(engine, discarded) == ["failed", "settled"]


async def test_a_lost_body_calls_failure(store: Store) -> None:
    release = anyio.Event()

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            while not release.is_set():
                try:
                    await release.wait()
                except BaseException:
                    continue

    async with Engine(store, tasks=[*BODIES, stubborn], kill_grace=0.1) as engine:
        handle = await engine.submit(TaskCall.of("stubborn"), **ALL)
        await reach(engine, handle, State.RUNNING)
        assert (await handle.cancel()).state is State.LOST
        release.set()
        with anyio.fail_after(30):
            assert await engine.drain()
        assert await called(engine, handle) == ["failed", "settled"]


async def test_a_task_that_recovery_gives_up_calls_failure(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        handle = await client.submit(
            TaskCall.of("say_and_sleep"), recover="lost", on_failure="note_end", on_success="note_end"
        )
        with worker(path, "asyncio") as process:
            await hear(process, "begun 1")
            process.send_signal(signal.SIGKILL)
            process.wait()
        with worker(path, "asyncio") as process:
            await hear(process, "noted lost")
        assert await called(client, handle) == ["note_end"]
    check(path)


# --- with the end, in one transaction ---------------------------------------------------------------------------


async def test_a_callback_is_stored_in_the_transaction_of_the_end(store: Store) -> None:
    """Whoever hears of the end finds the callback."""
    async with Engine(store, tasks=BODIES, concurrency=10) as engine:
        await engine.hold(name="settled")
        handles = [await engine.submit(add.bind(n), on_settled=settled) for n in range(20)]
        for handle in handles:
            with anyio.fail_after(30):
                await handle.wait()
            assert await called(engine, handle) == ["settled"]
        positions = {}
        for made in await engine.list(name="settled"):
            first = (await engine.history(made.id))[0]
            positions[first.actor] = first.position
        for handle in handles:
            last = (await handle.history())[-1]
            assert last.position < positions[f"callback:{handle.id}"]


async def test_callbacks_survive_a_restart(store: Store) -> None:
    async with Engine(store, tasks=[add, settled]) as engine:
        await engine.hold(name="settled")
        handle = await engine.submit(add.bind(1), on_settled=settled)
        with anyio.fail_after(30):
            await handle.wait()
    async with Engine(same_store(store), tasks=[settled]) as engine:
        await engine.release(name="settled")
        with anyio.fail_after(30):
            assert await engine.drain()
        assert (await engine.list(name="settled"))[0].state is State.SUCCEEDED


async def test_callbacks_survive_kill_9_right_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        await client.hold(name="note_end")
        with worker(path, "trio") as process:
            await hear(process, "ready")
            handle = await client.submit(TaskCall.of("add", 1), on_settled="note_end")
            with anyio.fail_after(30):
                await handle.wait()
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert await called(client, handle) == ["note_end"]
        await client.release(name="note_end")
        with worker(path, "asyncio") as process:
            await hear(process, "noted succeeded")
    check(path)


# --- no say in the end ------------------------------------------------------------------------------------------


async def test_a_callback_that_fails_changes_nothing(store: Store) -> None:
    async def broken(end: TaskEnd) -> None:
        raise RuntimeError("broken")

    async with Engine(store, tasks=[add]) as engine:
        engine.register("broken", broken, retry=ONCE)
        handle = await engine.submit(add.bind(1), on_success="broken")
        with anyio.fail_after(30):
            assert await engine.drain()
        assert (await handle.task()).state is State.SUCCEEDED
        assert (await handle.history())[-1].trigger is Trigger.EXECUTOR_COMPLETED
        (callback,) = await engine.list(name="broken")
        assert callback.state is State.FAILED


async def test_a_callback_has_no_callbacks_so_that_no_chain_is_endless(store: Store) -> None:
    times = 0

    async def again(end: TaskEnd) -> None:
        nonlocal times
        times += 1

    async with Engine(store, tasks=[add]) as engine:
        engine.register("again", again, on_settled="again")
        handle = await engine.submit(add.bind(1), on_settled="again")
        with anyio.fail_after(30):
            await handle.wait()
            assert await engine.drain()
    assert times == 1


async def test_a_callback_is_not_refused_by_max_pending(store: Store) -> None:
    async with Engine(store, tasks=[add, settled], max_pending=3) as engine:
        await engine.hold(name="settled")
        handles = []
        for n in range(3):
            handles.append(await engine.submit(add.bind(n), on_settled=settled))
            with anyio.fail_after(30):
                await handles[-1].wait()
        with pytest.raises(QueueFull):
            await engine.submit(add.bind(9))
        assert len(await engine.list(name="settled")) == 3


async def test_a_callback_takes_the_timeouts_of_its_definition(store: Store) -> None:
    async def slow(end: TaskEnd) -> None:
        await anyio.sleep(3600)

    async with Engine(store, tasks=[add], shutdown_grace=0) as engine:
        engine.register("slow_attempt", slow, timeout=Timeouts(attempt=0.1), max_attempts=1)
        engine.register("slow_total", slow, timeout=Timeouts(total=0.5))
        await engine.submit(add.bind(1), on_success="slow_attempt", on_settled="slow_total")
        kinds = {}
        with anyio.move_on_after(5):
            async for event in engine.events(after=0):
                if event.failure is not None:
                    kinds[event.name] = event.failure.kind.value
                if len(kinds) == 2:
                    break
    assert kinds == {"slow_attempt": "timeout_attempt", "slow_total": "timeout_total"}


async def test_a_callback_keeps_the_start_timeout_of_its_definition(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        engine.register("prompt", settled.definition.function, timeout=Timeouts(start=0.2))
        await engine.hold(name="prompt")
        await engine.submit(add.bind(1), on_success="prompt")
        with anyio.move_on_after(5):
            async for event in engine.events(after=0):
                if event.name == "prompt" and event.target is State.FAILED:
                    break
        (callback,) = await engine.list(name="prompt")
        assert callback.state is State.FAILED


# --- who may be named -------------------------------------------------------------------------------------------


async def test_names_that_are_not_known_are_refused_at_the_submit(store: Store) -> None:
    async def alone() -> None:
        """Takes no TaskEnd."""

    async with Engine(store, tasks=[add, settled, alone]) as engine:
        for option in ("on_success", "on_failure", "on_settled"):
            with pytest.raises(UnknownTask):
                await engine.submit(add.bind(1), **{option: "nobody"})  # type: ignore[arg-type]
            with pytest.raises(InvalidOption):
                await engine.submit(add.bind(1), **{option: 5})  # type: ignore[arg-type]
            with pytest.raises(InvalidOption):
                await engine.submit(add.bind(1), **{option: "alone"})  # type: ignore[arg-type]
        assert len(await engine.list()) == 0


async def test_a_client_may_name_what_others_know(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", 1), on_success="settled")
    async with Engine(same_store(store), tasks=[add, settled]) as engine:
        with anyio.fail_after(30):
            assert await engine.drain()
            assert (await (await engine.handle(handle.id)).wait()).ok
            assert await engine.drain()
        assert (await engine.list(name="settled"))[0].state is State.SUCCEEDED


async def test_a_callback_that_nobody_knows_any_more_does_not_keep_the_task_from_ending(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", 1), on_success="long_gone")
    async with Engine(same_store(store), tasks=[add]) as engine:
        with anyio.fail_after(30):
            assert (await (await engine.handle(handle.id)).wait()).ok
        (callback,) = await engine.list(name="long_gone")
        assert callback.state is State.QUEUED
        assert (await engine.explain(callback.id)).code == "unknown_name"


async def test_a_requeued_task_calls_back_again(store: Store) -> None:
    async with Engine(store, tasks=[fail_until, failed]) as engine:
        handle = await engine.submit(fail_until.bind(9), on_failure=failed)
        with anyio.fail_after(30):
            await handle.wait()
            await (await engine.requeue(handle)).wait()
            assert await engine.drain()
        assert len(await engine.list(name="failed")) == 2
