"""How a child ends: by force, by a crash, by a limit, with its parent; and that nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from taskengine import FailureKind, TaskStopped
from taskengine.executors.process.executor import ProcessExecutor
from taskengine.ports import BodyEnd
from tests.executors import bodies_for_children as bodies
from tests.executors.process_calls import (
    KILL_GRACE,
    HeardVoice,
    Watch,
    call_of,
    open_executor,
    report_of,
    result,
    run,
    state_of,
)

# --- by force ---------------------------------------------------------------------------------------------------


async def test_an_endless_loop_is_interrupted_and_the_next_call_runs() -> None:
    async with open_executor(warm_spare=False) as executor:
        first = await result(executor, bodies.pid)
        end, seconds = await _interrupt_when_begun(executor, bodies.spin)
        assert isinstance(end.error, TaskStopped)
        assert end.error.reason == "terminated"
        assert seconds < KILL_GRACE / 3
        assert state_of(first) is None
        assert await result(executor, bodies.pid) != first


async def test_a_loop_that_ignores_sigterm_is_killed_within_the_grace() -> None:
    async with open_executor(warm_spare=False) as executor:
        end, seconds = await _interrupt_when_begun(executor, bodies.handle_sigterm)
        assert isinstance(end.error, TaskStopped)
        assert KILL_GRACE / 3 <= seconds < KILL_GRACE
        assert await result(executor, bodies.add, 1) == 2


async def _interrupt_when_begun(executor: ProcessExecutor, function: object) -> tuple[BodyEnd, float]:
    voice, ends = HeardVoice(), []
    body = executor.start(call_of(function, voice=voice))  # type: ignore[arg-type]

    async def keep_end() -> None:
        ends.append(await body.run())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tg:
            tg.start_soon(keep_end)
            await voice.wait_for("log")
            assert "bodies_for_children" in body.where()
            begun = time.monotonic()
            body.interrupt()
            body.interrupt()
    seconds = time.monotonic() - begun
    body.interrupt()  # After the end it has no effect.
    body.abandon()
    assert body.where() != ""
    return ends[0], seconds


async def test_what_the_body_has_started_is_killed_with_it() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice()
        body = executor.start(call_of(bodies.start_program, then="spin", voice=voice))
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tg:
                tg.start_soon(body.run)
                watches = await _watch(voice)
                body.interrupt()
        for watch in watches:
            await watch.wait_until_dead()


async def test_what_a_finished_body_has_left_behind_ends_with_its_child() -> None:
    async with open_executor(max_tasks_per_child=2, warm_spare=False) as executor:
        program = Watch(await result(executor, bodies.start_program, then="return"))
        assert state_of(program.pid) not in (None, "Z")
        await result(executor, bodies.add, 1)
        await program.wait_until_dead()


async def test_cancelling_the_run_kills_the_child_and_passes_on() -> None:
    async with open_executor() as executor:
        voice = HeardVoice()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tg:
                tg.start_soon(executor.start(call_of(bodies.start_program, then="spin", voice=voice)).run)
                watches = await _watch(voice)
                tg.cancel_scope.cancel()
        for watch in watches:
            await watch.wait_until_dead()
        assert await result(executor, bodies.add, 1) == 2


async def test_a_run_that_is_cancelled_before_it_begins_leaves_no_child() -> None:
    async with open_executor() as executor:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await executor.start(call_of(bodies.spin)).run()
        assert scope.cancelled_caught


async def test_an_interrupt_before_the_run_begins_nothing() -> None:
    async with open_executor(warm_spare=False) as executor:
        body = executor.start(call_of(bodies.spin))
        assert body.where() == "not begun"
        body.interrupt()
        assert isinstance((await body.run()).error, TaskStopped)


async def test_an_interrupt_while_the_child_is_started_is_obeyed() -> None:
    async with open_executor(warm_spare=False) as executor:
        body, ends = executor.start(call_of(bodies.spin)), []

        async def keep_end() -> None:
            ends.append(await body.run())

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tg:
                tg.start_soon(keep_end)
                await anyio.lowlevel.checkpoint()
                body.interrupt()
        assert isinstance(ends[0].error, TaskStopped)


async def test_an_abandoned_body_is_killed_without_grace() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice, ends = HeardVoice(), []
        body = executor.start(call_of(bodies.handle_sigterm, voice=voice, kill_grace=60.0))

        async def keep_end() -> None:
            ends.append(await body.run())

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tg:
                tg.start_soon(keep_end)
                await voice.wait_for("log")
                body.interrupt()
                await anyio.lowlevel.checkpoint()
                body.abandon()
        assert ends[0].is_abandoned


async def _watch(voice: HeardVoice) -> list[Watch]:
    """Watch the processes whose numbers the body logs."""
    return [Watch(int(number)) for number in (await voice.wait_for("log"))[2].split()]


# --- by a crash -------------------------------------------------------------------------------------------------


async def test_crashes_fail_their_own_call_with_exit_code_or_signal() -> None:
    async with open_executor() as executor:
        for function, args, detail in (
            (bodies.exit_hard, (3,), {"exit_code": 3}),
            (bodies.exit_hard, (0,), {"exit_code": 0}),
            (bodies.segfault, (), {"signal": "SIGSEGV"}),
            (bodies.kill_itself, (signal.SIGKILL.value,), {"signal": "SIGKILL"}),
            (bodies.kill_itself, (signal.SIGRTMIN.value + 3,), {"signal": f"signal {signal.SIGRTMIN + 3}"}),
        ):
            report = report_of(await run(executor, function, *args))
            assert report.failure.kind is FailureKind.CRASHED
            assert report.failure.type == "ChildCrashed"
            assert report.failure.detail == detail
            assert str(next(iter(detail.values()))) in report.failure.message
            assert report.retryable is True
            assert await result(executor, bodies.add, 1) == 2


@pytest.mark.parametrize("text", ["Hello, world: this is no frame", "\0\0\0\2[]", "\0\0\0\7\xff"])
async def test_garbage_on_the_pipe_is_a_crash_of_its_own_call(text: str) -> None:
    async with open_executor(warm_spare=False) as executor:
        report = report_of(await run(executor, bodies.write_garbage, text))
        assert report.failure.kind is FailureKind.CRASHED
        assert "pipe to the engine" in report.failure.message
        assert await result(executor, bodies.add, 1) == 2


async def test_garbage_between_two_calls_is_not_blamed_on_the_next(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    told = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with open_executor(warm_spare=False) as executor:
            voice = HeardVoice(folder=str(tmp_path))
            first = await result(executor, bodies.write_garbage_later, str(fifo), voice=voice)
            with anyio.fail_after(10):
                await anyio.wait_readable(told)
            assert await result(executor, bodies.pid) != first
    finally:
        os.close(told)
    assert state_of(first) is None


async def test_a_body_that_closes_the_pipe_to_the_engine_ends_its_child() -> None:
    async with open_executor(warm_spare=False) as executor:
        report = report_of(await run(executor, bodies.close_pipe_to_engine))
        assert report.failure.kind is FailureKind.CRASHED
        assert await result(executor, bodies.add, 1) == 2


async def test_a_crash_takes_along_what_the_body_has_started() -> None:
    async with open_executor(warm_spare=False) as executor:
        for function, options in ((bodies.start_program, {"then": "crash"}), (bodies.fork_and_crash, {})):
            voice = HeardVoice()
            report = report_of(await run(executor, function, voice=voice, **options))
            assert "exit_code" in (report.failure.detail or {})
            program = int((await voice.wait_for("log"))[2].split()[1])
            if state_of(program) not in (None, "Z", "X"):
                await Watch(program).wait_until_dead()


async def test_a_body_that_forks_and_comes_back_twice_answers_once() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice()
        assert await result(executor, bodies.fork_and_return, voice=voice) == "original"
        assert voice.all("log") == []
        assert await result(executor, bodies.add, 1) == 2


# --- by a limit -------------------------------------------------------------------------------------------------


async def test_memory_beyond_the_limit_fails_that_call_only() -> None:
    async with open_executor(memory_limit=2**30) as executor:
        first = await result(executor, bodies.pid)
        assert await result(executor, bodies.fill_memory, 2**20) == 1
        report = report_of(await run(executor, bodies.fill_memory, 2**30))
        assert report.failure.type == "MemoryError"
        assert report.failure.kind is FailureKind.EXCEPTION
        # What it has hoarded went with its child.
        assert await result(executor, bodies.pid) != first
        assert await result(executor, bodies.fill_memory, 2**20) == 1


async def test_a_memory_limit_below_what_python_takes_is_named() -> None:
    async with open_executor(memory_limit=2**20) as executor:
        report = report_of(await run(executor, bodies.add, 1))
    assert report.failure.type == "ChildUnavailable"
    assert "memory_limit is 1,048,576 bytes" in report.failure.message


async def test_processor_time_beyond_the_limit_ends_the_call_with_its_signal() -> None:
    async with open_executor(cpu_limit=1) as executor:
        report = report_of(await run(executor, bodies.burn))
        assert report.failure.kind is FailureKind.CRASHED
        assert report.failure.detail == {"signal": "SIGXCPU"}
        assert "cpu_limit" in report.failure.message
        assert await result(executor, bodies.add, 1) == 2


# --- with the parent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_killed_parent_takes_the_busy_child_and_its_programs_along(backend: str) -> None:
    root = Path(__file__).parent.parent.parent
    program = f"from tests.executors.process_calls import run_and_tell; run_and_tell({backend!r})"
    with subprocess.Popen([sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(number) for number in parent.stdout.readline().split()]
        assert len(pids) == 2
        watches = [Watch(pid) for pid in pids]
        os.kill(parent.pid, signal.SIGKILL)

        async def wait() -> None:
            for watch in watches:
                await watch.wait_until_dead()

        anyio.run(wait)
