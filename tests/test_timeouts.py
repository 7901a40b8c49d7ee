"""Start, attempt, idle and total timeouts: which ends what, what is tried again, and what cannot be ended."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from taskengine import (
    Engine,
    FailureKind,
    Outcome,
    RetryPolicy,
    State,
    SubmitOptions,
    TaskCall,
    TaskContext,
    Timeouts,
    Trigger,
)
from taskengine.ports import Store
from tests.bodies import (
    Sign,
    add,
    fail_until,
    reach,
    same_store,
    sleep_in_child,
    sleep_long,
    stay_in_child,
    stay_on_loop,
    step_on_loop,
)

ONCE = RetryPolicy(max_attempts=1)
AT_ONCE = RetryPolicy(base=0, cap=0, max_attempts=2)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    sign = Sign(tmp_path)
    yield sign
    sign.give()


def kind_of(outcome: Outcome[object]) -> FailureKind:
    assert outcome.failure is not None
    return outcome.failure.kind


# --- each of the four -------------------------------------------------------------------------------------------


async def test_a_body_that_is_out_of_time_fails_by_the_earliest(store: Store, go: Sign) -> None:
    cases = [
        (Timeouts(attempt=0.1), FailureKind.TIMEOUT_ATTEMPT),
        (Timeouts(idle=0.1), FailureKind.TIMEOUT_IDLE),
        (Timeouts(total=0.5), FailureKind.TIMEOUT_TOTAL),
        (Timeouts(attempt=0.1, idle=30, total=30), FailureKind.TIMEOUT_ATTEMPT),
        (Timeouts(attempt=30, idle=0.1, total=30), FailureKind.TIMEOUT_IDLE),
        (Timeouts(attempt=30, idle=30, total=0.5), FailureKind.TIMEOUT_TOTAL),
    ]
    async with Engine(store, tasks=[stay_on_loop], shutdown_grace=0) as engine:
        handles = [
            await engine.submit(stay_on_loop.bind(go.path), timeout=timeouts, retry=ONCE) for timeouts, _ in cases
        ]
        with anyio.fail_after(30):
            outcomes = [await handle.wait() for handle in handles]
    assert {outcome.state for outcome in outcomes} == {State.FAILED}
    assert [kind_of(outcome) for outcome in outcomes] == [kind for _, kind in cases]


async def test_attempt_and_idle_timeouts_are_retried_unless_they_are_final(store: Store, go: Sign) -> None:
    cases = [
        (Timeouts(attempt=0.05), "timeout_attempt", True),
        (Timeouts(idle=0.05), "timeout_idle", True),
        (Timeouts(attempt=0.05, final=["attempt"]), "timeout_attempt", False),
        (Timeouts(idle=0.05, final=["attempt", "idle"]), "timeout_idle", False),
        (Timeouts(attempt=0.05, final=["idle"]), "timeout_attempt", True),
    ]
    async with Engine(store, tasks=[stay_on_loop], shutdown_grace=0) as engine:
        handles = [
            await engine.submit(stay_on_loop.bind(go.path), timeout=timeouts, retry=AT_ONCE) for timeouts, _, _ in cases
        ]
        for handle, (_, kind, is_retried) in zip(handles, cases, strict=True):
            with anyio.fail_after(30):
                outcome = await handle.wait()
            assert outcome.failure is not None
            assert (outcome.state, outcome.attempt) == (State.FAILED, 2 if is_retried else 1)
            assert (outcome.failure.kind, outcome.failure.retryable) == (kind, is_retried)
            moves = await handle.history()
            assert [m.failure.kind for m in moves if m.failure is not None] == [kind] * outcome.attempt


async def test_a_total_timeout_of_a_body_is_not_retried(store: Store) -> None:
    async with Engine(store, tasks=[sleep_long], shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_long.bind(), timeout=Timeouts(total=0.5), retry=AT_ONCE)
        with anyio.fail_after(30):
            outcome = await handle.wait()
    assert (outcome.state, kind_of(outcome)) == (State.FAILED, FailureKind.TIMEOUT_TOTAL)
    assert outcome.attempt <= 1  # 0 on a machine that took so long to begin it


async def test_a_task_that_nobody_begins_in_time_fails(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[stay_on_loop, add], concurrency=1, shutdown_grace=0) as engine:
        body = await engine.submit(stay_on_loop.bind(go.path))
        await reach(engine, body, State.RUNNING)
        handle = await engine.submit(add.bind(1), timeout=Timeouts(start=0.2), retry=AT_ONCE)
        with anyio.fail_after(30):
            outcome = await handle.wait()
        assert (outcome.state, kind_of(outcome), outcome.attempt) == (State.FAILED, FailureKind.TIMEOUT_START, 0)
        last = (await handle.history())[-1]
        assert last.trigger is Trigger.DEADLINE_START


async def test_a_claimed_task_whose_body_cannot_begin_fails_in_time_too(store: Store, go: Sign) -> None:
    """It waits behind a long one, claimed ahead of a free slot."""
    async with Engine(store, tasks=[stay_on_loop, add], concurrency=1, shutdown_grace=0) as engine:
        assert await engine.wait_all(await engine.submit_many([add.bind(n) for n in range(30)]), timeout=30)
        first = await engine.submit(stay_on_loop.bind(go.path))
        start = await engine.submit(add.bind(1), timeout=Timeouts(start=0.3))
        total = await engine.submit(add.bind(1), timeout=Timeouts(total=0.3))
        await reach(engine, first, State.RUNNING)
        with anyio.fail_after(5):
            assert kind_of(await start.wait()) is FailureKind.TIMEOUT_START
            assert kind_of(await total.wait()) is FailureKind.TIMEOUT_TOTAL
        assert (await first.task()).state is State.RUNNING


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # it has to outlast the limit twice
async def test_the_start_clock_begins_when_the_task_is_due_and_ends_with_the_first_body(store: Store) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        retry = RetryPolicy(base=1.2, cap=1.2, jitter=0, max_attempts=2)
        handle = await engine.submit(fail_until.bind(2), delay=1.2, timeout=Timeouts(start=1.0), retry=retry)
        with anyio.fail_after(30):
            outcome = await handle.wait()
    assert outcome.ok, outcome


async def test_a_hold_stops_no_deadline(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(name="add")
        first = await engine.submit(add.bind(1), timeout=Timeouts(start=0.2))
        second = await engine.submit(add.bind(1), timeout=Timeouts(total=0.2))
        third = await engine.submit(add.bind(1), timeout=Timeouts(total=0.4, start=0.2))
        fourth = await engine.submit(add.bind(1), timeout=Timeouts(total=0.2), delay=3600)
        assert await fourth.pause()
        kinds = []
        with anyio.fail_after(30):
            for handle in (first, second, third, fourth):
                outcome = await handle.wait()
                assert outcome.state is State.FAILED
                kinds.append(kind_of(outcome))
        assert kinds == ["timeout_start", "timeout_total", "timeout_start", "timeout_total"]
        assert (await fourth.task()).held is None


async def test_total_ends_what_waits_for_its_time_or_for_a_retry(store: Store) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        later = await engine.submit(fail_until.bind(1), delay=3600, timeout=Timeouts(total=0.2))
        slow = RetryPolicy(base=3600, cap=3600, max_attempts=3)
        retrying = await engine.submit(fail_until.bind(9), retry=slow, timeout=Timeouts(total=1.0))
        with anyio.fail_after(30):
            for handle, attempts in ((later, 0), (retrying, 1)):
                outcome = await handle.wait()
                assert (outcome.state, outcome.attempt) == (State.FAILED, attempts)
                assert kind_of(outcome) is FailureKind.TIMEOUT_TOTAL
                assert (await handle.history())[-1].trigger is Trigger.DEADLINE_TOTAL


async def test_the_total_clock_goes_on_while_no_engine_runs(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", 1), timeout=Timeouts(total=0.05))
    async with Engine(same_store(store), tasks=[fail_until]) as engine:  # It knows no such task, and ends it.
        with anyio.fail_after(30):
            outcome = await (await engine.handle(handle.id)).wait()
    assert (outcome.state, kind_of(outcome)) == (State.FAILED, FailureKind.TIMEOUT_TOTAL)


async def test_the_timeouts_of_a_definition_hold_for_a_client_that_does_not_know_them(store: Store) -> None:
    async with Engine(store, tasks=[add], shutdown_grace=0) as engine:
        engine.register("slow", sleep_long.definition.function, timeout=Timeouts(attempt=0.1), max_attempts=1)
        engine.register("long", sleep_long.definition.function, timeout=Timeouts(total=0.3))
        async with Engine(same_store(store)) as client:
            slow, long = [await client.submit(TaskCall.of(name)) for name in ("slow", "long")]
            with anyio.fail_after(30):
                assert kind_of(await slow.wait()) is FailureKind.TIMEOUT_ATTEMPT
                assert kind_of(await long.wait()) is FailureKind.TIMEOUT_TOTAL


# --- what the body does with its time ---------------------------------------------------------------------------


async def test_checkpoints_keep_the_idle_clock_away_and_nothing_else_does(store: Store, go: Sign) -> None:
    async def busy(ctx: TaskContext) -> None:
        while True:
            ctx.heartbeat()
            ctx.progress(1)
            ctx.log("still here")
            await anyio.sleep(0.01)

    async with Engine(store, tasks=[step_on_loop, busy], shutdown_grace=0) as engine:
        careful = await engine.submit(step_on_loop.bind(go.path), timeout=Timeouts(idle=5))
        noisy = await engine.submit(TaskCall.of("busy"), timeout=Timeouts(idle=0.3), retry=ONCE)
        with anyio.fail_after(30):
            assert kind_of(await noisy.wait()) is FailureKind.TIMEOUT_IDLE
        assert (await careful.task()).state is State.RUNNING
        go.give()
        with anyio.fail_after(30):
            assert (await careful.wait()).ok


async def test_a_body_can_give_itself_more_time(store: Store) -> None:
    async def longer(ctx: TaskContext) -> None:
        ctx.extend(attempt=3600, idle=3600, total=3600)
        await anyio.sleep(1.2)

    async with Engine(store, tasks=[longer], shutdown_grace=0) as engine:
        limits = Timeouts(attempt=1.0, idle=1.0, total=1.0)
        handle = await engine.submit(TaskCall.of("longer"), timeout=limits, retry=ONCE)
        with anyio.fail_after(30):
            outcome = await handle.wait()
    assert outcome.ok, outcome


async def test_more_time_for_the_whole_task_is_kept_for_its_retries(store: Store) -> None:
    async def longer(ctx: TaskContext) -> float | None:
        if ctx.attempt == 1:
            ctx.extend(total=3600)
            raise ValueError("again")
        return ctx.remaining()

    async with Engine(store, tasks=[longer]) as engine:
        handle = await engine.submit(TaskCall.of("longer"), timeout=Timeouts(total=30), retry=AT_ONCE)
        with anyio.fail_after(25):
            outcome = await handle.wait()
        task = await handle.task()
    assert outcome.ok, outcome
    assert isinstance(outcome.value, float)
    assert 3600 < outcome.value <= 3630
    assert task.deadline_at is not None
    assert abs((task.deadline_at - task.created_at).total_seconds() - 3630) < 0.01


async def test_extending_what_has_no_limit_does_nothing(store: Store) -> None:
    async def longer(ctx: TaskContext) -> float | None:
        ctx.extend(attempt=1, idle=1, total=1)
        return ctx.remaining()

    async with Engine(store, tasks=[longer]) as engine:
        handle = await engine.submit(TaskCall.of("longer"))
        with anyio.fail_after(30):
            assert (await handle.wait()).unwrap() is None
        assert (await handle.task()).deadline_at is None


async def test_remaining_tells_the_earlier_of_attempt_and_total(store: Store) -> None:
    async def tell(ctx: TaskContext) -> list[float | None]:
        told = [ctx.remaining()]
        ctx.extend(attempt=1_000_000)
        return [*told, ctx.remaining()]

    async with Engine(store, tasks=[tell]) as engine:
        handle = await engine.submit(TaskCall.of("tell"), timeout=Timeouts(attempt=100, total=5000))
        with anyio.fail_after(30):
            outcome = await handle.wait()
    first, second = outcome.unwrap()
    assert 0 < first <= 100
    assert 100 < second <= 5000


async def test_a_body_may_catch_its_timeout_and_return(store: Store) -> None:
    async def salvage() -> str:
        try:
            await anyio.sleep(3600)
        except BaseException:
            return "half"
        return "whole"

    async with Engine(store, tasks=[salvage], shutdown_grace=0) as engine:
        handle = await engine.submit(TaskCall.of("salvage"), timeout=0.1)
        with anyio.fail_after(30):
            assert (await handle.wait()).value == "half"


async def test_a_timeout_error_of_the_body_is_its_own(store: Store) -> None:
    async def impatient() -> None:
        with anyio.fail_after(0.01):
            await anyio.sleep(3600)

    async with Engine(store, tasks=[impatient]) as engine:
        handle = await engine.submit(TaskCall.of("impatient"), timeout=3600, retry=ONCE)
        with anyio.fail_after(30):
            assert kind_of(await handle.wait()) is FailureKind.EXCEPTION


# --- told apart from cancel and shutdown ------------------------------------------------------------------------


async def test_a_timeout_waits_the_backoff_and_a_cancel_and_a_shutdown_are_told_apart(store: Store) -> None:
    """B21: three endings of the same body, and three reasons."""
    slow = RetryPolicy(base=3600, cap=3600, jitter=0, max_attempts=3)
    async with Engine(store, tasks=[sleep_long], shutdown_grace=0) as engine:
        timed, cancelled, interrupted = [
            await engine.submit(sleep_long.bind(), timeout=seconds, retry=slow) for seconds in (0.1, 3600, 3600)
        ]
        await reach(engine, timed, State.RETRY_WAIT)
        task = await timed.task()
        assert (task.due_at - (task.started_at or task.due_at)).total_seconds() > 3600
        await reach(engine, cancelled, State.RUNNING)
        await reach(engine, interrupted, State.RUNNING)
        assert (await cancelled.cancel()).failure is None
    async with Engine(same_store(store)) as client:
        tasks = [await client.get(handle.id) for handle in (timed, cancelled, interrupted)]
    assert [task.state for task in tasks] == [State.RETRY_WAIT, State.CANCELLED, State.QUEUED]
    assert [task.charged for task in tasks] == [1, 1, 0]
    assert [task.failure and task.failure.kind for task in tasks] == [FailureKind.TIMEOUT_ATTEMPT, None, None]


async def test_a_cancel_during_the_force_of_a_timeout_wins(store: Store) -> None:
    release = anyio.Event()
    told = anyio.Event()

    async def slow_to_end() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            told.set()
            with anyio.CancelScope(shield=True):
                await release.wait()

    async with Engine(store, tasks=[slow_to_end], kill_grace=60) as engine:
        handle = await engine.submit(TaskCall.of("slow_to_end"), timeout=0.1)
        await told.wait()
        assert (await handle.cancel(timeout=0)).state is State.STOPPING
        release.set()
        with anyio.fail_after(30):
            assert (await handle.wait()).state is State.CANCELLED


# --- bodies that do not end -------------------------------------------------------------------------------------


async def test_a_thread_that_outlives_its_timeout_is_lost_and_not_tried_again_beside_itself(store: Store) -> None:
    release = threading.Event()
    begun: list[int] = []

    def stuck() -> None:
        begun.append(1)
        release.wait()

    try:
        async with Engine(store, tasks=[stuck], kill_grace=0.1, shutdown_grace=0) as engine:
            handle = await engine.submit(TaskCall.of("stuck"), timeout=0.1, retry=AT_ONCE)
            with anyio.fail_after(30):
                outcome = await handle.wait()
            assert (outcome.state, kind_of(outcome)) == (State.LOST, FailureKind.TIMEOUT_ATTEMPT)
            assert outcome.failure is not None
            assert "threading.py" in outcome.failure.message  # where it is stuck
            with anyio.fail_after(30):
                assert await engine.drain()
        assert begun == [1]
    finally:
        release.set()


async def test_two_stuck_threads_stop_neither_a_third_task_nor_the_exit(store: Store) -> None:
    """B17: the pool has two places, and both are taken for ever."""
    release = threading.Event()

    def stuck() -> None:
        release.wait()

    def double(n: int) -> int:
        return 2 * n

    try:
        with anyio.fail_after(30):
            async with Engine(store, tasks=[stuck, double], concurrency=2, kill_grace=0.1, shutdown_grace=0) as engine:
                stuck_ones = await engine.submit_many([TaskCall.of("stuck")] * 2, options=SubmitOptions(timeout=0.1))
                third = await engine.submit(TaskCall.of("double", 4))
                assert (await third.wait()).value == 8
                assert [(await handle.wait()).state for handle in stuck_ones] == [State.LOST] * 2
                last = await engine.submit(TaskCall.of("stuck"))
                await reach(engine, last, State.RUNNING)
    finally:
        release.set()


async def test_a_thread_sees_its_timeout_at_a_checkpoint(store: Store) -> None:
    def step(ctx: TaskContext) -> None:
        while True:
            ctx.checkpoint()
            time.sleep(0.002)

    async with Engine(store, tasks=[step], kill_grace=30) as engine:
        handle = await engine.submit(TaskCall.of("step"), timeout=0.1, retry=ONCE)
        with anyio.fail_after(30):
            outcome = await handle.wait()
    assert (outcome.state, kind_of(outcome)) == (State.FAILED, FailureKind.TIMEOUT_ATTEMPT)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_a_child_that_is_out_of_time_is_ended(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[sleep_in_child, stay_in_child], kill_grace=20, shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_in_child.bind(3600.0), timeout=0.2, retry=ONCE)
        idle = await engine.submit(stay_in_child.bind(go.path), timeout=Timeouts(idle=0.2), retry=ONCE)
        with anyio.fail_after(30):
            outcome = await handle.wait()
            assert (outcome.state, kind_of(outcome)) == (State.FAILED, FailureKind.TIMEOUT_ATTEMPT)
            other = await idle.wait()
            assert (other.state, kind_of(other)) == (State.FAILED, FailureKind.TIMEOUT_IDLE)
