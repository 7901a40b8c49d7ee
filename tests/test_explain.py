"""Why a task is not running: every reason that can be reached, and the dead letters with what is done about them."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import Engine, InvalidOption, RetryPolicy, State, TaskCall, TaskHandle
from taskengine.ports import Store
from tests.bodies import Sign, add, fail_until, reach, same_store, stay_on_loop, step_on_loop

SLOWLY = RetryPolicy(base=3600, cap=3600, max_attempts=5)


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    sign = Sign(tmp_path)
    yield sign
    sign.give()


async def code_of(engine: Engine, handle: TaskHandle[Any]) -> str:
    explanation = await engine.explain(handle)
    assert explanation.sentence
    assert "None" not in explanation.sentence
    return explanation.code


# --- explain ----------------------------------------------------------------------------------------------------


async def test_without_an_owner_nobody_runs_it(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", 1))
        assert await code_of(client, handle) == "no_owner"
        later = await client.submit(TaskCall.of("add", 1), delay=3600)
        assert await code_of(client, later) == "not_due"


async def test_a_name_that_nobody_knows_is_told_with_who_was_asked(store: Store) -> None:
    async with Engine(store, tasks=[add]), Engine(same_store(store)) as client:
        handle = await client.submit(TaskCall.of("nobody"))
        explanation = await handle.explain()
        assert explanation.code == "unknown_name"
        assert "nobody" in explanation.sentence
        assert explanation.data["processes"] == [os.getpid()]


async def test_times_are_told_with_how_long_it_is(store: Store) -> None:
    async with Engine(store, tasks=[add, fail_until]) as engine:
        later = await engine.submit(add.bind(1), delay=3600)
        retrying = await engine.submit(fail_until.bind(9), retry=SLOWLY)
        await reach(engine, retrying, State.RETRY_WAIT)
        for handle, code in ((later, "not_due"), (retrying, "retrying")):
            explanation = await engine.explain(handle)
            assert explanation.code == code
            assert 1700 < explanation.data["in_seconds"] <= 3600
            assert datetime.fromisoformat(explanation.data["due_at"]) == (await handle.task()).due_at


async def test_a_hold_is_told_with_who_why_and_until_when(store: Store) -> None:
    until = datetime.now(UTC) + timedelta(hours=1)
    async with Engine(store, tasks=[add]) as engine:
        scopes: list[tuple[dict[str, Any], str]] = [({}, "held_all"), ({"name": "add"}, "held_name")]
        for scope, code in [*scopes, ({"tag": "nightly"}, "held_tag")]:
            await engine.hold(**scope, reason="look first", actor="anna", until=until)
            handle = await engine.submit(add.bind(1), tags=["nightly"])
            later = await engine.submit(add.bind(1), tags=["nightly"], delay=3600)
            with anyio.fail_after(30):
                assert await engine.drain()
            for each in (handle, later):
                explanation = await engine.explain(each)
                assert explanation.code == code
                assert explanation.data["actor"] == "anna"
                assert explanation.data["reason"] == "look first"
                assert datetime.fromisoformat(explanation.data["until"]) == until
            await engine.cancel(handle)
            await engine.cancel(later)
            await engine.release(**scope)


async def test_a_hold_of_others_is_no_reason(store: Store) -> None:
    async with Engine(store) as client:
        await client.hold(name="other")
        await client.hold(tag="nightly")
        await client.hold(until=datetime.now(UTC) - timedelta(hours=1))
        handle = await client.submit(TaskCall.of("add", 1), tags=["daily"])
        assert await code_of(client, handle) == "no_owner"


async def test_a_task_that_is_paused_by_itself_is_held(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        handle = await engine.submit(add.bind(1), delay=3600)
        assert await engine.pause(handle, actor="anna", reason="look first")
        explanation = await engine.explain(handle)
        assert explanation.code == "held"
        assert "anna" in explanation.sentence
        assert "look first" in explanation.sentence


async def test_a_task_that_waits_for_a_slot_is_told_how_many_are_ahead(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[stay_on_loop], concurrency=1, shutdown_grace=0) as engine:
        first = await engine.submit(stay_on_loop.bind(go.path))
        await reach(engine, first, State.RUNNING)
        rest = await engine.submit_many([stay_on_loop.bind(go.path)] * 3)
        explanations = [await engine.explain(handle) for handle in rest]
        assert [explanation.code for explanation in explanations] == ["next", "no_slot", "no_slot"]
        assert [explanation.data["ahead"] for explanation in explanations] == [0, 1, 2]
        go.give()
        with anyio.fail_after(30):
            assert await engine.drain()


async def test_tasks_that_cannot_be_claimed_are_not_ahead(store: Store, go: Sign) -> None:
    """Those of names that these processes do not know, those that are held, and those that are not due."""
    async with (
        Engine(store, tasks=[stay_on_loop, add], concurrency=1, shutdown_grace=0) as engine,
        Engine(same_store(store)) as client,
    ):
        first = await engine.submit(stay_on_loop.bind(go.path))
        await reach(engine, first, State.RUNNING)
        await client.submit_many([TaskCall.of("nobody", n) for n in range(300)])
        paused = await engine.submit(add.bind(1))
        assert await paused.pause()
        handle = await engine.submit(stay_on_loop.bind(go.path))
        explanation = await engine.explain(handle)
        assert (explanation.code, explanation.data["ahead"]) == ("next", 0)
        go.give()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_bodies_are_told_with_what_was_asked_of_them(store: Store, go: Sign) -> None:
    async with Engine(
        store, tasks=[stay_on_loop, step_on_loop, add], concurrency=2, pause_window=60, shutdown_grace=0
    ) as engine:
        assert await engine.wait_all(await engine.submit_many([add.bind(n) for n in range(30)]), timeout=30)
        one, two = [await engine.submit(body.bind(go.path)) for body in (stay_on_loop, step_on_loop)]
        for handle in (one, two):
            await reach(engine, handle, State.RUNNING)
            assert await code_of(engine, handle) == "running"
        ahead = await engine.submit(add.bind(1))
        if (await ahead.task()).state is State.STARTING:
            assert await code_of(engine, ahead) == "claimed"
        await engine.pause_many(ids=[one], actor="anna", reason="lunch")
        assert await two.pause(reason="lunch")
        assert await code_of(engine, two) == "paused"
        explanation = await engine.explain(one)
        assert explanation.code == "pausing"
        assert explanation.data["actor"] == "anna"
        assert "lunch" in explanation.sentence
        assert (await engine.stop(one, timeout=0)).state is State.STOPPING
        assert await code_of(engine, one) == "stopping"
        go.give()
        await one.wait()
        assert await code_of(engine, one) == "ended"
        assert (await engine.explain(one)).data == {"state": "stopped", "wish": "stop", "actor": "user", "reason": None}


# --- dead letters -----------------------------------------------------------------------------------------------


async def test_dead_letters_are_what_failed_or_was_lost_and_was_not_requeued(store: Store) -> None:
    async with Engine(store, tasks=[add, fail_until]) as engine:
        failed = await engine.submit(fail_until.bind(9), tags=["nightly"])
        other = await engine.submit(fail_until.bind(9))
        good = await engine.submit(add.bind(1))
        cancelled = await engine.submit(add.bind(1), delay=3600)
        await cancelled.cancel()
        with anyio.fail_after(30):
            assert await engine.wait_all([failed, other, good])
        assert [task.id for task in await engine.dead_letters()] == [other.id, failed.id]
        assert [task.id for task in await engine.dead_letters(tag="nightly")] == [failed.id]
        assert len(await engine.dead_letters(name="add")) == 0
        page = await engine.dead_letters(limit=1)
        assert [task.id for task in page] == [other.id]
        assert [task.id for task in await engine.dead_letters(limit=1, cursor=page.next)] == [failed.id]
        again = await engine.requeue(failed)
        assert [task.id for task in await engine.dead_letters()] == [other.id]
        with anyio.fail_after(30):
            assert (await again.wait()).state is State.FAILED
        assert [task.id for task in await engine.dead_letters()] == [again.id, other.id]
        assert (await again.task()).requeued_from == failed.id


async def test_requeueing_many_twice_requeues_them_once(store: Store) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        handles = await engine.submit_many([fail_until.bind(9)] * 7)
        with anyio.fail_after(30):
            assert await engine.wait_all(handles)
        await engine.hold(name="fail_until")
        assert await engine.requeue_many(ids=handles[:2]) == 2
        assert await engine.requeue_many(ids=handles[:2]) == 0
        assert await engine.requeue_many() == 5
        assert await engine.requeue_many() == 0
        assert len(await engine.dead_letters()) == 0
        made = await engine.list(states="queued")
        assert sorted(task.requeued_from or "" for task in made) == sorted(handle.id for handle in handles)


async def test_requeueing_many_leaves_alone_what_has_not_ended_or_ended_well(store: Store) -> None:
    async with Engine(store, tasks=[add, fail_until]) as engine:
        good = await engine.submit(add.bind(1))
        later = await engine.submit(fail_until.bind(9), delay=3600)
        await good.wait()
        assert await engine.requeue_many() == 0
        assert await engine.requeue_many(ids=[later]) == 0
        assert await engine.requeue_many(states=["scheduled"]) == 0
        assert await engine.requeue_many(states=[]) == 0
        assert await engine.requeue_many(ids=[]) == 0
        assert await engine.requeue_many(states="succeeded") == 1
        with pytest.raises(InvalidOption):
            await engine.requeue_many(lable="x")  # type: ignore[call-arg]  # that is the fault to be shown


async def test_requeueing_both_at_once_makes_each_task_once(store: Store) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        handles = await engine.submit_many([fail_until.bind(9)] * 20)
        with anyio.fail_after(30):
            assert await engine.wait_all(handles)
        await engine.hold(name="fail_until")
        counts: list[int] = []

        async def requeue() -> None:
            counts.append(await engine.requeue_many())

        async with anyio.create_task_group() as tg:
            tg.start_soon(requeue)
            tg.start_soon(requeue)
        assert sum(counts) == len(await engine.list(states="queued"))
        assert sum(counts) == 20
