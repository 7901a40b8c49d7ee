"""Real processes that die, stop or block, and the next engine on the file."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import apsw
import pytest

from taskengine import Engine, FailureKind, SqliteStore, State, Task, TaskCall, Trigger
from taskengine.testing.invariants import check_invariants
from tests.worker_program import TASKS

WORKER = [sys.executable, "-m", "tests.worker_program"]


@contextmanager
def worker(path: Path, backend: str, *settings: str, before: tuple[str, ...] = ()) -> "Iterator[subprocess.Popen[str]]":
    """Start a worker process; it is killed at the end if it still lives."""
    process = subprocess.Popen(
        [*before, *WORKER, str(path), backend, *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def hear(process: "subprocess.Popen[str]", word: str) -> None:
    """Wait until a worker says a line that begins with `word`."""
    assert process.stdout is not None
    with anyio.fail_after(60):
        while True:
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line, f"the worker ended before it said {word!r}"
            if line.startswith(word):
                return


async def submit(path: Path, call: TaskCall[object], count: int = 1, **options: Any) -> list[str]:
    async with Engine(path) as client:
        if options:
            return [(await client.submit(call, **options)).id]
        return [handle.id for handle in await client.submit_many([call] * count)]


async def finish(path: Path, task_id: str, **settings: Any) -> Task:
    """Run an engine on the file until the task has ended."""
    async with Engine(path, tasks=TASKS, **settings) as engine:
        with anyio.fail_after(60):
            await (await engine.handle(task_id)).wait()
        return await engine.get(task_id)


def check(path: Path) -> None:
    store = SqliteStore(path)
    store.open()
    try:
        assert check_invariants(store) == []
    finally:
        store.close()


BACKENDS = ["asyncio", "trio"]


@pytest.mark.parametrize("other", BACKENDS)
async def test_a_task_of_a_killed_process_is_finished_by_the_next_engine_at_once(tmp_path: Path, other: str) -> None:
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("say_and_sleep"))
    with worker(path, other) as process:
        await hear(process, "begun 1")
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The lease is 30 s; that it is not waited for shows that the dead process was recognised.
        with anyio.fail_after(15):
            task = await finish(path, task_id)
        assert (task.state, task.result, task.attempt, task.charged, task.crashes) == (State.SUCCEEDED, 2, 2, 2, 1)
        async with Engine(path) as client:
            moves = await client.history(task_id)
    requeued = next(move for move in moves if move.trigger is Trigger.OWNER_REQUEUE)
    assert requeued.failure is not None
    assert requeued.failure.kind is FailureKind.CRASHED
    check(path)


async def test_after_sigterm_free_death_with_recover_lost_the_body_is_not_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("say_and_sleep"), recover="lost")
    with worker(path, "asyncio") as process:
        await hear(process, "begun 1")
        process.kill()
        process.wait()
        task = await finish(path, task_id)
    assert (task.state, task.attempt) == (State.LOST, 1)
    assert task.failure is not None
    assert task.failure.kind is FailureKind.LOST


async def test_a_task_that_kills_its_process_is_claimed_exactly_max_attempts_times(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("die"))
    deaths = 0
    while True:
        with worker(path, "asyncio", "drain=1") as process:
            code = await anyio.to_thread.run_sync(process.wait)
        if code == 0:
            break
        deaths += 1
        assert deaths <= 3
    async with Engine(path) as client:
        task = await client.get(task_id)
    assert (deaths, task.state, task.charged, task.attempt) == (3, State.LOST, 3, 3)
    assert task.failure is not None
    assert task.failure.kind is FailureKind.CRASHED
    check(path)


async def test_a_stopped_process_loses_its_lease_and_its_late_outcome_is_fenced(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("say_and_sleep"))
    with worker(path, "asyncio", "lease=1", "beat=0.2") as process:
        await hear(process, "begun 1")
        process.send_signal(signal.SIGSTOP)
        task = await finish(path, task_id, lease=1.0, beat=0.2)
        assert (task.state, task.result, task.attempt) == (State.SUCCEEDED, 2, 2)
        process.send_signal(signal.SIGCONT)
        # It notices, begins anew, and does its share again.
        (again,) = await submit(path, TaskCall.of("add", 1))
        async with Engine(path) as client:
            with anyio.fail_after(30):
                assert (await (await client.handle(again)).wait()).ok
            assert await client.get(task_id) == task
    check(path)


@pytest.mark.parametrize("other", BACKENDS)
@pytest.mark.parametrize("seconds", [4.0, pytest.param(20.0, marks=pytest.mark.slow)])
async def test_a_blocked_event_loop_keeps_its_lease_and_its_task(tmp_path: Path, other: str, seconds: float) -> None:
    """The writer's thread renews the lease; a loop blocked for many leases loses nothing."""
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("block_loop", seconds))
    with worker(path, other, "lease=1", "beat=0.2") as process:
        await hear(process, "blocking")
        task = await finish(path, task_id, lease=1.0, beat=0.2)
    assert (task.state, task.attempt, task.crashes) == (State.SUCCEEDED, 1, 0)


async def test_a_loop_blocked_longer_than_allowed_lets_its_lease_go(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("block_loop", 600.0))
    with worker(path, "asyncio", "lease=1", "beat=0.2", "max_loop_block=1") as process:
        await hear(process, "blocking")
        async with Engine(path, tasks=[], lease=1.0, beat=0.2) as engine:
            with anyio.fail_after(60):
                async for event in engine.events(after=0):
                    if event.trigger is Trigger.OWNER_REQUEUE:
                        break
            assert (await engine.get(task_id)).state is State.QUEUED


async def test_a_killed_owner_in_another_pid_namespace_is_recovered_by_its_lease(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    assert unshare is not None, "util-linux is needed: apt-get install util-linux"
    path = tmp_path / "tasks.db"
    (task_id,) = await submit(path, TaskCall.of("say_and_sleep"))
    with worker(path, "asyncio", "lease=1", "beat=0.2", before=(unshare, "--pid", "--fork", "--kill-child")) as process:
        await hear(process, "begun 1")
        process.kill()
        process.wait()
        task = await finish(path, task_id, lease=1.0, beat=0.2)
    assert (task.state, task.attempt, task.crashes) == (State.SUCCEEDED, 2, 1)


async def test_recovery_goes_on_after_a_lock_that_outlasts_the_busy_timeout(tmp_path: Path) -> None:
    """B10: 250 claimed tasks, their owner dies, and the store is locked while the next one recovers."""
    path = tmp_path / "tasks.db"
    await submit(path, TaskCall.of("say_and_sleep"), count=250)
    with worker(path, "asyncio", "concurrency=250") as process:
        for _ in range(250):
            await hear(process, "begun 1")
        process.kill()
        process.wait()
        async with Engine(path) as look:
            # apsw, as the engine: the locks of another SQLite in this process would not be seen.
            locked = apsw.Connection(str(path))
            locked.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as tg:

                async def unlock_when_noticed() -> None:
                    with anyio.move_on_after(1.5):
                        await anyio.sleep_forever()
                    locked.execute("ROLLBACK")
                    locked.close()

                tg.start_soon(unlock_when_noticed)
                async with Engine(path, tasks=TASKS) as engine:
                    assert await engine.drain(timeout=60)
            stats = await look.stats()
    assert stats.by_state["succeeded"] == 250
    check(path)
