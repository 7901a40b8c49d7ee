"""Bodies in child processes: calls, results, errors, and how children are reused."""

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from taskengine import FailureKind, InvalidOption, TaskStopped, UsageError
from taskengine.core.errors import TaskDiscarded, TaskSnoozed
from taskengine.executors.process import children
from taskengine.executors.process.executor import ProcessExecutor
from taskengine.executors.process.frames import Quit, encode
from tests.executors import bodies_for_children as bodies
from tests.executors.process_calls import (
    HeardVoice,
    call_of,
    children_of_this_process,
    open_executor,
    report_of,
    result,
    run,
    state_of,
)

# --- calls and results ------------------------------------------------------------------------------------------


async def test_sync_and_async_functions_return_their_results_as_json_text() -> None:
    async with open_executor(warm_spare=False) as executor:
        assert await result(executor, bodies.add, 1, b=2) == 3
        assert await result(executor, bodies.add, 1) == 2
        assert await result(executor, bodies.add_slowly, 3, 4) == 7
        assert await result(executor, bodies.Holder.nested, 5) == -5
        assert await result(executor, bodies.double, timedelta(days=1)) == "P2D"


async def test_a_decorated_task_gets_its_context_filled() -> None:
    async with open_executor(warm_spare=False) as executor:
        said = await result(executor, bodies.decorated, "w")
    assert said == ["w", "0192-id", "test.decorated", 3, {"tenant": "a"}, "key"]


async def test_the_body_runs_on_the_main_thread_of_a_process_of_its_own() -> None:
    async with open_executor(warm_spare=False) as executor:
        assert await result(executor, bodies.is_on_main_thread) is True
        assert await result(executor, bodies.pid) != os.getpid()


async def test_a_child_sees_the_path_as_the_parent_has_it_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_executor(warm_spare=False) as executor:
        assert await result(executor, bodies.path_entries) == sys.path
        monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere/\udce4"])
        end = await run(executor, bodies.path_entries)
        assert report_of(end).failure.kind is FailureKind.RESULT_INVALID  # That entry cannot even be stored.
        monkeypatch.setattr(sys, "path", [*sys.path[:-1], "/nowhere/ä", Path("/nowhere"), "\x00", "\ud800"])
        assert await result(executor, bodies.path_entries) == sys.path[:-3]
        await executor.aclose()
    async with open_executor(warm_spare=False) as executor:
        assert await result(executor, bodies.path_entries) == sys.path[:-3]


async def test_a_child_imports_nothing_heavy_and_no_second_engine() -> None:
    async with open_executor(warm_spare=False) as executor:
        loaded = set(await result(executor, bodies.pid) and await result(executor, bodies.modules))
    heavy = {"trio", "apsw", "httpx", "click", "rich", "taskengine.actors.runner", "taskengine.executors.process.body"}
    assert not loaded & heavy


async def test_a_child_has_no_files_but_the_two_pipes_and_null(tmp_path: Any) -> None:
    kept = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        async with open_executor(warm_spare=False) as executor:
            found = await result(executor, bodies.open_files)
    finally:
        os.close(kept)
    assert found.pop("0") == os.devnull
    assert found.pop("1") == found.pop("2")
    others = [target for target in found.values() if not target.startswith(("pipe:", "socket:", "/proc/"))]
    assert others == []
    assert len(found) <= 3  # The third is the listing itself.


async def test_prints_and_programs_do_not_touch_the_conversation(capfd: pytest.CaptureFixture[str]) -> None:
    async with open_executor(warm_spare=False) as executor:
        assert await result(executor, bodies.print_and_run) == ""
        assert await result(executor, bodies.add, 1) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert "to standard output" in said.err
    assert "raw bytes" in said.err
    assert "from a program" in said.err


async def test_large_arguments_and_results_pass_and_what_is_too_large_is_an_invalid_result() -> None:
    async with open_executor(warm_spare=False) as executor:
        assert len(await result(executor, bodies.make_text, 1024 * 1024 - 2)) == 1024 * 1024 - 2
        report = report_of(await run(executor, bodies.make_text, 100 * 1024 * 1024))
        assert await result(executor, bodies.add, 1) == 2
    assert (report.failure.kind, report.failure.type, report.retryable) == (
        FailureKind.RESULT_INVALID,
        "InvalidResult",
        False,
    )


@pytest.mark.parametrize("what", ["lambda", "file", "set", "object"])
async def test_results_that_json_cannot_hold_are_invalid_results(what: str) -> None:
    async with open_executor(warm_spare=False) as executor:
        report = report_of(await run(executor, bodies.return_named, what))
        for function in (bodies.return_generator, bodies.return_coroutine):
            assert report_of(await run(executor, function)).failure.kind is FailureKind.RESULT_INVALID
    assert report.failure.kind is FailureKind.RESULT_INVALID
    assert report.retryable is False


# --- errors -----------------------------------------------------------------------------------------------------


async def test_an_exception_comes_over_as_data_and_never_as_an_object() -> None:
    async with open_executor(warm_spare=False) as executor:
        first = await result(executor, bodies.pid)
        report = report_of(await run(executor, bodies.raise_two_arguments))
        assert await result(executor, bodies.pid) == first
    assert report.failure.type == "TwoArguments"
    assert report.failure.message == "second=2"
    assert "raise_two_arguments" in report.failure.traceback
    assert report.leaves[0][0] == "tests.executors.bodies_for_children.TwoArguments"
    assert report.retryable is None


async def test_a_failed_attempt_keeps_its_kind_verdict_wait_and_detail() -> None:
    async with open_executor(warm_spare=False) as executor:
        report = report_of(await run(executor, bodies.raise_failed))
        odd = report_of(await run(executor, bodies.raise_failed_oddly))
    assert (report.failure.kind, report.failure.type) == (FailureKind.CONNECTION, "Busy")
    assert (report.retryable, report.retry_after) == (False, 4.0)
    assert report.failure.detail == {"status": 503}
    assert odd.failure.detail is not None
    assert "unstorable" in odd.failure.detail


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt"])
async def test_exits_that_are_exceptions_fail_the_attempt_and_leave_the_child(name: str) -> None:
    async with open_executor(warm_spare=False) as executor:
        first = await result(executor, bodies.pid)
        report = report_of(await run(executor, bodies.raise_named, name))
        assert await result(executor, bodies.pid) == first
    assert (report.failure.type, report.failure.message) == (name, "x")
    assert report.retryable is None


async def test_control_exceptions_are_rebuilt_also_out_of_groups() -> None:
    async with open_executor(warm_spare=False) as executor:
        snoozed = (await run(executor, bodies.snooze)).error
        discarded = (await run(executor, bodies.discard)).error
        ends = {what: await run(executor, bodies.raise_in_groups, what) for what in ("stopped", "snoozed", "discarded")}
        report = report_of(await run(executor, bodies.raise_in_groups, "value"))
        odd = report_of(await run(executor, bodies.raise_odd_snooze))
    assert isinstance(snoozed, TaskSnoozed)
    assert (snoozed.delay, snoozed.reason) == (2.5, "later")
    assert isinstance(discarded, TaskDiscarded)
    assert discarded.reason == "pointless"
    assert isinstance(ends["stopped"].error, TaskStopped)
    assert ends["stopped"].error.reason == "enough"
    assert isinstance(ends["snoozed"].error, TaskSnoozed)
    assert isinstance(ends["discarded"].error, TaskDiscarded)
    assert report.failure.message == "ValueError: bad"
    assert report.leaves == [["builtins.ValueError", "builtins.Exception", "builtins.BaseException"]]
    assert odd.failure.type == "TaskSnoozed"


async def test_a_module_that_a_child_cannot_import_fails_that_call_only(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module_that_goes.py"
    module.write_text("def work():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import module_that_goes  # type: ignore[import-not-found]

    try:
        module.write_text("raise SystemExit('no import')\n")
        async with open_executor(warm_spare=False) as executor:
            first = await result(executor, bodies.pid)
            report = report_of(await run(executor, module_that_goes.work))
            module.unlink()
            gone = report_of(await run(executor, module_that_goes.work))
            assert await result(executor, bodies.pid) == first
    finally:
        del sys.modules["module_that_goes"]
    assert (report.failure.type, report.failure.message) == ("SystemExit", "no import")
    assert gone.failure.type == "ModuleNotFoundError"


async def test_a_function_that_has_no_name_to_import_by_is_refused_before_any_child() -> None:
    def local() -> None: ...

    async with open_executor(warm_spare=False) as executor:
        end = await run(executor, local)
        assert isinstance(end.error, InvalidOption)
        end = await run(executor, bodies.original_not_importable)
        assert isinstance(end.error, InvalidOption)
        assert children_of_this_process() == []


# --- children ---------------------------------------------------------------------------------------------------


async def test_a_child_is_reused_and_replaced_after_its_last_call() -> None:
    async with open_executor(max_tasks_per_child=2, warm_spare=False) as executor:
        pids = [await result(executor, bodies.pid) for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
        assert state_of(pids[0]) is None
        assert state_of(pids[2]) is None


async def test_a_spare_is_started_with_the_call_that_takes_the_last_child() -> None:
    async with open_executor() as executor:
        assert children_of_this_process() == []
        first = await result(executor, bodies.pid)
        waiting = children_of_this_process()
        assert len(waiting) == 2
        assert str(first) in waiting
        assert await result(executor, bodies.pid) == first  # The warm one, not the spare.
        assert sorted(children_of_this_process()) == sorted(waiting)
        await run(executor, bodies.exit_hard, 1)
        assert str(await result(executor, bodies.pid)) in waiting


async def test_calls_at_once_have_a_child_each_and_one_spare() -> None:
    pids: list[int] = []
    async with open_executor() as executor:
        voice, signals = [HeardVoice() for _ in range(3)], [call_of(bodies.add, 1).signals for _ in range(3)]

        async def wait(number: int) -> None:
            await run(executor, bodies.late_progress, voice=voice[number], signals=signals[number])

        async with anyio.create_task_group() as tg:
            for number in range(3):
                tg.start_soon(wait, number)
            for heard in voice:
                await heard.wait_for("log")
            assert len(children_of_this_process()) == 4
            for each in signals:
                each.request_stop(None)
        pids = [await result(executor, bodies.pid) for _ in range(3)]
    assert len(set(pids)) == 1


async def test_an_idle_child_that_has_died_is_not_blamed_on_the_next_call() -> None:
    async with open_executor(warm_spare=False) as executor:
        first = await result(executor, bodies.pid)
        os.kill(first, 9)
        assert await result(executor, bodies.pid) != first


async def test_a_child_that_dies_before_it_begins_is_replaced_and_at_last_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "_PROGRAM", "import os; os._exit(5)")
    async with open_executor() as executor:
        report = report_of(await run(executor, bodies.add, 1))
        monkeypatch.undo()
        assert await result(executor, bodies.add, 1) == 2
    assert report.failure.kind is FailureKind.CRASHED
    assert report.failure.type == "ChildUnavailable"
    assert "exit code 5" in report.failure.message


async def test_a_program_that_cannot_be_started_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_executor(warm_spare=False) as executor:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/nowhere/python")
            report = report_of(await run(executor, bodies.add, 1))
            patch.setattr(sys, "executable", None)
            other = report_of(await run(executor, bodies.add, 1))
        assert await result(executor, bodies.add, 1) == 2
    assert "/nowhere/python" in report.failure.message
    assert "sys.executable" in other.failure.message


async def test_fifty_calls_leak_no_file_no_process_and_no_thread() -> None:
    async with open_executor(max_tasks_per_child=7) as executor:
        await result(executor, bodies.add, 1)
        files = len(os.listdir("/proc/self/fd"))
        for number in range(50):
            assert await result(executor, bodies.add, number) == number + 1
        assert len(os.listdir("/proc/self/fd")) <= files + 4  # There may be a spare now.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("waitpid")]


async def test_closing_ends_a_busy_child_with_its_body() -> None:
    voice, call = HeardVoice(), None
    executor = ProcessExecutor(warm_spare=False)
    async with anyio.create_task_group() as tg:
        call = call_of(bodies.late_progress, voice=voice)
        tg.start_soon(executor.start(call).run)
        await voice.wait_for("log")
        await executor.aclose()
        assert len(children_of_this_process()) == 1
        call.signals.request_stop(None)
    assert children_of_this_process() == []


def test_options_that_are_no_counts_are_refused() -> None:
    for options in ({"max_tasks_per_child": 0}, {"memory_limit": -1}, {"cpu_limit": 1.5}, {"cpu_limit": True}):
        with pytest.raises(InvalidOption, match=next(iter(options))):
            ProcessExecutor(**options)


async def test_a_call_without_facts_is_refused() -> None:
    with pytest.raises(UsageError):
        ProcessExecutor().start(evolve(call_of(bodies.add, 1), facts=None))


def test_a_child_that_is_told_to_quit_ends_as_a_program_does() -> None:
    program = "import atexit; atexit.register(print, 'exit handler'); " + children._PROGRAM
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program, *sys.path], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(encode(Quit()))
        child.stdin.flush()
        assert child.wait(30) == 0
        assert child.stderr.read() == b"exit handler\n"
