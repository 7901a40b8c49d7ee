"""Outages of the store: a wait or a clear error, nothing lost, nothing told too early."""

import anyio
import pytest

from taskengine import Engine, MemoryStore, State, StoreFull, StoreUnavailable, TaskCall
from taskengine.core.errors import StoreError
from taskengine.testing.faults import FaultyStore
from taskengine.testing.invariants import check_invariants
from tests.actors.test_runner import running
from tests.bodies import add, sleep_long


async def test_an_outage_ends_by_itself_and_the_submit_succeeds() -> None:
    store = FaultyStore(MemoryStore())
    async with Engine(store, tasks=[add]) as engine:
        store.fail(StoreUnavailable("locked"))
        assert (await (await engine.submit(add.bind(1))).wait()).ok
        assert (await engine.stats()).store_failures == 1
        assert (await engine.stats()).store_last_error == "locked"


@pytest.mark.parametrize("times", [1, 4])
async def test_an_outcome_whose_commit_failed_is_kept_and_stored_once(times: int) -> None:
    """B07: the body has ended, the store hiccups while the outcome is saved."""
    store = FaultyStore(MemoryStore())
    release, runs = anyio.Event(), []

    async def wait_here() -> str:
        runs.append(1)
        await release.wait()
        return "kept"

    async with Engine(store, tasks=[wait_here]) as engine:
        handle = await engine.submit(TaskCall.of("wait_here"))
        await running(engine, handle.id)
        for number in range(times):
            store.fail(StoreUnavailable("disk I/O error"), at=number + 1)
        release.set()
        with anyio.fail_after(20):
            outcome = await handle.wait()
        assert (outcome.value, outcome.attempt, len(runs)) == ("kept", 1, 1)
    assert check_invariants_of(store) == []


async def test_a_full_disk_is_a_clear_error_for_the_submitter_and_bodies_go_on() -> None:
    store = FaultyStore(MemoryStore())
    async with Engine(store, tasks=[add, sleep_long], shutdown_grace=0) as engine:
        running_one = await engine.submit(sleep_long.bind())
        await running(engine, running_one.id)
        store.fail(StoreFull("no room"), until_healed=True)
        with pytest.raises(StoreFull):
            await engine.submit(add.bind(1))
        store.heal()
        assert (await (await engine.submit(add.bind(2))).wait()).ok
        assert (await engine.get(running_one.id)).state is State.RUNNING
        assert (await engine.stats()).submitted == 2


async def test_a_submitter_hears_of_a_long_outage_when_its_patience_ends() -> None:
    store = FaultyStore(MemoryStore())
    async with Engine(store, tasks=[add], store_patience=0.1, shutdown_grace=0) as engine:
        store.fail(StoreUnavailable("locked"), until_healed=True)
        with anyio.fail_after(20), pytest.raises(StoreUnavailable, match="locked"):
            await engine.submit(add.bind(1))
        store.heal()
        assert (await (await engine.submit(add.bind(2))).wait()).ok
        assert (await engine.stats()).submitted == 1


async def test_an_item_that_the_store_refuses_fails_alone() -> None:
    store = FaultyStore(MemoryStore())
    results: list[object] = []

    async with Engine(store, tasks=[add]) as engine:

        async def submit(n: int) -> None:
            try:
                results.append((await engine.submit(add.bind(n))).created)
            except StoreError as error:
                results.append(str(error))

        # The first transaction fails whole; of the halves, one more fails until a single item is left.
        for at in (1, 2, 3):
            store.fail(StoreError("constraint"), at=at)
        async with anyio.create_task_group() as tg:
            for n in range(4):
                tg.start_soon(submit, n)
        assert results.count(True) + results.count("constraint") == 4
        assert results.count("constraint") <= 1
        assert (await engine.stats()).submitted == results.count(True)


def check_invariants_of(store: FaultyStore) -> list[str]:
    store.open()
    try:
        return check_invariants(store)
    finally:
        store.close()
