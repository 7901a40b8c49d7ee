"""Cancelling tasks in every state, and every race with their own end."""

from random import Random

import anyio
import pytest

from taskengine import Engine, RetryPolicy, State, TaskCall, TaskNotFound, Trigger
from taskengine.core.lifecycle import FINAL
from taskengine.ports import Store
from taskengine.tasks import http_post
from taskengine.testing.downstream import HANG, FakeDownstream
from tests.actors.test_runner import running
from tests.bodies import add, fail_until, same_store, sleep_long


async def test_waiting_tasks_are_cancelled_at_once_with_who_and_why(store: Store) -> None:
    async with Engine(store) as client:
        queued = await client.submit(TaskCall.of("nobody"))
        scheduled = await client.submit(TaskCall.of("nobody"), delay=3600)
        for handle in (queued, scheduled):
            ended = await client.cancel(handle.id, reason="changed my mind", actor="anna")
            assert ended.state is State.CANCELLED
            assert ended.finished_at is not None
            last = (await handle.history())[-1]
            assert (last.trigger, last.actor, last.reason) == (Trigger.USER_CANCEL, "anna", "changed my mind")


async def test_a_claimed_task_that_has_not_begun_is_cancelled_at_once_and_never_begins(store: Store) -> None:
    """B12: it waits behind a long one, prefetched or not; it neither runs nor is listed as active."""
    begun: list[int] = []

    async def note(n: int) -> None:
        begun.append(n)
        await anyio.sleep(3600)

    async with Engine(store, tasks=[note, add], concurrency=1, shutdown_grace=0) as engine:
        quick = await engine.submit_many([add.bind(n) for n in range(30)])  # teaches the claimer to prefetch
        assert await engine.wait_all(quick, timeout=30)
        one, two, three = await engine.submit_many([TaskCall.of("note", n) for n in range(3)])
        later = await engine.submit(TaskCall.of("note", 9), delay=3600)
        await running(engine, one.id)
        for handle in (two, three, later):
            ended = await handle.cancel()
            assert ended.state is State.CANCELLED
            assert ended.finished_at is not None
        active = await engine.list(states=[State.STARTING, State.RUNNING, State.STOPPING])
        assert [task.id for task in active] == [one.id]
        await one.cancel()
    assert begun == [0]


async def test_a_task_that_waits_for_a_retry_is_cancelled_and_not_tried_again(store: Store) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        handle = await engine.submit(fail_until.bind(9), retry=RetryPolicy(base=3600, cap=3600, max_attempts=5))
        async for event in engine.events(after=0):
            if event.target is State.RETRY_WAIT:
                break
        ended = await handle.cancel()
    assert (ended.state, ended.attempt) == (State.CANCELLED, 1)
    assert "attempt 1 fails" in (ended.error or "")


async def test_cancelling_a_finished_task_changes_nothing(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        handle = await engine.submit(add.bind(1))
        await handle.wait()
        before = await handle.task()
        assert await handle.cancel() == before
        with pytest.raises(TaskNotFound):
            await engine.cancel("nobody")


async def test_a_call_in_flight_is_really_ended(store: Store) -> None:
    downstream = FakeDownstream(HANG)
    async with Engine(store, tasks=[http_post], downstream=downstream) as engine:
        handle = await engine.submit(http_post.bind("http://example.test/"))
        await downstream.wait_for_calls(1)
        ended = await handle.cancel()
        assert downstream.cancelled == 1
    assert (ended.state, ended.result) == (State.CANCELLED, None)


async def test_cancel_is_bounded_and_answers_the_state_as_it_is(store: Store) -> None:
    release = anyio.Event()

    async def slow_to_end() -> None:
        try:
            await anyio.sleep(3600)
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()

    async with Engine(store, tasks=[slow_to_end], kill_grace=30) as engine:
        handle = await engine.submit(TaskCall.of("slow_to_end"))
        await running(engine, handle.id)
        assert (await handle.cancel(timeout=0.05)).state is State.STOPPING
        release.set()
        assert (await handle.cancel()).state is State.CANCELLED


async def test_cancel_racing_with_completion_always_agrees_with_the_row(store: Store) -> None:
    random = Random(7)

    async def brief(steps: int) -> int:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        return steps

    async with Engine(store, tasks=[brief], concurrency=20, durability=None) as engine:
        seen: dict[str, State] = {}

        async def race(number: int) -> None:
            handle = await engine.submit(TaskCall.of("brief", random.randrange(60)))
            for _ in range(random.randrange(60)):
                await anyio.lowlevel.checkpoint()
            ended = await handle.cancel()
            seen[handle.id] = ended.state
            assert ended.state in FINAL
            assert (ended.result is not None) == (ended.state is State.SUCCEEDED)

        for start in range(0, 500, 50):
            async with anyio.create_task_group() as tg:
                for number in range(start, start + 50):
                    tg.start_soon(race, number)
        assert len(seen) == 500
        for task_id, state in seen.items():
            task = await engine.get(task_id)
            assert task.state is state
            assert (await engine.history(task_id))[-1].target is state
    assert set(seen.values()) <= {State.SUCCEEDED, State.CANCELLED}


async def test_a_task_of_another_process_is_cancelled_through_the_store(store: Store) -> None:
    async with (
        Engine(store, tasks=[sleep_long], shutdown_grace=0) as owner,
        Engine(same_store(store)) as client,
    ):
        handle = await owner.submit(sleep_long.bind())
        await running(owner, handle.id)
        with anyio.fail_after(20):
            ended = await client.cancel(handle.id, reason="from afar", actor="anna")
    assert ended.state is State.CANCELLED
    async with Engine(same_store(store)) as client:
        last = (await client.history(handle.id))[-1]
        assert (last.trigger, last.actor, last.reason) == (Trigger.RUNTIME_CANCEL_DONE, "anna", "from afar")
