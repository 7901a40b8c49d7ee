"""Entering and leaving an engine: what may happen to the host, and what must not be left behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from taskengine import (
    Engine,
    EngineNotRunning,
    MemoryStore,
    SqliteStore,
    State,
    StoreGone,
    StoreIncompatible,
    StoreUnavailable,
    TaskCall,
    UsageError,
)
from taskengine.ports import Store
from taskengine.testing.faults import FaultyStore
from tests.bodies import add, double, same_store, sleep_long

TASKS: list[Any] = [add, double, sleep_long]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_an_exception_of_the_host_leaves_as_it_was_raised(store: Store) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with Engine(store, tasks=TASKS, shutdown_grace=0) as engine:
            await engine.submit(sleep_long.bind())
            raise error
    assert caught.value is error


async def test_a_cancelled_host_gives_back_what_it_held(store: Store) -> None:
    with anyio.move_on_after(10) as scope:
        async with Engine(store, tasks=TASKS, shutdown_grace=0) as engine:
            handle = await engine.submit(sleep_long.bind())
            async for event in engine.events(after=0):
                if event.target is State.RUNNING:
                    scope.cancel()
    assert scope.cancelled_caught
    async with Engine(same_store(store)) as client:
        task = await client.get(handle.id)
        assert (task.state, task.attempt, task.charged, task.owner) == (State.QUEUED, 1, 0, None)
        assert [move.trigger.value for move in await client.history(task.id)][-1] == "engine:release"


async def test_shutdown_waits_for_bodies_within_the_grace(store: Store) -> None:
    async with Engine(store, tasks=TASKS, shutdown_grace=20) as engine:
        handle = await engine.submit(sleep_long.bind(0.1))
        async for event in engine.events(after=0):
            if event.target is State.RUNNING:
                break
    async with Engine(same_store(store)) as client:
        assert (await client.get(handle.id)).state is State.SUCCEEDED


async def test_shutdown_with_recover_lost_never_runs_a_begun_body_again(store: Store) -> None:
    async with Engine(store, tasks=TASKS, shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_long.bind(), recover="lost")
        async for event in engine.events(after=0):
            if event.target is State.RUNNING:
                break
    async with Engine(same_store(store)) as client:
        task = await client.get(handle.id)
    assert task.state is State.LOST
    assert task.failure is not None
    assert task.failure.kind.value == "lost"


async def test_a_prefetched_task_is_given_back_uncharged(store: Store) -> None:
    async with Engine(store, tasks=TASKS, concurrency=1, shutdown_grace=0) as engine:
        quick = await engine.submit_many([add.bind(n) for n in range(50)])
        assert await engine.wait_all(quick, timeout=30)
        handles = await engine.submit_many([sleep_long.bind() for _ in range(5)])
    async with Engine(same_store(store)) as client:
        for handle in handles:
            task = await client.get(handle.id)
            assert (task.state, task.charged) == (State.QUEUED, 0)


async def test_nothing_is_claimed_after_the_stop_began(store: Store) -> None:
    """B03: while a body is given its grace, what others submit stays in the store."""
    leaving = anyio.Event()

    async def submit_meanwhile() -> None:
        await leaving.wait()
        async with Engine(same_store(store)) as client:
            await client.submit_many([TaskCall.of("add", n) for n in range(20)])

    async with anyio.create_task_group() as tg:
        tg.start_soon(submit_meanwhile)
        async with Engine(store, tasks=TASKS, shutdown_grace=0.5, concurrency=2) as engine:
            running = await engine.submit(sleep_long.bind(), max_attempts=1)
            async for event in engine.events(after=0):
                if event.target is State.RUNNING:
                    break
            leaving.set()
    async with Engine(same_store(store)) as client:
        assert (await client.get(running.id)).charged == 0
        assert (await client.stats()).by_state["queued"] == 21


async def test_entering_and_leaving_a_hundred_times_leaks_nothing(tmp_path: Path) -> None:
    async def once(n: int) -> None:
        async with Engine(tmp_path / "tasks.db", tasks=TASKS, concurrency=2, durability="fast") as engine:
            assert (await (await engine.submit(double.bind(n))).wait()).ok

    await once(0)
    gc.collect()
    threads, files = threading.active_count(), open_files()
    for n in range(100):
        await once(n)
    gc.collect()
    assert threading.active_count() <= threads
    assert open_files() <= files


async def test_a_crashed_actor_ends_the_engine_loudly_and_its_work_is_given_back() -> None:
    store = FaultyStore(MemoryStore())
    with pytest.raises(ExceptionGroup) as caught:
        async with Engine(store, tasks=TASKS, shutdown_grace=0) as engine:
            handle = await engine.submit(sleep_long.bind())
            async for event in engine.events(after=0):
                if event.target is State.RUNNING:
                    break
            store.fail(RuntimeError("bug in the store"))
            await engine.submit(add.bind(1))
    assert caught.group_contains(RuntimeError, match="bug in the store")
    async with Engine(store) as client:
        assert (await client.get(handle.id)).state is State.QUEUED


async def test_a_caller_in_another_task_is_answered_when_the_engine_crashes() -> None:
    store = FaultyStore(MemoryStore())
    answers: list[BaseException] = []

    async def call_from_elsewhere(engine: Engine) -> None:
        with anyio.fail_after(20):
            try:
                await engine.submit(add.bind(1))
            except EngineNotRunning as error:
                answers.append(error)

    async with anyio.create_task_group() as tg:
        with pytest.raises(ExceptionGroup):
            async with Engine(store, tasks=TASKS) as engine:
                store.fail(RuntimeError("bug in the store"))
                tg.start_soon(call_from_elsewhere, engine)
                await anyio.sleep_forever()
    assert len(answers) == 1


async def test_using_an_engine_outside_its_block_is_refused() -> None:
    engine = Engine(MemoryStore(), tasks=TASKS)
    with pytest.raises(EngineNotRunning, match="async with"):
        await engine.submit(add.bind(1))
    async with engine:
        with pytest.raises(UsageError, match="running already"):
            await engine.__aenter__()
    with pytest.raises(EngineNotRunning):
        await engine.stats()


def our_threads() -> list[threading.Thread]:
    """Return the threads of engines; trio keeps some of its own for a while."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("taskengine")]


@pytest.mark.parametrize(
    ("prepare", "error", "hint"),
    [
        (lambda path: path.write_bytes(b"this is no database at all " * 100), StoreIncompatible, "no SQLite database"),
        (lambda path: path.mkdir(), StoreIncompatible, "folder"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_one_clear_error(
    tmp_path: Path, prepare: Callable[[Path], object], error: type[Exception], hint: str
) -> None:
    path = tmp_path / "tasks.db"
    prepare(path)
    threads = our_threads()
    with pytest.raises(error, match=hint):
        async with Engine(path, tasks=TASKS):
            pass
    assert our_threads() == threads
    with pytest.raises(StoreUnavailable, match="folder does not exist"):
        async with Engine(tmp_path / "no" / "where.db"):
            pass


async def test_engines_in_several_threads_and_loops_do_not_disturb_each_other(tmp_path: Path) -> None:
    done: list[int] = []

    def live(number: int, backend: str) -> None:
        async def main() -> None:
            async with Engine(tmp_path / "shared.db", tasks=TASKS, concurrency=3) as engine:
                handles = await engine.submit_many([add.bind(number, n) for n in range(20)])
                assert await engine.wait_all(handles, timeout=60)
                done.append(number)

        anyio.run(main, backend=backend)

    async with anyio.create_task_group() as tg:
        for number, backend in enumerate(["asyncio", "trio", "asyncio", "trio"]):
            tg.start_soon(anyio.to_thread.run_sync, live, number, backend)
    assert sorted(done) == [0, 1, 2, 3]


async def test_a_forked_child_is_told_to_make_its_own_engine(tmp_path: Path) -> None:
    async with Engine(tmp_path / "tasks.db", tasks=TASKS) as engine:
        running = engine._require()
        running.pid += 1  # what a child would see, without the dangers of forking a process with threads
        with pytest.raises(EngineNotRunning, match="forked"):
            await engine.submit(add.bind(1))
        running.pid -= 1


HOST = """
    import anyio, sys
    from taskengine import Engine, task

    @task
    async def sleep_long() -> None:
        await anyio.sleep(3600)

    async def main():
        async with Engine({path!r}, tasks=[sleep_long], shutdown_grace={grace}) as engine:
            await engine.submit(sleep_long.bind(), id="one")
            async for event in engine.events(after=0):
                if event.target == "running":
                    print("running", flush=True)
                    {then}

    try:
        anyio.run(main, backend={backend!r})
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def host(tmp_path: Path, backend: str, then: str, grace: float = 0) -> "subprocess.Popen[str]":
    script = textwrap.dedent(HOST).format(path=str(tmp_path / "tasks.db"), backend=backend, then=then, grace=grace)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_reaches_the_host_and_the_task_is_given_back(tmp_path: Path, backend: str) -> None:
    process = host(tmp_path, backend, "await anyio.sleep(3600)")
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out == "interrupted\n", err
    store = SqliteStore(tmp_path / "tasks.db")
    store.open()
    row = store.reader().get("one")
    store.close()
    assert row is not None
    assert (row.state, row.charged) == (State.QUEUED, 0)


def test_a_second_ctrl_c_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    """On trio; asyncio itself leaves on the spot, wherever it is, and the next engine recovers what ran."""
    indent = " " * 16  # as deep as what is filled in
    then = f"try:\n{indent}    await anyio.sleep(3600)\n{indent}finally:\n{indent}    print('leaving', flush=True)"
    process = host(tmp_path, "trio", then, grace=3600)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "leaving\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert out == "interrupted\n", err
    assert "TrioInternalError" not in err
    store = SqliteStore(tmp_path / "tasks.db")
    store.open()
    row = store.reader().get("one")
    store.close()
    assert row is not None
    assert (row.state, row.charged, err) == (State.QUEUED, 0, "")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_that_raises_inside_exits(tmp_path: Path, backend: str) -> None:
    """B67: no thread of ours keeps the interpreter alive."""
    process = host(tmp_path, backend, "raise RuntimeError('mine')")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "RuntimeError: mine" in err


SWALLOWER = """
    import anyio
    from taskengine import Engine, MemoryStore, task

    @task
    async def swallow() -> None:
        while True:
            try:
                await anyio.sleep(5)
            except BaseException:
                pass

    async def main():
        async with Engine(MemoryStore(), tasks=[swallow], kill_grace=0.1, shutdown_grace=0) as engine:
            handle = await engine.submit(swallow.bind())
            async for event in engine.events(after=0):
                if event.target == "running":
                    break
            print((await handle.cancel()).state.value)

    anyio.run(main, backend={backend!r})
    print("left")
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_exits_though_a_body_refuses_even_to_be_closed(backend: str) -> None:
    script = textwrap.dedent(SWALLOWER).format(backend=backend)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["lost", "left"]


async def test_a_deleted_file_is_told_at_once_and_leaving_is_quick(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with anyio.fail_after(20):  # neither the patience nor the grace is waited for
        async with Engine(path, tasks=TASKS) as engine:
            path.unlink()
            with pytest.raises(StoreGone, match="deleted or replaced"):
                await engine.submit(add.bind(1))


def test_importing_the_package_loads_no_optional_part() -> None:
    heavy = ["trio", "apsw", "httpx", "httpcore", "click", "rich", "psycopg", "taskengine.cli", "taskengine.testing"]
    heavy += ["asyncio", "taskengine.running", "taskengine.actors.runner"]  # What only an engine that is entered needs.
    script = f"import sys, taskengine; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
