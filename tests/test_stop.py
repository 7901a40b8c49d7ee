"""Stopping tasks in every state and executor, one and many, and every race with their own end."""

import threading
from random import Random

import anyio
import anyio.lowlevel
import pytest

from taskengine import (
    Engine,
    InvalidOption,
    State,
    TaskCall,
    TaskContext,
    TaskNotFound,
    TaskStopped,
    Trigger,
)
from taskengine.ports import Store
from tests.bodies import STAYING, STEPPING, Sign, add, fail_until, reach, sleep_long, step_on_loop
from tests.controlled import EVERYWHERE, PLACES, SLOWLY, staying, stepping

# --- stop -------------------------------------------------------------------------------------------------------


@EVERYWHERE
async def test_a_stop_is_answered_at_the_next_checkpoint(store: Store, executor: str, go: Sign) -> None:
    call = stepping(executor, go)
    async with Engine(store, tasks=[STEPPING[executor]], stop_grace=3600, shutdown_grace=0) as engine:
        handle = await engine.submit(call)
        await reach(engine, handle, State.RUNNING)
        with anyio.fail_after(20):
            ended = await engine.stop(handle, reason="enough", actor="anna")
        assert (ended.state, ended.failure, ended.result, ended.attempt) == (State.STOPPED, None, None, 1)
        assert ended.wish is not None
        assert (ended.wish.actor, ended.wish.reason) == ("anna", "enough")
        asked, done = (await handle.history())[-2:]
        assert (asked.trigger, asked.actor, asked.reason) == (Trigger.USER_STOP, "anna", "enough")
        assert (done.trigger, done.actor, done.reason) == (Trigger.RUNTIME_STOP_DONE, "anna", "enough")


async def test_a_body_is_told_why_it_is_to_stop(store: Store) -> None:
    told: list[str] = []

    async def listen(ctx: TaskContext) -> None:
        try:
            while True:
                assert not ctx.is_stop_requested
                await ctx.acheckpoint()
        except TaskStopped as stopped:
            told.append(str(stopped))
            assert ctx.is_stop_requested
            raise

    async with Engine(store, tasks=[listen], shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("listen"))
        await reach(engine, handle, State.RUNNING)
        assert (await handle.stop(reason="the disk is full")).state is State.STOPPED
    assert told == ["the disk is full"]


async def test_except_exception_does_not_swallow_a_stop(store: Store) -> None:
    async def careless(ctx: TaskContext) -> None:
        while True:
            try:
                await ctx.acheckpoint()
            except Exception:
                continue

    async with Engine(store, tasks=[careless], stop_grace=3600, shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("careless"))
        await reach(engine, handle, State.RUNNING)
        with anyio.fail_after(20):
            assert (await handle.stop()).state is State.STOPPED


@pytest.mark.parametrize(("store", "executor"), [PLACES[0], PLACES[1], PLACES[3]], indirect=["store"])
async def test_a_stop_uses_force_after_the_grace(store: Store, executor: str, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING[executor]], stop_grace=0.3, kill_grace=30, shutdown_grace=0) as engine:
        handle = await engine.submit(staying(executor, go))
        await reach(engine, handle, State.RUNNING)
        begin = anyio.current_time()
        ended = await handle.stop(reason="now")
        assert ended.state is State.STOPPED
        assert 0.29 <= anyio.current_time() - begin < 20


async def test_a_thread_that_does_not_listen_is_lost_after_both_graces(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING["thread"]], stop_grace=0.1, kill_grace=0.1, shutdown_grace=0) as engine:
        handle = await engine.submit(staying("thread", go))
        await reach(engine, handle, State.RUNNING)
        ended = await handle.stop()
        assert ended.state is State.LOST
        go.give()
    assert ended.wish is not None


async def test_a_body_that_takes_no_context_is_ended_by_force_at_once(store: Store) -> None:
    async with Engine(store, tasks=[sleep_long], stop_grace=3600, shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_long.bind())
        await reach(engine, handle, State.RUNNING)
        with anyio.fail_after(20):
            assert (await handle.stop()).state is State.STOPPED


async def test_a_thread_that_takes_no_context_has_the_time_of_force_to_return(store: Store) -> None:
    release = threading.Event()

    def wait() -> str:
        release.wait()
        return "returned"

    async with Engine(store, tasks=[wait], stop_grace=3600, kill_grace=60, shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("wait"))
        await reach(engine, handle, State.RUNNING)
        assert (await handle.stop(timeout=0)).state is State.STOPPING
        release.set()
        assert (await handle.wait()).value == "returned"


async def test_waiting_tasks_are_stopped_at_once_in_every_state(store: Store) -> None:
    async with Engine(store, tasks=[fail_until], shutdown_grace=0) as engine:
        retrying = await engine.submit(fail_until.bind(9), retry=SLOWLY)
        await reach(engine, retrying, State.RETRY_WAIT)
        scheduled = await engine.submit(fail_until.bind(1), delay=3600)
        await engine.hold(name="fail_until")
        queued = await engine.submit(fail_until.bind(1))
        held = await engine.submit(fail_until.bind(1), delay=3600)
        assert await held.pause()
        for handle in (retrying, scheduled, queued, held):
            ended = await engine.stop(handle, reason="no use", actor="anna")
            assert (ended.state, ended.held) == (State.STOPPED, None)
            last = (await handle.history())[-1]
            assert (last.trigger, last.actor, last.reason) == (Trigger.USER_STOP, "anna", "no use")


async def test_a_claimed_task_that_has_not_begun_is_stopped_and_never_begins(store: Store) -> None:
    begun: list[int] = []

    async def note(n: int) -> None:
        begun.append(n)
        await anyio.sleep(3600)

    async with Engine(store, tasks=[note, add], concurrency=1, shutdown_grace=0) as engine:
        assert await engine.wait_all(await engine.submit_many([add.bind(n) for n in range(30)]), timeout=30)
        one, two = await engine.submit_many([TaskCall.of("note", n) for n in range(2)])
        await reach(engine, one, State.RUNNING)
        assert (await two.stop()).state is State.STOPPED
    assert begun == [0]


async def test_a_cancel_after_a_stop_does_not_wait_for_the_grace(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING["loop"]], stop_grace=3600, shutdown_grace=0) as engine:
        handle = await engine.submit(staying("loop", go))
        await reach(engine, handle, State.RUNNING)
        assert (await engine.stop(handle, actor="anna", timeout=0)).state is State.STOPPING
        with anyio.fail_after(20):
            ended = await engine.cancel(handle, actor="bert", reason="at once")
        assert ended.state is State.CANCELLED
        last = (await handle.history())[-1]
        assert (last.actor, last.reason) == ("bert", "at once")


async def test_a_stop_after_a_cancel_changes_nothing(store: Store) -> None:
    release = anyio.Event()

    async def stubborn() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()

    async with Engine(store, tasks=[stubborn], kill_grace=60, shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("stubborn"))
        await reach(engine, handle, State.RUNNING)
        assert (await engine.cancel(handle, actor="anna", timeout=0)).state is State.STOPPING
        assert (await engine.stop(handle, actor="bert", timeout=0)).state is State.STOPPING
        release.set()
        await handle.wait()
        ended = await handle.task()
    assert ended.state is State.CANCELLED
    assert ended.wish is not None
    assert ended.wish.actor == "anna"


async def test_a_value_that_is_returned_after_the_stop_wins(store: Store) -> None:
    async def salvage(ctx: TaskContext) -> str:
        try:
            while True:
                await ctx.acheckpoint()
        except TaskStopped:
            return "half"

    async with Engine(store, tasks=[salvage], shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("salvage"))
        await reach(engine, handle, State.RUNNING)
        ended = await handle.stop()
    assert (ended.state, ended.result) == (State.SUCCEEDED, "half")


async def test_a_body_that_raises_when_stopped_ends_stopped_with_its_error_noted(store: Store) -> None:
    async def clumsy(ctx: TaskContext) -> None:
        try:
            while True:
                await ctx.acheckpoint()
        except TaskStopped:
            raise ValueError("while tidying up") from None

    async with Engine(store, tasks=[clumsy], shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("clumsy"))
        await reach(engine, handle, State.RUNNING)
        ended = await handle.stop()
    assert ended.state is State.STOPPED
    assert ended.failure is not None
    assert ended.failure.message == "while tidying up"


async def test_a_stop_that_leaves_through_a_task_group_is_no_error(store: Store) -> None:
    async def grouped(ctx: TaskContext) -> None:
        async def step() -> None:
            while True:
                await ctx.acheckpoint()

        async with anyio.create_task_group() as tg:
            tg.start_soon(step)
            tg.start_soon(step)

    async with Engine(store, tasks=[grouped], shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("grouped"))
        await reach(engine, handle, State.RUNNING)
        ended = await handle.stop()
    assert (ended.state, ended.failure) == (State.STOPPED, None)


async def test_stop_racing_with_completion_always_agrees_with_the_row(store: Store) -> None:
    random = Random(11)

    async def brief(ctx: TaskContext, steps: int) -> int:
        for _ in range(steps):
            await ctx.acheckpoint()
        return steps

    async with Engine(store, tasks=[brief], concurrency=20, shutdown_grace=0) as engine:
        seen: dict[str, State] = {}

        async def race() -> None:
            handle = await engine.submit(TaskCall.of("brief", random.randrange(40)))
            for _ in range(random.randrange(60)):
                await anyio.lowlevel.checkpoint()
            ended = await handle.stop()
            seen[handle.id] = ended.state
            assert (ended.result is not None) == (ended.state is State.SUCCEEDED)

        for _ in range(4):
            async with anyio.create_task_group() as tg:
                for _ in range(50):
                    tg.start_soon(race)
        assert len(seen) == 200
        for task_id, state in seen.items():
            assert (await engine.get(task_id)).state is state
    assert set(seen.values()) <= {State.SUCCEEDED, State.STOPPED}


async def test_requests_about_nobody_are_refused(store: Store) -> None:
    async with Engine(store, tasks=[add], shutdown_grace=0) as engine:
        for ask in (engine.stop, engine.cancel, engine.pause, engine.resume, engine.explain):
            with pytest.raises(TaskNotFound):
                await ask("nobody")
        handle = await engine.submit(add.bind(1))
        await handle.wait()
        before = await handle.task()
        assert await handle.stop() == before
        assert not await handle.pause()
        assert not await handle.resume()
        assert await handle.task() == before


# --- many -------------------------------------------------------------------------------------------------------


async def test_many_are_asked_by_filter_and_counted(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[step_on_loop, add], shutdown_grace=0) as engine:
        bodies = await engine.submit_many([stepping("loop", go)] * 3)
        for handle in bodies:
            await reach(engine, handle, State.RUNNING)
        waiting = [await engine.submit(add.bind(n), delay=3600, tags=["nightly"]) for n in range(4)]
        done = await engine.submit(add.bind(1), tags=["nightly"])
        await done.wait()

        assert await engine.pause_many(name="step_on_loop") == 3
        for handle in bodies:
            await reach(engine, handle, State.PAUSED)
        assert await engine.pause_many(tag="nightly") == 4
        assert await engine.pause_many(tag="nightly") == 0
        assert len(await engine.list(held=True)) == 4
        assert await engine.resume_many(states=["paused", "scheduled"]) == 7
        assert len(await engine.list(held=True)) == 0

        assert await engine.stop_many(ids=[waiting[0], done]) == 1
        assert await engine.cancel_many(tag="nightly", states="scheduled") == 3
        assert await engine.stop_many(name="step_on_loop", reason="enough", actor="anna") == 3
        assert await engine.wait_all(bodies, timeout=30)
        for handle in bodies:
            task = await handle.task()
            assert task.state is State.STOPPED
            assert task.wish is not None
            assert (task.wish.actor, task.wish.reason) == ("anna", "enough")
        assert [(await handle.task()).state for handle in waiting] == [State.STOPPED, *[State.CANCELLED] * 3]


async def test_more_than_a_chunk_are_asked(store: Store) -> None:
    async with Engine(store) as client:
        await client.submit_many([TaskCall.of("nobody", n) for n in range(1_203)])
        assert await client.pause_many(name="nobody") == 1_203
        assert await client.resume_many(held=True) == 1_203
        assert await client.cancel_many(name="nobody") == 1_203
        assert (await client.stats()).by_state["cancelled"] == 1_203


async def test_an_empty_filter_is_refused_and_an_empty_list_matches_nothing(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("nobody"))
        for ask in (client.cancel_many, client.stop_many, client.pause_many, client.resume_many):
            with pytest.raises(InvalidOption):
                await ask()
            with pytest.raises(InvalidOption):
                await ask(name=None, tag=None)  # type: ignore[arg-type]
            with pytest.raises(InvalidOption):
                await ask(lable="x")  # type: ignore[call-arg]  # that is the fault to be shown
            with pytest.raises(InvalidOption):
                await ask(states=["waiting"])
            assert await ask(ids=[]) == 0
            assert await ask(states=[]) == 0
        task = await handle.task()
        assert (task.state, task.held) == (State.QUEUED, None)
