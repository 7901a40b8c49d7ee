import pytest

from taskengine import Engine, State
from taskengine.cli.local_downstream import Hold
from taskengine.cli.options import Shared
from tests.cli.bodies import sleep_deaf, step
from tests.cli.conftest import BesideMaker, CommandLine, Processes, await_line
from tests.cli.test_worker import BACKENDS, Serve

URL = "http://a.example/"
MANY = pytest.mark.parametrize("command", ["stop", "cancel", "pause", "resume"])


# --- cancel and stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "ended"), [("cancel", "cancelled"), ("stop", "stopped")])
def test_waiting_task_is_ended_at_once_and_again(cli: CommandLine, command: str, ended: str) -> None:
    task_id = cli.submit(URL)
    for _ in range(2):
        result = cli(command, task_id, "--reason", "no more needed", "--actor", "eve")
        assert (result.code, result.out) == (0, f"{ended}\n")
    moves = cli("history", task_id, "--json").json
    assert [(move["actor"], move["reason"]) for move in moves[1:]] == [("eve", "no more needed")]


@pytest.mark.parametrize(
    ("command", "other", "ended"), [("cancel", "stop", "stopped"), ("stop", "cancel", "cancelled")]
)
def test_asking_what_ended_otherwise_exits_with_3(cli: CommandLine, command: str, other: str, ended: str) -> None:
    failed = cli("run", "http_post", "--arg", "url=http://127.0.0.1:9/", "--json").json["id"]
    result = cli(command, failed)
    assert (result.code, result.out) == (3, "failed\n")
    task_id = cli.submit(URL)
    cli(other, task_id)
    result = cli(command, task_id, "--json")
    assert (result.code, result.json["answer"]) == (3, ended)


def test_task_of_another_process_is_cancelled_by_its_owner(
    cli: CommandLine, serve: Serve, processes: Processes
) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--allow-host", "127.0.0.1")
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    result = cli("cancel", task_id, "--reason", "enough", "--json")
    assert (result.code, result.json["answer"], result.json["state"]) == (0, "cancelled", "cancelled")
    server.wait_until(lambda seen: seen.disconnects["/"] == 1)
    reasons = {move["trigger"]: move["reason"] for move in cli("history", task_id, "--json").json}
    assert reasons["user:cancel"] == "enough"
    worker.terminate()
    assert worker.wait(30) == 0


@BACKENDS
def test_running_task_is_stopped_at_its_checkpoint_by_its_owner(
    cli: CommandLine, beside: BesideMaker, backend: str
) -> None:
    # With this grace, force would come too late for the test.
    task_id = beside(step, backend=backend, stop_grace=1000).run(step.bind())
    result = cli("stop", task_id, "--reason", "enough", "--timeout", "100", "--json")
    assert (result.code, result.json["answer"], result.json["state"]) == (0, "stopped", "stopped")


def test_stop_that_nothing_has_come_of_in_time_is_requested(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(sleep_deaf, stop_grace=1000)
    task_id = there.run(sleep_deaf.bind())
    result = cli("stop", task_id, "--reason", "enough", "--timeout", "0")
    assert (result.code, result.out) == (0, "requested\n")
    there.wait_until(task_id, State.STOPPING)
    assert "asked:         stop by cli: enough\n" in cli("status", task_id).out
    assert cli.state(task_id)["wish"] == {"kind": "stop", "actor": "cli", "reason": "enough"}
    assert cli("cancel", task_id).out == "cancelled\n"


def test_cancel_that_nobody_carries_out_in_time_is_requested(
    cli: CommandLine, serve: Serve, processes: Processes
) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--allow-host", "127.0.0.1")
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.kill()
    worker.wait(30)
    result = cli("cancel", task_id, "--wait", "0.2")
    assert (result.code, result.out) == (0, "requested\n")
    assert cli("worker", "--drain", "--allow-host", "127.0.0.1").code in (0, 3)
    assert cli.state(task_id)["state"] == "cancelled"
    assert server.seen.posts["/"] == 1


# --- pause and resume -------------------------------------------------------------------------------------------


@BACKENDS
def test_running_task_is_paused_and_resumed(cli: CommandLine, beside: BesideMaker, backend: str) -> None:
    there = beside(step, backend=backend, pause_window=1000)
    task_id = there.run(step.bind())
    result = cli("pause", task_id, "--reason", "a moment")
    assert (result.code, result.out) == (0, "paused\n")
    assert cli.state(task_id)["state"] == "paused"
    assert cli("explain", task_id).out == "its body is paused at a checkpoint, asked by cli: a moment\n"
    assert cli("stats", "--json").json["slots_paused"] == 1
    assert cli("pause", task_id, "--json").json["answer"] == "paused"
    result = cli("resume", task_id, "--json")
    assert (result.code, result.json["answer"], result.json["state"]) == (0, "resumed", "running")


def test_waiting_task_is_held_and_resumed(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    assert cli("pause", task_id, "--reason", "later", "--actor", "eve").out == "held\n"
    assert "queued (held)" in cli("ps").out
    assert "held by:       eve: later\n" in cli("status", task_id).out
    assert cli.state(task_id)["held"] == {"actor": "eve", "reason": "later", "until": None, "by": None}
    for _ in range(2):
        assert (cli("resume", task_id).out, cli.state(task_id)["held"]) == ("resumed\n", None)


def test_pause_that_comes_to_no_checkpoint_exits_with_1(cli: CommandLine, beside: BesideMaker) -> None:
    task_id = beside(sleep_deaf, pause_window=0.01).run(sleep_deaf.bind())
    result = cli("pause", task_id, "--json")
    assert (result.code, result.out) == (1, "")
    problem = "its body came to no checkpoint (a body that takes no context never does); the pause was taken back"
    assert f"not paused: {problem}\n" in result.err
    assert cli.state(task_id)["state"] == "running"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_what_has_ended_or_is_ending_is_neither_paused_nor_resumed(
    cli: CommandLine, beside: BesideMaker, command: str
) -> None:
    ended = cli.submit(URL)
    cli("cancel", ended)
    result = cli(command, ended)
    assert (result.code, result.err) == (1, f"taskengine: not {command}d: it has ended (cancelled)\n")
    there = beside(sleep_deaf, stop_grace=1000)
    ending = there.run(sleep_deaf.bind())
    cli("stop", ending, "--timeout", "0")
    there.wait_until(ending, State.STOPPING)
    assert cli(command, ending).err == f"taskengine: not {command}d: it is being ended\n"


def test_process_that_does_not_answer_is_told(
    cli: CommandLine, serve: Serve, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--allow-host", "127.0.0.1")
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.kill()
    worker.wait(30)
    monkeypatch.setattr("taskengine.controls.REMOTE_MARGIN", 0.0)
    monkeypatch.setattr(Shared, "client", lambda self: Engine(self.existing_path(), pause_window=0.1))
    result = cli("pause", task_id)
    assert (result.code, result.out) == (1, "")
    assert "the process that runs it has not answered; the request may still be carried out" in result.err


# --- many -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "ended"), [("cancel", "cancelled"), ("stop", "stopped")])
def test_many_are_ended_by_what_they_have_in_common(cli: CommandLine, command: str, ended: str) -> None:
    tagged, named = cli.submit(URL, "--tag", "x"), cli("submit", "resize").out.strip()
    later, last = cli.submit(URL, "--delay", "600"), cli.submit(URL)
    assert cli(command, "--tag", "x", "--name", "resize").out == "0 requested\n"
    assert cli(command, "--tag", "x", "--reason", "enough", "--actor", "eve", "--json").json == {"requested": 1}
    assert cli(command, "--name", "resize").out == "1 requested\n"
    assert cli(command, "--state", "scheduled", "--state", "failed").out == "1 requested\n"
    assert cli(command, "--state", ended).out == "0 requested\n"
    assert cli.state(last)["state"] == "queued"
    assert cli(command, "--all").out == "1 requested\n"
    assert {cli.state(task_id)["state"] for task_id in (tagged, named, later, last)} == {ended}
    move = cli("history", tagged, "--json").json[-1]
    assert (move["actor"], move["reason"]) == ("eve", "enough")


def test_many_are_paused_and_resumed(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(step, concurrency=1)
    running = there.run(step.bind(), tags=["x"])
    waiting = cli.submit(URL, "--tag", "x")
    assert cli("pause", "--tag", "x", "--json").json == {"requested": 2}
    there.wait_until(running, State.PAUSED)
    assert cli.state(waiting)["held"]["actor"] == "cli"
    assert cli("resume", "--all").out == "2 requested\n"
    assert cli.state(waiting)["held"] is None


@MANY
@pytest.mark.parametrize("arguments", [(), ("x", "--all"), ("x", "--tag", "y"), ("--all", "--name", "y")])
def test_what_is_meant_must_be_said_in_one_way(cli: CommandLine, command: str, arguments: tuple[str, ...]) -> None:
    cli.submit(URL)
    result = cli(command, *arguments)
    assert (result.code, result.out) == (1, "")
    assert "say which: an ID, or --tag, --name and --state, or --all" in result.err


@pytest.mark.parametrize("command", ["stop", "cancel"])
def test_ends_of_many_are_not_waited_for(cli: CommandLine, command: str) -> None:
    assert "--timeout is for one task" in cli(command, "--all", "--timeout", "1").err


@MANY
def test_state_that_does_not_exist_is_explained(cli: CommandLine, command: str) -> None:
    cli.submit(URL)
    result = cli(command, "--state", "completed")
    assert (result.code, result.out) == (1, "")
    assert "did you mean 'succeeded'" in result.err


def test_worker_says_what_it_works_on(processes: Processes) -> None:
    worker = processes.start("worker")
    await_line(worker, "working on http_post")
    worker.terminate()
    assert worker.wait(30) == 0
