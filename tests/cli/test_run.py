import signal
from collections.abc import Callable

import pytest

from taskengine.cli.local_downstream import Hold
from tests.cli.conftest import CommandLine, Processes
from tests.cli.test_worker import ALLOW, BACKENDS, Serve


@BACKENDS
def test_task_is_run_here_with_its_retries(cli: CommandLine, serve: Serve, backend: str) -> None:
    server = serve({"/": (503, 200)})
    result = cli("run", "http_post", "--arg", f"url={server.url()}", "--json", "--backend", backend, *ALLOW)
    assert result.code == 0, result.err
    assert (result.json["state"], result.json["attempt"], result.json["result"]["status"]) == ("succeeded", 2, 200)
    assert server.seen.posts["/"] == 2


def test_outcome_is_told_to_people(cli: CommandLine, write_module: Callable[[str], str]) -> None:
    module = write_module(
        "import taskengine\n@taskengine.task\ndef hello(name: str) -> str:\n    return 'Hi ' + name\n"
    )
    result = cli("run", "hello", "--arg", "name=Eve", "--tasks", module)
    assert result.code == 0
    assert 'result:        "Hi Eve"\n' in result.out


def test_task_that_fails_exits_with_3(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/": (400,)})
    result = cli("run", "http_post", "--arg", f"url={server.url()}", *ALLOW)
    assert result.code == 3
    assert "HTTP 400" in result.out


def test_unknown_name_is_refused_with_a_proposal(cli: CommandLine) -> None:
    result = cli("run", "http_pots")
    assert (result.code, result.out) == (1, "")
    assert "did you mean 'http_post'?" in result.err
    assert not cli.db.exists()


def test_other_tasks_in_the_database_are_left_alone(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/other": (200,), "/mine": (503, 200)})
    others = [cli.submit(server.url("/other"), "--priority", "-10") for _ in range(3)]
    result = cli("run", "http_post", "--arg", f"url={server.url('/mine')}", *ALLOW)
    assert result.code == 0, result.err
    assert server.seen.posts["/other"] == 0
    assert {(cli.state(other)["state"], cli.state(other)["attempt"]) for other in others} == {("queued", 0)}


def test_key_that_is_known_runs_that_task_and_only_once(cli: CommandLine, serve: Serve) -> None:
    server = serve({"/": (200,)})
    task_id = cli.submit(server.url(), "--key", "k")
    for _ in range(2):
        result = cli("run", "http_post", "--arg", f"url={server.url()}", "--key", "k", "--json", *ALLOW)
        assert (result.code, result.json["id"], result.json["state"]) == (0, task_id, "succeeded")
        assert task_id in result.err
    assert server.seen.posts["/"] == 1


@BACKENDS
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_the_task_back(
    cli: CommandLine, serve: Serve, processes: Processes, backend: str, number: signal.Signals
) -> None:
    server = serve({"/": (Hold(60),)})
    arguments = ("--arg", f"url={server.url()}", "--arg", "timeout=60", "--backend", backend, *ALLOW)
    process = processes.start("run", "http_post", *arguments)
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.splitlines()[-1]) == (1, "", "taskengine: interrupted")
    server.wait_until(lambda seen: seen.disconnects["/"] == 1)
    (task,) = cli("ps", "--json").json
    assert (task["state"], task["charged"]) == ("queued", 0)


@pytest.mark.parametrize("option", [("--arg", "url=nonsense"), ("--arg", "url=http://a.example/", "--delay", "-1")])
def test_bad_arguments_store_nothing(cli: CommandLine, option: tuple[str, ...]) -> None:
    assert cli("run", "http_post", *option).code == 1
    assert cli("ps", "--all", "--json").json == []


def test_postgresql_is_refused_with_a_clear_word(cli: CommandLine) -> None:
    result = cli("run", "http_post", "--arg", "url=http://a.example/", "--db", "postgresql://localhost/x")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "no PostgreSQL store" in result.err
