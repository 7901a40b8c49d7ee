"""Holds of many tasks: what they keep from running, from when to when, and whom they leave alone."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import Engine, InvalidOption, State, Submission, SubmitOptions, TaskCall, Trigger
from taskengine.ports import Store
from tests.bodies import Sign, add, reach, same_store, stay_on_loop

SCOPES: list[dict[str, Any]] = [{}, {"name": "note"}, {"tag": "nightly"}]


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Sign]:
    sign = Sign(tmp_path)
    yield sign
    sign.give()


MANY = 1_000
"""More than can have run before a hold that is asked for at once is answered, also on a slow machine."""


def tagged(call: TaskCall[Any], count: int, *tags: str, **options: Any) -> list[Submission[Any]]:
    return [Submission(call, SubmitOptions(tags=tags, **options))] * count


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


@pytest.mark.parametrize("scope", SCOPES, ids=["all", "name", "tag"])
async def test_after_hold_returned_nothing_that_is_held_begins(store: Store, scope: dict[str, Any]) -> None:
    """Many are queued, bodies run and claims wait for a slot; some of each at the moment of the hold."""
    begun = 0

    async def note() -> None:
        nonlocal begun
        begun += 1
        await anyio.sleep(0.005)

    async with Engine(store, tasks=[note], concurrency=8) as engine:
        handles = await engine.submit_many(tagged(TaskCall.of("note"), MANY, "nightly"))
        await engine.wait_all(handles[:40])
        await engine.hold(**scope, reason="look first", actor="anna")
        at_hold = begun
        assert at_hold < MANY
        with anyio.fail_after(30):
            assert await engine.drain()  # Ends when the bodies have, since all the rest is held.
        assert begun == at_hold
        stats = await engine.stats()
        assert stats.by_state["succeeded"] == at_hold
        assert stats.by_state["queued"] == MANY - at_hold
        (hold,) = await engine.holds()
        assert (hold.reason, hold.actor, hold.until) == ("look first", "anna", None)
        assert await engine.release(**scope)
        assert not await engine.release(**scope)
        assert await engine.wait_all(handles, timeout=60)
        assert begun == MANY
        assert await engine.holds() == []
        assert all(task.charged == 1 for task in await engine.list(limit=MANY))


@pytest.mark.parametrize("scope", SCOPES, ids=["all", "name", "tag"])
async def test_a_hold_survives_restarts_and_covers_what_comes_later(store: Store, scope: dict[str, Any]) -> None:
    begun: list[int] = []

    async def note(n: int) -> None:
        begun.append(n)

    async with Engine(store) as client:
        early = await client.submit(TaskCall.of("note", 1), tags=["nightly"])
        await client.hold(**scope)
    async with Engine(same_store(store), tasks=[note]) as engine:
        later = await engine.submit(TaskCall.of("note", 2), tags=["nightly"])
        with anyio.fail_after(30):
            assert await engine.drain()
    assert begun == []
    async with Engine(same_store(store), tasks=[note]) as engine:
        with anyio.fail_after(30):
            assert await engine.drain()
            assert begun == []
            assert await engine.release(**scope)
            assert await engine.wait_all([early.id, later.id])
    assert sorted(begun) == [1, 2]


@pytest.mark.parametrize("scope", SCOPES, ids=["all", "name", "tag"])
async def test_a_hold_ends_by_itself(store: Store, scope: dict[str, Any]) -> None:
    async with Engine(store, tasks=[add]) as engine:
        engine.register("note", add)
        until = soon(0.5)
        await engine.hold(**scope, until=until)
        handle = await engine.submit(TaskCall.of("note", 1), tags=["nightly"])
        assert (await engine.holds())[0].until == until.replace(microsecond=until.microsecond)
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        task = await handle.task()
        assert task.started_at is not None
        assert task.started_at >= until
        assert await engine.holds() == []
        assert not await engine.release(**scope)


async def test_bodies_at_work_go_on_under_a_hold(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[stay_on_loop]) as engine:
        handle = await engine.submit(stay_on_loop.bind(go.path), tags=["nightly"])
        await reach(engine, handle, State.RUNNING)
        for scope in SCOPES:
            await engine.hold(**scope)
        assert (await handle.task()).state is State.RUNNING
        go.give()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_a_retry_of_a_held_task_waits(store: Store) -> None:
    release = anyio.Event()
    begun: list[int] = []

    async def fails() -> None:
        begun.append(1)
        await release.wait()
        raise ValueError("again")

    async with Engine(store, tasks=[fails]) as engine:
        engine.register("fails2", fails, max_attempts=2)
        handle = await engine.submit(TaskCall.of("fails"), tags=["nightly"])
        await reach(engine, handle, State.RUNNING)
        await engine.hold(tag="nightly")
        release.set()
        await reach(engine, handle, State.RETRY_WAIT)
        await engine.run_now(handle)
        with anyio.fail_after(30):
            assert await engine.drain()
        assert len(begun) == 1
        assert (await handle.task()).state is State.QUEUED


async def test_another_process_gives_its_unbegun_claims_back(store: Store, go: Sign) -> None:
    async with (
        Engine(store, tasks=[add, stay_on_loop], concurrency=1) as owner,
        Engine(same_store(store)) as client,
    ):
        assert await owner.wait_all(await owner.submit_many([add.bind(n) for n in range(30)]), timeout=30)
        first = await owner.submit(stay_on_loop.bind(go.path))
        rest = await owner.submit_many([add.bind(n) for n in range(4)])
        await reach(owner, first, State.RUNNING)
        await client.hold(name="add")
        with anyio.fail_after(30):
            for handle in rest:
                claimed = (await handle.task()).state is State.STARTING
                if claimed:
                    async for event in client.events(after=0):
                        if event.task_id == handle.id and event.trigger is Trigger.ENGINE_RELEASE:
                            break
        for handle in rest:
            task = await handle.task()
            assert (task.state, task.charged) == (State.QUEUED, 0)
        go.give()
        with anyio.fail_after(30):
            assert await owner.drain()
        assert [(await handle.task()).state for handle in rest] == [State.QUEUED] * 4
        assert await client.release(name="add")
        assert await owner.wait_all(rest, timeout=30)


async def test_a_task_under_two_holds_waits_for_both(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(tag="nightly")
        await engine.hold(tag="big")
        await engine.hold(name="add")
        handle = await engine.submit(add.bind(1), tags=["nightly", "big"])
        for scope in ({"tag": "nightly"}, {"name": "add"}):
            assert await engine.release(**scope)
            with anyio.fail_after(30):
                assert await engine.drain()
            assert (await handle.task()).state is State.QUEUED
        assert await engine.release(tag="big")
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_a_second_hold_takes_the_place_of_the_first(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(tag="nightly", until=soon(3600), actor="anna")
        handle = await engine.submit(add.bind(1), tags=["nightly"])
        with anyio.fail_after(30):
            assert await engine.drain()
        await engine.hold(tag="nightly", reason="longer", actor="bert", until=soon(0.3))
        (hold,) = await engine.holds()
        assert (hold.scope, hold.target, hold.actor, hold.reason) == ("tag", "nightly", "bert", "longer")
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


@pytest.mark.parametrize("store", ["memory"], indirect=True)  # it has to outlast the first end
async def test_a_hold_that_is_made_longer_holds_until_its_new_end(store: Store) -> None:
    begun = anyio.Event()

    async def note() -> None:
        begun.set()

    async with Engine(store, tasks=[note, add]) as engine:
        first_end = soon(1.5)
        await engine.hold(tag="nightly", until=first_end)
        handle = await engine.submit(TaskCall.of("note"), tags=["nightly"])
        with anyio.fail_after(30):
            assert await engine.drain()
        await engine.hold(tag="nightly")
        with anyio.move_on_after(1.8):
            await handle.wait()
        assert not begun.is_set()
        assert (await engine.explain(handle)).code == "held_tag"
        assert await engine.release(tag="nightly")
        with anyio.fail_after(30):
            await begun.wait()


async def test_what_is_released_and_held_again_at_once_stays_held(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(tag="nightly")
        handles = await engine.submit_many(tagged(add.bind(1), 1_500, "nightly"))
        with anyio.fail_after(60):
            assert await engine.drain()
        # Apart: between the two, tasks that are free may run.
        async with anyio.create_task_group() as tg:
            tg.start_soon(lambda: engine.release(tag="nightly"))
            tg.start_soon(lambda: engine.hold(tag="nightly"))
        held = bool(await engine.holds())
        if not held:  # They were stored the other way round.
            await engine.hold(tag="nightly")
        before = (await engine.stats()).by_state["succeeded"]
        with anyio.fail_after(60):
            assert await engine.drain()
        after = (await engine.stats()).by_state["succeeded"]
        assert after - before <= 50  # What was at work when it was held.
        assert await engine.release(tag="nightly")
        assert await engine.wait_all(handles, timeout=60)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_3000_held_tasks_in_front_do_not_keep_others_from_running(store: Store) -> None:
    async with Engine(store, tasks=[add], concurrency=4) as engine:
        await engine.hold(tag="nightly")
        held = await engine.submit_many(tagged(add.bind(1), 3_000, "nightly"))
        other = await engine.submit(add.bind(2))
        with anyio.fail_after(60):
            assert (await other.wait()).ok
        assert (await held[0].task()).state is State.QUEUED
        assert (await engine.stats()).by_state["succeeded"] == 1


@pytest.mark.parametrize("scope", SCOPES, ids=["all", "name", "tag"])
async def test_what_is_held_with_others_is_not_resumed_alone(store: Store, scope: dict[str, Any]) -> None:
    async with Engine(store, tasks=[add]) as engine:
        engine.register("note", add)
        await engine.hold(**scope)
        handle = await engine.submit(TaskCall.of("note", 1), tags=["nightly"])
        with anyio.fail_after(30):
            assert await engine.drain()
        assert await handle.resume() is False
        assert (await handle.task()).state is State.QUEUED
        assert await engine.release(**scope)
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


@pytest.mark.parametrize("scope", SCOPES, ids=["all", "name", "tag"])
async def test_a_task_can_be_paused_by_itself_under_a_hold(store: Store, scope: dict[str, Any]) -> None:
    async with Engine(store, tasks=[add]) as engine:
        engine.register("note", add)
        await engine.hold(**scope)
        handle = await engine.submit(TaskCall.of("note", 1), tags=["nightly"])
        with anyio.fail_after(30):
            assert await engine.drain()
        assert await engine.pause(handle, actor="anna")
        assert await engine.release(**scope)
        with anyio.fail_after(30):
            assert await engine.drain()
        task = await handle.task()
        assert task.held is not None
        assert (task.state, task.held.actor, task.held.by) == (State.QUEUED, "anna", None)
        assert await handle.resume()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok


async def test_held_tasks_can_be_stopped_and_cancelled(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(tag="nightly")
        one, two = [await engine.submit(add.bind(n), tags=["nightly"]) for n in range(2)]
        with anyio.fail_after(30):
            assert await engine.drain()
        assert (await one.cancel()).state is State.CANCELLED
        assert (await two.stop()).state is State.STOPPED


async def test_a_hold_until_a_time_that_has_passed_holds_nothing(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        await engine.hold(until=soon(-5))
        handle = await engine.submit(add.bind(1))
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        assert await engine.holds() == []


async def test_a_hold_is_of_one_kind_and_has_an_end_with_a_zone(store: Store) -> None:
    async with Engine(store, tasks=[add]) as engine:
        with pytest.raises(InvalidOption):
            await engine.hold(name="add", tag="nightly")
        with pytest.raises(InvalidOption):
            await engine.release(name="add", tag="nightly")
        with pytest.raises(InvalidOption):
            await engine.hold(until=datetime(2030, 1, 1))
        with pytest.raises(InvalidOption):
            await engine.hold(until=5)  # type: ignore[arg-type]  # that is the fault to be shown
        scopes: list[dict[str, Any]] = [{"name": ""}, {"tag": ""}]
        for empty in scopes:
            with pytest.raises(InvalidOption):
                await engine.hold(**empty)
        assert await engine.holds() == []


async def test_drain_waits_for_bodies_and_not_for_what_is_held(store: Store, go: Sign) -> None:
    async with Engine(store, tasks=[stay_on_loop, add]) as engine:
        body = await engine.submit(stay_on_loop.bind(go.path))
        await reach(engine, body, State.RUNNING)
        await engine.submit(add.bind(1), delay=3600, tags=["nightly"])
        paused = await engine.submit(add.bind(1), delay=3600)
        await engine.hold(tag="nightly")
        assert await paused.pause()
        assert not await engine.drain(timeout=0.2)
        go.give()
        with anyio.fail_after(30):
            assert await engine.drain()
        assert await paused.resume()
        assert not await engine.drain(timeout=0.1)
