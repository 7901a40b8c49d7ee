"""Pausing and resuming tasks in every state and executor, and every race with their own end."""

import threading
from random import Random

import anyio
import anyio.lowlevel
import pytest

from taskengine import (
    Engine,
    RetryPolicy,
    State,
    TaskCall,
    TaskContext,
    Timeouts,
    Trigger,
)
from taskengine.core.lifecycle import FINAL
from taskengine.ports import Store
from tests.bodies import STAYING, STEPPING, Sign, add, fail_until, reach, same_store, sleep_long, step_on_loop
from tests.controlled import EVERYWHERE, HERE, JumpingClock, staying, stepping

# --- pause and resume of bodies ---------------------------------------------------------------------------------


@EVERYWHERE
async def test_a_paused_body_stands_still_and_goes_on_when_it_is_resumed(store: Store, executor: str, go: Sign) -> None:
    async with Engine(store, tasks=[STEPPING[executor]], shutdown_grace=0, pause_window=15) as engine:
        handle = await engine.submit(stepping(executor, go))
        await reach(engine, handle, State.RUNNING)
        assert await engine.pause(handle, reason="lunch", actor="anna")
        task = await handle.task()
        assert task.state is State.PAUSED
        assert task.wish is not None
        assert (task.wish.actor, task.wish.reason) == ("anna", "lunch")
        stats = await engine.stats()
        assert (stats.slots_paused, stats.slots_used) == (1, 1)
        go.give()  # It would return at its next step.
        with anyio.move_on_after(0.2):
            await handle.wait()
        assert (await handle.task()).state is State.PAUSED
        assert await engine.resume(handle, actor="bert")
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        assert (await engine.stats()).slots_paused == 0
        moves = [(move.trigger, move.actor) for move in await handle.history()]
        assert (Trigger.RUNTIME_PAUSE_REACHED, "engine") in moves
        assert (Trigger.USER_RESUME, "bert") in moves
        assert (await handle.task()).wish is None


@EVERYWHERE
async def test_a_missed_pause_is_taken_back_and_the_next_checkpoint_does_not_block(
    store: Store, executor: str, go: Sign
) -> None:
    async with Engine(store, tasks=[STAYING[executor]], pause_window=0.1, shutdown_grace=0) as engine:
        handle = await engine.submit(staying(executor, go))
        await reach(engine, handle, State.RUNNING)
        assert await handle.pause() is False
        task = await handle.task()
        assert (task.state, task.held, task.wish) == (State.RUNNING, None, None)
        go.give()
        with anyio.fail_after(30):
            assert (await handle.wait()).value == "done"


async def test_a_body_that_takes_no_context_misses_a_pause_at_once(store: Store) -> None:
    async with Engine(store, tasks=[sleep_long], pause_window=3600, shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_long.bind())
        await reach(engine, handle, State.RUNNING)
        with anyio.fail_after(20):
            assert await handle.pause() is False
        assert (await handle.task()).state is State.RUNNING


async def test_a_body_can_be_paused_again_and_again(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[step_on_loop], shutdown_grace=0) as engine:
        handle = await engine.submit(stepping("loop", go))
        await reach(engine, handle, State.RUNNING)
        for _ in range(5):
            assert await handle.pause()
            assert await handle.resume()
        go.give()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


@EVERYWHERE
async def test_a_paused_body_that_is_resumed_and_paused_at_once_is_paused_again(
    store: Store, executor: str, go: Sign
) -> None:
    """Both requests may be stored in one transaction, before the body has noticed either."""
    async with Engine(store, tasks=[STEPPING[executor]], pause_window=3, shutdown_grace=0) as engine:
        handle = await engine.submit(stepping(executor, go))
        await reach(engine, handle, State.RUNNING)
        answers: list[bool] = []

        async def pause() -> None:
            answers.append(await handle.pause())

        assert await handle.pause()
        for _ in range(5):
            async with anyio.create_task_group() as tg:
                tg.start_soon(handle.resume)
                tg.start_soon(pause)
            asked = [m.trigger for m in await handle.history() if m.trigger.value.startswith("user:")]
            if asked[-1] is Trigger.USER_RESUME:  # It was asked to pause first, and was paused already.
                assert await handle.pause()
            assert (await handle.task()).state is State.PAUSED
        assert answers == [True] * 5
        go.give()
        assert await handle.resume()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_pausing_twice_is_one_pause(store: Store, go: Sign) -> None:
    answers: list[bool] = []
    async with Engine(store, tasks=[step_on_loop], shutdown_grace=0) as engine:
        handle = await engine.submit(stepping("loop", go))
        await reach(engine, handle, State.RUNNING)

        async def pause() -> None:
            answers.append(await handle.pause())

        async with anyio.create_task_group() as tg:
            tg.start_soon(pause)
            tg.start_soon(pause)
        answers.append(await handle.pause())
        assert answers == [True, True, True]
        paused = [move for move in await handle.history() if move.target is State.PAUSED]
        assert len(paused) == 1
        assert await handle.resume()
        assert (await handle.task()).state is State.RUNNING


async def test_resuming_what_is_not_paused_is_fine_and_changes_nothing(store: Store) -> None:
    async with Engine(store, tasks=[sleep_long], shutdown_grace=0) as engine:
        running = await engine.submit(sleep_long.bind())
        later = await engine.submit(sleep_long.bind(), delay=3600)
        await reach(engine, running, State.RUNNING)
        for handle in (running, later):
            before = await handle.task()
            assert await handle.resume()
            assert await handle.task() == before


async def test_resume_before_the_checkpoint_takes_the_pause_back(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING["loop"]], pause_window=15, shutdown_grace=0) as engine:
        handle = await engine.submit(staying("loop", go))
        await reach(engine, handle, State.RUNNING)
        answers: list[bool] = []
        async with anyio.create_task_group() as tg:

            async def pause() -> None:
                answers.append(await handle.pause())

            tg.start_soon(pause)
            await reach(engine, handle, State.PAUSING)
            assert await handle.resume()
        assert answers == [False]
        go.give()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


@EVERYWHERE
async def test_a_paused_body_can_be_ended(store: Store, executor: str, go: Sign) -> None:
    async with Engine(store, tasks=[STEPPING[executor]], stop_grace=3600, pause_window=15, shutdown_grace=0) as engine:
        stopped, cancelled = await engine.submit_many([stepping(executor, go)] * 2)
        for handle in (stopped, cancelled):
            await reach(engine, handle, State.RUNNING)
            assert await handle.pause()
        with anyio.fail_after(20):
            assert (await stopped.stop()).state is State.STOPPED
            assert (await cancelled.cancel()).state is State.CANCELLED
        assert (await engine.stats()).slots_paused == 0


async def test_a_stop_overtakes_a_pause_that_is_not_reached_yet(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING["loop"]], pause_window=15, stop_grace=60, shutdown_grace=0) as engine:
        handle = await engine.submit(staying("loop", go))
        await reach(engine, handle, State.RUNNING)
        answers: list[bool] = []
        async with anyio.create_task_group() as tg:

            async def pause() -> None:
                answers.append(await handle.pause())

            tg.start_soon(pause)
            await reach(engine, handle, State.PAUSING)
            assert (await handle.stop(timeout=0)).state is State.STOPPING
            assert not await handle.pause()
            assert not await handle.resume()
            go.give()
            with anyio.fail_after(30):
                await handle.wait()
        assert answers == [False]
        assert (await handle.task()).state is State.STOPPED


async def test_a_paused_body_keeps_its_slot(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[step_on_loop, add], concurrency=1, shutdown_grace=0) as engine:
        handle = await engine.submit(stepping("loop", go))
        await reach(engine, handle, State.RUNNING)
        assert await handle.pause()
        other = await engine.submit(add.bind(1))
        with anyio.move_on_after(0.2):
            await other.wait()
        assert (await other.task()).started_at is None
        go.give()
        assert await handle.resume()
        with anyio.fail_after(30):
            assert (await other.wait()).value == 1


@HERE
async def test_attempt_and_idle_clocks_stand_still_while_a_body_is_paused(
    store: Store, executor: str, go: Sign
) -> None:
    clock = JumpingClock()
    async with Engine(store, tasks=[STEPPING[executor]], clock=clock, pause_window=15, shutdown_grace=0) as engine:
        handle = await engine.submit(stepping(executor, go), timeout=Timeouts(attempt=100, idle=100))
        await reach(engine, handle, State.RUNNING)
        for _ in range(3):
            assert await handle.pause()
            clock.ahead += 1000
            assert await handle.resume()
        assert await handle.pause()  # It comes to checkpoints, so it was not timed out.
        go.give()
        assert await handle.resume()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_the_total_clock_runs_while_a_body_is_paused(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[step_on_loop], stop_grace=60, shutdown_grace=0) as engine:
        handle = await engine.submit(stepping("loop", go), timeout=Timeouts(total=1.5))
        await reach(engine, handle, State.RUNNING)
        assert await handle.pause()
        with anyio.fail_after(30):
            outcome = await handle.wait()
    assert outcome.state is State.FAILED
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout_total"


# --- a body that ends while it is to pause ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["value", "failure", "retry", "snooze"])
async def test_a_pause_of_a_body_that_ends_first_holds_what_goes_on(store: Store, end: str) -> None:
    release = anyio.Event()

    async def ends(ctx: TaskContext, end: str) -> str:
        await release.wait()
        if end == "snooze":
            ctx.snooze(0)
        if end != "value":
            raise ValueError(end)
        return end

    attempts = 1 if end == "failure" else 3
    async with Engine(store, tasks=[ends], pause_window=15, shutdown_grace=0) as engine:
        retry = RetryPolicy(base=0, cap=0, max_attempts=attempts)
        handle = await engine.submit(TaskCall.of("ends", end), retry=retry)
        await reach(engine, handle, State.RUNNING)
        answers: list[bool] = []
        async with anyio.create_task_group() as tg:

            async def pause() -> None:
                answers.append(await engine.pause(handle, actor="anna", reason="lunch"))

            tg.start_soon(pause)
            await reach(engine, handle, State.PAUSING)
            release.set()
        task = await handle.task()
        if end in ("value", "failure"):
            assert answers == [False]
            assert task.state is (State.SUCCEEDED if end == "value" else State.FAILED)
            assert task.held is None
        else:
            assert answers == [True]
            assert task.state in (State.RETRY_WAIT, State.SCHEDULED, State.QUEUED)
            assert task.held is not None
            assert (task.held.actor, task.held.reason) == ("anna", "lunch")
            await reach(engine, handle, State.QUEUED)
            with anyio.move_on_after(0.1):
                await handle.wait()
            assert (await handle.task()).attempt == 1
            assert await handle.resume()
            await reach(engine, handle, State.STARTING)
            assert (await handle.stop()).is_final


async def test_pause_racing_with_completion_is_never_a_lie(store: Store) -> None:
    """True means that it is paused or held, False that it has ended or goes on."""
    random = Random(5)

    async def brief(ctx: TaskContext, steps: int) -> int:
        for _ in range(steps):
            await ctx.acheckpoint()
        return steps

    async with Engine(store, tasks=[brief], concurrency=20, pause_window=15, shutdown_grace=0) as engine:
        count = 0

        async def race() -> None:
            nonlocal count
            handle = await engine.submit(TaskCall.of("brief", random.randrange(40)))
            for _ in range(random.randrange(60)):
                await anyio.lowlevel.checkpoint()
            answer = await handle.pause()
            task = await handle.task()
            assert answer == (task.state is State.PAUSED or task.held is not None), (answer, task.state)
            if not answer:
                assert task.state in FINAL
            count += answer
            await handle.resume()
            with anyio.fail_after(60):
                assert (await handle.wait()).ok

        for _ in range(4):
            async with anyio.create_task_group() as tg:
                for _ in range(50):
                    tg.start_soon(race)
    assert count


# --- pause of tasks without a body ------------------------------------------------------------------------------


async def test_paused_waiting_tasks_do_not_run_until_resumed_also_after_a_restart(store: Store) -> None:
    async with Engine(store, tasks=[add, fail_until], shutdown_grace=0) as engine:
        retrying = await engine.submit(fail_until.bind(2), retry=RetryPolicy(base=1.0, cap=1.0, jitter=0))
        await reach(engine, retrying, State.RETRY_WAIT)
        assert await engine.pause(retrying, actor="anna", reason="look first")
        scheduled = await engine.submit(add.bind(1), delay=1.0)
        assert await scheduled.pause()
    async with Engine(same_store(store)) as client:
        queued = await client.submit(add.bind(2))
        assert await queued.pause()
    async with Engine(same_store(store), tasks=[add, fail_until], shutdown_grace=0) as engine:
        for handle in (retrying, scheduled, queued):
            await reach(engine, handle, State.QUEUED)  # Time goes on, and they are passed over.
        last = await engine.submit(add.bind(3))
        with anyio.fail_after(30):
            assert (await last.wait()).ok
        for handle, attempts in ((retrying, 1), (scheduled, 0), (queued, 0)):
            task = await engine.get(handle)
            assert (task.state, task.attempt) == (State.QUEUED, attempts)
            assert task.held is not None
        held = (await engine.get(retrying)).held
        assert held is not None
        assert (held.actor, held.reason, held.by, held.until) == ("anna", "look first", None, None)
        for handle in (retrying, scheduled, queued):
            assert await engine.resume(handle)
        with anyio.fail_after(30):
            for handle in (retrying, scheduled, queued):
                assert (await (await engine.handle(handle)).wait()).ok


async def test_a_claimed_task_that_has_not_begun_is_held_when_it_is_paused(store: Store, go: Sign) -> None:
    begun: list[int] = []

    async def note(n: int) -> None:
        begun.append(n)

    async with Engine(store, tasks=[note, STAYING["loop"]], concurrency=1, shutdown_grace=0) as engine:
        assert await engine.wait_all(await engine.submit_many([TaskCall.of("note", 0)] * 30), timeout=30)
        begun.clear()
        first = await engine.submit(staying("loop", go))
        second, third = await engine.submit_many([TaskCall.of("note", n) for n in (1, 2)])
        await reach(engine, first, State.RUNNING)
        assert await second.pause()
        go.give()
        with anyio.fail_after(30):
            assert (await third.wait()).ok
        task = await second.task()
        assert (task.state, task.charged) == (State.QUEUED, 0)
        assert task.held is not None
        assert begun == [2]
        assert await second.resume()
        with anyio.fail_after(30):
            assert (await second.wait()).ok
    assert begun == [2, 1]


async def test_a_pause_taken_back_before_the_claim_is_given_back_loses_nothing(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[add, STAYING["loop"]], concurrency=1, shutdown_grace=0) as engine:
        assert await engine.wait_all(await engine.submit_many([add.bind(0)] * 30), timeout=30)
        first = await engine.submit(staying("loop", go))
        rest = await engine.submit_many([add.bind(n) for n in range(5)])
        await reach(engine, first, State.RUNNING)
        async with anyio.create_task_group() as tg:
            for handle in rest:
                tg.start_soon(handle.pause)
                tg.start_soon(handle.resume)
                tg.start_soon(handle.pause)
                tg.start_soon(handle.resume)
        for handle in rest:
            assert await handle.resume()
        go.give()
        assert await engine.wait_all(rest, timeout=30)


# --- pauses and the engine's end --------------------------------------------------------------------------------


@EVERYWHERE
async def test_leaving_with_a_paused_body_is_quick_and_leaves_it_queued_and_held(
    store: Store, executor: str, go: Sign
) -> None:
    with anyio.fail_after(60):
        async with Engine(store, tasks=[STEPPING[executor]], shutdown_grace=3600, pause_window=15) as engine:
            handle = await engine.submit(stepping(executor, go))
            await reach(engine, handle, State.RUNNING)
            assert await engine.pause(handle, actor="anna", reason="lunch")
    async with Engine(same_store(store), tasks=[STEPPING[executor]], shutdown_grace=0) as engine:
        task = await engine.get(handle.id)
        assert (task.state, task.charged, task.attempt) == (State.QUEUED, 0, 1)
        assert task.held is not None
        assert (task.held.actor, task.held.reason) == ("anna", "lunch")
        go.give()
        assert await engine.resume(handle.id)
        with anyio.fail_after(30):
            assert (await (await engine.handle(handle.id)).wait()).ok


@HERE
async def test_a_pause_that_is_reached_while_the_engine_is_left_does_not_cost_the_grace(
    store: Store, executor: str, go: Sign
) -> None:
    begin = anyio.current_time()
    async with Engine(store, tasks=[STAYING[executor]], shutdown_grace=6, pause_window=3600) as engine:
        handle = await engine.submit(staying(executor, go))
        await reach(engine, handle, State.RUNNING)
        assert await engine.pause_many(ids=[handle]) == 1
        await reach(engine, handle, State.PAUSING)
        threading.Timer(0.3, go.give).start()  # Once the engine has begun to end.
    assert anyio.current_time() - begin < 5
    async with Engine(same_store(store)) as client:
        task = await client.get(handle.id)
    assert task.state is State.QUEUED
    assert task.held is not None


async def test_leaving_while_a_pause_is_not_reached_leaves_it_queued_and_held(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[STAYING["loop"]], shutdown_grace=0, pause_window=3600) as engine:
        handle = await engine.submit(staying("loop", go))
        await reach(engine, handle, State.RUNNING)
        assert await engine.pause_many(ids=[handle], actor="anna") == 1
        await reach(engine, handle, State.PAUSING)
    async with Engine(same_store(store)) as client:
        task = await client.get(handle.id)
    assert (task.state, task.charged) == (State.QUEUED, 0)
    assert task.held is not None
    assert task.held.actor == "anna"
