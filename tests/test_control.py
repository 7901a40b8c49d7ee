"""Stopping, pausing and resuming tasks in every state and executor, and every race with their own end."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import anyio.lowlevel
import pytest

from taskengine import (
    Engine,
    InvalidOption,
    RetryPolicy,
    State,
    TaskCall,
    TaskContext,
    TaskNotFound,
    TaskStopped,
    Timeouts,
    Trigger,
)
from taskengine.clock import SystemClock
from taskengine.core.lifecycle import FINAL
from taskengine.ports import Store
from tests.bodies import STAYING, STEPPING, Sign, add, fail_until, reach, same_store, sleep_long, step_on_loop

PLACES = [("memory", "loop"), ("sqlite", "loop"), ("sqlite", "thread"), ("memory", "process")]
EVERYWHERE = pytest.mark.parametrize(("store", "executor"), PLACES, indirect=["store"])
"""Every executor, and not each of them on each store: starting a child takes most of a test's time."""
HERE = pytest.mark.parametrize(("store", "executor"), PLACES[:3], indirect=["store"])
SLOWLY = RetryPolicy(base=3600, cap=3600, max_attempts=5)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    """The file for which bodies wait; it is there in the end, so that no thread is left waiting."""
    sign = Sign(tmp_path)
    yield sign
    sign.give()


def stepping(executor: str, go: Sign) -> TaskCall[int]:
    return STEPPING[executor].bind(go.path)


def staying(executor: str, go: Sign) -> TaskCall[str]:
    return STAYING[executor].bind(go.path)


class JumpingClock(SystemClock):
    """The machine's clock, ahead by as much as a test says."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


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
