"""Executors seen from the engine: a bad body costs its own attempt and nothing else, wherever it runs."""

import importlib
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import (
    Engine,
    FailureKind,
    InvalidOption,
    MemoryStore,
    Outcome,
    State,
    TaskCall,
    TaskContext,
    Timeouts,
    task,
)
from taskengine.ports import Store
from tests.bodies import double
from tests.executors import bodies_for_engines as bodies

CHILD_TASKS: list[Any] = [
    bodies.loop_for_ever,
    bodies.child_pid,
    bodies.exit_at_once,
    bodies.kill_own_process,
    bodies.crash_once,
    bodies.wait_for_file,
    bodies.speak,
    bodies.snooze_then_discard,
    bodies.raise_needs_two,
    bodies.return_generator,
    bodies.wait_in_child,
    bodies.look_in_child,
]


async def running(engine: Engine, task_id: str) -> None:
    """Wait until it is committed that the body is at work."""
    async for move in engine.events(after=0):
        if move.task_id == task_id and move.target is State.RUNNING:
            return


# --- child processes --------------------------------------------------------------------------------------------


async def test_an_endless_loop_in_a_pool_of_one_child_is_cancelled_and_the_next_task_runs(store: Store) -> None:
    with anyio.fail_after(60):
        async with Engine(store, tasks=CHILD_TASKS, concurrency=1, kill_grace=2.0) as engine:
            endless = await engine.submit(bodies.loop_for_ever.bind())
            following = await engine.submit(bodies.child_pid.bind())
            await running(engine, endless.id)
            # Within kill_grace and the bound on what follows it: later it would be `lost`.
            assert (await endless.cancel(reason="endless")).state is State.CANCELLED
            assert (await following.wait()).ok


async def test_a_crashing_child_fails_its_own_attempt_and_the_pool_goes_on(tmp_path: Path, store: Store) -> None:
    """B68: one body ends its process, another kills it; the innocents in flight and the next five do not notice."""
    gate = tmp_path / "gate"
    with anyio.fail_after(90):
        async with Engine(store, tasks=CHILD_TASKS, concurrency=3) as engine:
            innocent = await engine.submit(bodies.wait_for_file.bind(str(gate)))
            await running(engine, innocent.id)
            exited: Outcome[Any] = await (await engine.submit(bodies.exit_at_once.bind(3))).wait()
            killed = await (await engine.submit(bodies.kill_own_process.bind())).wait()
            gate.touch()
            assert (await innocent.wait()).value == "seen"
            assert (await innocent.task()).attempt == 1
            later = await engine.submit_many(bodies.child_pid.bind(number) for number in range(5))
            assert [(await handle.wait()).ok for handle in later] == [True] * 5
    for outcome, word in ((exited, "3"), (killed, "SIGKILL")):
        assert outcome.state is State.FAILED
        assert outcome.failure is not None
        assert outcome.failure.kind is FailureKind.CRASHED
        assert word in outcome.failure.message


async def test_a_crash_of_a_child_is_retried_by_policy_and_charged(store: Store) -> None:
    async with Engine(store, tasks=CHILD_TASKS) as engine:
        handle = await engine.submit(bodies.crash_once.bind())
        with anyio.fail_after(60):
            assert (await handle.wait()).value == 2
        moves = await handle.history()
    assert [move.failure.kind for move in moves if move.failure is not None] == [FailureKind.CRASHED]
    assert (await _charged(store, handle.id)) == 2


async def _charged(store: Store, task_id: str) -> int:
    async with Engine(store) as client:
        return (await client.get(task_id)).charged


async def test_a_body_in_a_child_has_the_whole_context(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taskengine.task")
    async with Engine(store, tasks=CHILD_TASKS, artifacts=tmp_path / "left") as engine:
        handle = await engine.submit(bodies.speak.bind(), metadata={"of": "mine"}, timeout=600)
        with anyio.fail_after(60):
            assert (await handle.wait()).value == "mine True"
        seen = await handle.task()
        assert seen.progress is not None
        assert (seen.progress.done, seen.progress.total, seen.progress.unit) == (1, 4, "files")
        lines = [(line.level, line.message) for line in await handle.logs()]
        assert lines == [("INFO", "line 1"), ("WARNING", "line 2")]
    assert (tmp_path / "left" / handle.id / "1" / "left.txt").read_text() == "by a child"
    said = [record.getMessage() for record in caplog.records if record.name == f"taskengine.task.{handle.id}"]
    assert said == ["line 1", "line 2"]


async def test_a_body_in_a_child_can_snooze_and_discard(store: Store) -> None:
    async with Engine(store, tasks=CHILD_TASKS) as engine:
        handle = await engine.submit(bodies.snooze_then_discard.bind())
        with anyio.fail_after(60):
            outcome = await handle.wait()
        ended = await handle.task()
    assert (outcome.state, ended.attempt, ended.charged) == (State.FAILED, 2, 1)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.message) == (FailureKind.DISCARDED, "nobody wants it")


async def test_what_cannot_come_over_the_pipe_is_a_failure_in_words_and_the_next_task_runs(store: Store) -> None:
    """B32: an exception that no parent could rebuild, and a result that is none."""
    async with Engine(store, tasks=CHILD_TASKS, concurrency=1) as engine:
        with anyio.fail_after(60):
            raised = await (await engine.submit(bodies.raise_needs_two.bind())).wait()
            returned = await (await engine.submit(bodies.return_generator.bind())).wait()
            assert (await (await engine.submit(bodies.child_pid.bind())).wait()).ok
    assert raised.failure is not None
    assert (raised.failure.kind, raised.failure.type) == (
        FailureKind.EXCEPTION,
        "NeedsTwo",
    )
    assert "raise NeedsTwo" in raised.failure.traceback
    assert returned.failure is not None
    assert (returned.failure.kind, returned.failure.retryable) == (FailureKind.RESULT_INVALID, False)


@pytest.mark.parametrize("body", [bodies.wait_in_child, bodies.look_in_child], ids=lambda body: body.__name__)
async def test_a_body_in_a_child_is_paused_resumed_and_stopped(store: Store, body: Any) -> None:
    async with Engine(store, tasks=CHILD_TASKS, pause_window=30.0, stop_grace=30.0) as engine:
        handle = await engine.submit(body.bind())
        with anyio.fail_after(60):
            await running(engine, handle.id)
            assert await handle.pause(reason="a break") is True
            assert (await handle.task()).state is State.PAUSED
            assert await handle.resume() is True
            stopped = await handle.stop(reason="enough")
    assert stopped.state is State.STOPPED
    assert stopped.wish is not None
    assert stopped.wish.reason == "enough"


async def test_a_child_is_timed_out_by_force_and_the_timeout_is_retried(store: Store) -> None:
    async with Engine(store, tasks=CHILD_TASKS, concurrency=1) as engine:
        handle = await engine.submit(bodies.loop_for_ever.bind(), timeout=0.2, max_attempts=2, retry=bodies.AGAIN)
        with anyio.fail_after(60):
            outcome = await handle.wait()
        assert (outcome.state, outcome.attempt) == (State.FAILED, 2)
        assert outcome.failure is not None
        assert outcome.failure.kind is FailureKind.TIMEOUT_ATTEMPT
        assert (await (await engine.submit(bodies.child_pid.bind())).wait()).ok


async def test_the_clocks_of_a_child_begin_when_its_module_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a module that takes longer to load than an attempt may take could never be run."""
    (tmp_path / "slow_to_load.py").write_text(
        "import time\n"
        "from taskengine import Timeouts, task\n"
        "time.sleep(1.0)\n"
        "@task(executor='process', timeout=Timeouts(attempt=0.5, idle=0.5, final=('attempt', 'idle')))\n"
        "def loaded() -> int:\n"
        "    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = importlib.import_module("slow_to_load").loaded
    async with Engine(MemoryStore(), tasks=[loaded]) as engine:
        with anyio.fail_after(60):
            assert (await (await engine.submit(loaded.bind())).wait()).value == 1


async def test_a_child_is_replaced_after_so_many_calls(store: Store) -> None:
    async with Engine(store, tasks=CHILD_TASKS, concurrency=1, child_max_tasks=2) as engine:
        with anyio.fail_after(60):
            pids = [(await (await engine.submit(bodies.child_pid.bind(n))).wait()).value for n in range(6)]
    assert max(pids.count(pid) for pid in pids) <= 2


def test_a_function_that_no_child_could_import_is_refused_when_it_is_registered() -> None:
    def local() -> None: ...

    with pytest.raises(InvalidOption, match="executor"):
        task(executor="process")(local)
    with pytest.raises(InvalidOption, match="executor"):
        Engine(MemoryStore(), tasks=[]).register("local", local, executor="process")


async def test_the_default_executor_may_be_child_processes_and_refuses_what_they_cannot_import() -> None:
    def local() -> None: ...

    async with Engine(MemoryStore(), tasks=[double], default_executor="process") as engine:
        with anyio.fail_after(60):
            assert (await (await engine.submit(double.bind(4))).wait()).value == 8
    with pytest.raises(InvalidOption, match="executor"):
        async with Engine(MemoryStore(), tasks=[local], default_executor="process"):
            pass


# --- threads ----------------------------------------------------------------------------------------------------


async def test_threads_whose_timeout_comes_just_as_they_end_cost_no_capacity(store: Store) -> None:
    """B14: fifty rounds, and then as many bodies at once as ever."""
    before = set(threading.enumerate())
    tasks: list[Any] = [bodies.end_at_its_timeout, bodies.quick_in_thread]
    async with Engine(store, tasks=tasks, concurrency=2, kill_grace=30.0) as engine:
        with anyio.fail_after(100):
            for _ in range(50):
                outcome = await (await engine.submit(bodies.end_at_its_timeout.bind())).wait()
                assert outcome.state in (State.SUCCEEDED, State.FAILED)
                if outcome.failure is not None:
                    assert outcome.failure.kind is FailureKind.TIMEOUT_ATTEMPT
            meeting = threading.Barrier(2)
            engine.register("meet", meeting.wait, executor="thread")
            handles = [await engine.submit(TaskCall.of("meet")) for _ in range(2)]
            assert [(await handle.wait()).ok for handle in handles] == [True, True]
    # Other tests leave threads behind that nothing can end.
    assert {thread for thread in threading.enumerate() if thread.name.startswith("taskengine-body")} <= before


async def test_two_threads_stuck_for_ever_stop_neither_a_third_task_nor_the_exit(store: Store) -> None:
    """B15: both are out of time and lost, the next one runs in a slot that took their place."""
    tasks: list[Any] = [bodies.stuck_in_thread, bodies.quick_in_thread]
    with anyio.fail_after(60):
        async with Engine(store, tasks=tasks, concurrency=2, kill_grace=0.1) as engine:
            stuck = [await engine.submit(bodies.stuck_in_thread.bind(), timeout=0.1) for _ in range(2)]
            third = await engine.submit(bodies.quick_in_thread.bind(3))
            assert (await third.wait()).value == 3
            for handle in stuck:
                outcome = await handle.wait()
                assert (outcome.state, outcome.attempt) == (State.LOST, 1)
                assert outcome.failure is not None
                assert outcome.failure.kind is FailureKind.TIMEOUT_ATTEMPT
                assert "stuck_in_thread" in outcome.failure.message


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_program_with_threads_stuck_for_ever_exits(backend: str) -> None:
    program = f"""
import anyio
from taskengine import Engine, MemoryStore
from tests.executors.bodies_for_engines import stuck_in_thread

async def main():
    settings = dict(concurrency=2, shutdown_grace=0, kill_grace=0.1)
    async with Engine(MemoryStore(), tasks=[stuck_in_thread], **settings) as engine:
        handles = [await engine.submit(stuck_in_thread.bind()) for _ in range(2)]
        for handle in handles:
            print((await handle.cancel(timeout=30)).state.value)

anyio.run(main, backend={backend!r})
"""
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["lost", "lost"]


# --- several at once --------------------------------------------------------------------------------------------


async def test_a_total_timeout_ends_bodies_in_every_executor(store: Store) -> None:
    @task(max_attempts=5)
    async def on_loop(ctx: TaskContext) -> None:
        await anyio.sleep_forever()

    tasks: list[Any] = [on_loop, bodies.look_in_child]
    async with Engine(store, tasks=tasks) as engine:
        handles = [
            await engine.submit(call, timeout=Timeouts(total=1.0))
            for call in (on_loop.bind(), bodies.look_in_child.bind())
        ]
        with anyio.fail_after(60):
            for handle in handles:
                outcome = await handle.wait()
                assert outcome.state is State.FAILED
                assert outcome.failure is not None
                assert outcome.failure.kind is FailureKind.TIMEOUT_TOTAL


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_killing_the_engine_leaves_no_child_behind(tmp_path: Path, backend: str) -> None:
    """F30: the children end when the pipe to their parent does."""
    program = f"""
import anyio, os
from taskengine import Engine
from tests.executors.bodies_for_engines import child_pid, loop_for_ever

async def main():
    async with Engine({str(tmp_path / "tasks.db")!r}, tasks=[child_pid, loop_for_ever], concurrency=1) as engine:
        print((await (await engine.submit(child_pid.bind())).wait()).value, flush=True)
        await engine.submit(loop_for_ever.bind())
        await anyio.sleep_forever()

anyio.run(main, backend={backend!r})
"""
    root = Path(__file__).parent.parent
    process = subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()

    deadline = time.monotonic() + 30
    while _is_alive(child):  # The kernel tells nobody of a process that is not one's child.
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
