import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from taskengine.cli.local_downstream import Answer, Hold
from tests.cli.conftest import CommandLine, Processes, Server, await_line

Serve = Callable[[Mapping[str, Sequence[Answer]]], Server]
BACKENDS = pytest.mark.parametrize("backend", ["asyncio", "trio"])
ALLOW = ("--allow-host", "127.0.0.1")


@BACKENDS
def test_drain_runs_everything_and_ends(cli: CommandLine, serve: Serve, backend: str) -> None:
    server = serve({"/ok": (200,), "/later": (503, 200)})
    lines = [json.dumps({"url": server.url(path), "json": n}) for n in range(20) for path in ("/ok",)]
    lines.append(json.dumps({"url": server.url("/later")}))
    cli("submit", "--from", "-", stdin="\n".join(lines).encode())
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    result = cli("worker", "--drain", "--json", "--backend", backend, *ALLOW)
    assert result.code == 0, result.err
    assert result.json == {"ended": 21, "by_state": {"succeeded": 21}, "left": []}
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert (server.seen.posts["/ok"], server.seen.posts["/later"]) == (20, 2)


def test_drain_exits_with_3_only_for_what_ended_here(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/bad": (400,), "/ok": (200,)})
    cli.submit(server.url("/bad"))
    first = cli("worker", "--drain", *ALLOW)
    assert (first.code, first.out) == (3, "")
    assert "1 failed; nothing is left" in first.err
    cli.submit(server.url("/ok"))
    assert cli("worker", "--drain", *ALLOW).code == 0


def test_drain_names_what_it_leaves(cli: CommandLine) -> None:
    cli("submit", "resize", "--arg", "path=x")
    result = cli("worker", "--drain", "--json")
    assert (result.code, result.json["left"][0]["name"], result.json["left"][0]["unfinished"]) == (0, "resize", 1)
    assert "left: 1 resize (not known here; pass --tasks MODULE)" in result.err


def test_address_guard_stands_unless_a_host_is_allowed(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/": (200,)})
    task_id = cli.submit(server.url())
    assert cli("worker", "--drain").code == 3
    assert cli.state(task_id)["failure"]["type"] == "AddressNotAllowed"
    assert server.seen.posts["/"] == 0
    assert cli("worker", "--drain", "--allow-host", "no host").code == 1


def test_tasks_of_a_module_run(cli: CommandLine, write_module: Callable[[str], str]) -> None:
    module = write_module("import taskengine\n@taskengine.task\ndef double(n: int) -> int:\n    return 2 * n\n")
    task_id = cli("submit", "double", "--arg", "n=21", "--tasks", module).out.strip()
    assert cli("submit", "double", "--arg", "n=x", "--tasks", module).code == 1
    assert cli("--tasks", module, "worker", "--drain", "--durability", "fast").code == 0
    assert cli.state(task_id)["result"] == 42


MODULE = """
import os
import taskengine

@taskengine.task(executor="process")
def cube(ctx: taskengine.TaskContext, n: int) -> list[int]:
    ctx.log("in a child")
    return [n ** 3, os.getpid()]

@taskengine.task
def where() -> int:
    return os.getpid()

def square(n: int) -> list[int]:
    return [n ** 2, os.getpid()]

def register(engine):
    engine.register("squared", square, executor="process")
"""


@BACKENDS
def test_module_may_have_tasks_for_child_processes_and_a_hook(
    cli: CommandLine, write_module: Callable[[str], str], backend: str
) -> None:
    module = write_module(MODULE)
    ids = [cli("submit", name, "--arg", "n=3", "--tasks", module).out.strip() for name in ("cube", "squared")]
    result = cli("--tasks", module, "worker", "--drain", "--backend", backend)
    assert result.code == 0, result.err
    assert "working on cube, http_post, squared, where" in result.err
    (cubed, one), (squared, another) = (cli.state(task_id)["result"] for task_id in ids)
    assert (cubed, squared) == (27, 9)
    assert os.getpid() not in (one, another)
    assert [line["message"] for line in cli("logs", ids[0], "--json").json] == ["in a child"]


def test_task_of_a_hook_is_run_by_run(cli: CommandLine, write_module: Callable[[str], str]) -> None:
    result = cli("run", "squared", "--arg", "n=3", "--tasks", write_module(MODULE), "--json")
    assert (result.code, result.json["result"][0]) == (0, 9)


@pytest.mark.parametrize("command", ["run", "worker"])
def test_sync_functions_run_where_the_default_executor_says(
    cli: CommandLine, write_module: Callable[[str], str], command: str
) -> None:
    module = write_module(MODULE)

    def run(*options: str) -> int:
        if command == "run":
            return int(cli("run", "where", "--tasks", module, "--json", *options).json["result"])
        task_id = cli("submit", "where", "--tasks", module).out.strip()
        assert cli("worker", "--drain", "--tasks", module, *options).code == 0
        return int(cli.state(task_id)["result"])

    assert [run(*options) == os.getpid() for options in ((), ("--default-executor", "inline"))] == [True, True]
    assert run("--default-executor", "process") != os.getpid()


def test_body_that_hears_nothing_is_ended_after_the_stop_grace(
    cli: CommandLine, processes: Processes, write_module: Callable[[str], str]
) -> None:
    module = write_module(
        "import anyio, taskengine\n"
        "@taskengine.task\n"
        "async def deaf(ctx: taskengine.TaskContext) -> None:\n"
        "    ctx.warning('it has begun')\n"
        "    await anyio.sleep_forever()\n"
    )
    task_id = cli("submit", "deaf").out.strip()
    worker = processes.start("worker", "--tasks", module, "--stop-grace", "0.1")
    await_line(worker, "it has begun")
    assert cli("stop", task_id, "--timeout", "60").out == "stopped\n"
    assert cli("worker", "--stop-grace", "-1").code == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_logs_go_to_stderr_in_the_chosen_form(cli: CommandLine, serve: Serve, form: str) -> None:
    server = serve({"/": (200,)})
    task_id = cli.submit(server.url(), "--label", "two\nlines")
    result = cli("worker", "--drain", "--json", "--log-level", "info", "--log-format", form, *ALLOW)
    assert result.json["ended"] == 1
    lines = [line for line in result.err.splitlines() if task_id in line]
    if form == "json":
        records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        assert [record["event"] for record in records] == ["task_start", "task_done"]
        assert records[1]["http_status"] == 200
    else:
        assert ["task_start" in lines[0], "task_done" in lines[1], len(lines)] == [True, True, 2]


def test_quiet_by_default_but_for_trouble(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/": (503, 200)})
    cli.submit(server.url())
    err = cli("worker", "--drain", *ALLOW).err
    assert "task_retry" in err
    assert "task_done" not in err


def test_terminal_gets_a_bar(cli: CommandLine, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"/": (503, 200)})
    cli.submit(server.url(), "--label", "[red]")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    result = cli("worker", "--drain", *ALLOW)
    assert result.code == 0
    assert "━" in result.err
    assert "1 succeeded; nothing is left" in result.err


def test_actor_that_crashes_exits_with_1(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskengine.actors.claimer import Claimer

    async def crash(self: Claimer) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Claimer, "_give_credit", crash)
    result = cli("worker")
    assert result.code == 1
    assert "taskengine: RuntimeError: a bug\n" in result.err


# --- processes and signals --------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_running_bodies_end_and_begins_no_more(
    cli: CommandLine, serve: Serve, processes: Processes, backend: str, number: signal.Signals
) -> None:
    server = serve({"/": (Hold(1.0),)})
    first, second = cli.submit(server.url()), cli.submit(server.url())
    worker = processes.start("worker", "--concurrency", "1", "--backend", backend, *ALLOW)
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.send_signal(number)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 0, err
    assert "1 succeeded; left: 1 http_post (left for the next worker)" in err
    assert (cli.state(first)["state"], cli.state(second)["state"]) == ("succeeded", "queued")
    assert cli.state(second)["charged"] == 0


@BACKENDS
def test_bodies_that_outlast_the_grace_are_given_back_uncharged(
    cli: CommandLine, serve: Serve, processes: Processes, backend: str
) -> None:
    server = serve({"/": (Hold(60), 200)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--grace", "0", "--backend", backend, *ALLOW)
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.terminate()
    assert worker.wait(60) == 0
    server.wait_until(lambda seen: seen.disconnects["/"] == 1)
    task = cli.state(task_id)
    assert (task["state"], task["attempt"], task["charged"]) == ("queued", 1, 0)
    assert cli("worker", "--drain", "--backend", backend, *ALLOW).code == 0
    task = cli.state(task_id)
    assert (task["state"], task["attempt"], task["charged"]) == ("succeeded", 2, 1)


@BACKENDS
def test_second_signal_cancels_at_once(cli: CommandLine, serve: Serve, processes: Processes, backend: str) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--grace", "1000", "--backend", backend, *ALLOW)
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.terminate()
    await_line(worker, "no more is begun")
    worker.terminate()
    server.wait_until(lambda seen: seen.disconnects["/"] == 1)
    assert worker.wait(60) == 0
    task = cli.state(task_id)
    assert (task["state"], task["charged"]) == ("queued", 0)


def test_third_signal_ends_the_process_on_the_spot(
    cli: CommandLine, processes: Processes, write_module: Callable[[str], str]
) -> None:
    module = write_module(
        "import taskengine, threading\n"
        "@taskengine.task\n"
        "def stubborn(ctx: taskengine.TaskContext) -> None:\n"
        "    ctx.warning('it has begun')\n"
        "    threading.Event().wait()\n"
    )
    cli("submit", "stubborn")
    worker = processes.start("worker", "--grace", "1000", "--tasks", module)
    await_line(worker, "it has begun")
    for answer in ("no more is begun", "cancelling"):
        worker.terminate()
        await_line(worker, answer)
    worker.terminate()
    assert worker.wait(60) == 1


@BACKENDS
def test_killed_worker_loses_nothing_and_the_next_one_finishes(
    cli: CommandLine, serve: Serve, processes: Processes, backend: str
) -> None:
    server = serve({f"/{n}": (Hold(60), 200) if n == 0 else (200,) for n in range(10)})
    lines = [json.dumps({"url": server.url(f"/{n}"), "timeout": 60}) for n in range(10)]
    cli("submit", "--from", "-", stdin="\n".join(lines).encode())
    worker = processes.start("worker", "--concurrency", "1", "--backend", backend, *ALLOW)
    server.wait_until(lambda seen: seen.posts["/0"] == 1)
    worker.kill()
    worker.wait(60)
    result = cli("worker", "--drain", "--json", "--backend", backend, *ALLOW)
    assert (result.code, result.json["by_state"]) == (0, {"succeeded": 10})
    assert cli("stats", "--json").json["by_state"]["succeeded"] == 10
    assert server.seen.posts["/0"] == 2
    assert all(server.seen.posts[f"/{n}"] == 1 for n in range(1, 10))
