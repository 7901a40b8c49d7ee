import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taskengine import __version__
from taskengine.cli import main
from tests.cli.conftest import CommandLine, Processes

OF_ONE = ("status", "history", "explain", "logs", "stop", "cancel", "pause", "resume", "requeue", "delete")
OF_ALL = ("ps", "top", "stats", "hold", "release", "holds", "dead")
COMMANDS = ("demo", "submit", "worker", "run", *OF_ONE, *OF_ALL)
NEED_A_FILE = (
    *((command, "x") for command in OF_ONE),
    *((command,) for command in OF_ALL),
    *((command, "--all") for command in ("stop", "cancel", "pause", "resume")),
    ("requeue", "--dead"),
)


def test_every_command_is_known_to_these_tests() -> None:
    from taskengine.cli.app import cli as group

    assert sorted(group.commands) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_the_shared_options(cli: CommandLine, command: str) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    assert all(option in result.out for option in ("--db", "--tasks", "--json", "--log-level"))


def test_version_is_told(cli: CommandLine) -> None:
    assert cli("--version").out == f"taskengine {__version__}\n"


def test_no_command_shows_help_and_fails(cli: CommandLine) -> None:
    result = cli()
    assert (result.code, result.out) == (1, "")
    assert "Commands:" in result.err


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("ps", "--nonsense"), ("status",), ("worker", "--concurrency", "none"), ("submit",)]
)
def test_bad_arguments_exit_with_1_and_one_line(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "--help" in result.err


@pytest.mark.parametrize("arguments", NEED_A_FILE)
def test_missing_database_is_told_and_not_made(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments, "--json")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert str(cli.db) in result.err
    assert not cli.db.exists()


def test_no_database_named_says_how_to_name_one(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKENGINE_DB", raising=False)
    assert main(["ps"]) == 1
    assert "--db PATH or set TASKENGINE_DB" in cli.capture.readouterr().err


@pytest.mark.parametrize("command", ["ps", "worker", "submit"])
def test_file_that_is_no_database_is_told(cli: CommandLine, command: str) -> None:
    cli.db.write_bytes(b"this is text, and enough of it to be looked at as the header of a database " * 20)
    before = cli.db.read_bytes()
    arguments = ("http_post", "--arg", "url=http://a.example/") if command == "submit" else ()
    result = cli(command, *arguments)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "no SQLite database" in result.err
    assert cli.db.read_bytes() == before


def test_postgresql_is_refused_with_a_clear_word(cli: CommandLine) -> None:
    result = cli("ps", "--db", "postgresql://localhost/x")
    assert result.code == 1
    assert "no PostgreSQL store" in result.err


@pytest.mark.parametrize("command", OF_ONE)
def test_unknown_id_is_told_in_one_line(cli: CommandLine, command: str) -> None:
    cli.submit("http://a.example/")
    result = cli(command, "nobody\n")
    assert (result.code, result.out, result.err) == (1, "", "taskengine: no task has the id 'nobody\\n'\n")


def test_shared_options_stand_before_or_after_the_command(cli: CommandLine, tmp_path: Path) -> None:
    cli.submit("http://a.example/")
    other = str(tmp_path / "other.db")
    assert len(cli("--db", str(cli.db), "--json", "ps").json) == 1
    assert len(cli("ps", "--json", "--db", str(cli.db)).json) == 1
    # Behind the command overrules before it, and both overrule the environment.
    assert len(cli("--db", other, "ps", "--db", str(cli.db), "--json", db=Path(other)).json) == 1


def test_tasks_before_and_after_the_command_are_added_up(cli: CommandLine, write_module: Callable[[str], str]) -> None:
    source = "import taskengine\n@taskengine.task\ndef {}() -> int:\n    return 1\n"
    first, second = write_module(source.format("one")), write_module(source.format("two"))
    result = cli("--tasks", first, "run", "nothing", "--tasks", second)
    assert result.code == 1
    assert "known: http_post, one, two" in result.err


@pytest.mark.parametrize("source", ["raise ValueError('of its own')", "raise SystemExit(7)", "def ("])
def test_module_that_cannot_be_imported_is_named(
    cli: CommandLine, write_module: Callable[[str], str], source: str
) -> None:
    name = write_module(source)
    result = cli("worker", "--drain", "--tasks", name)
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert f"--tasks {name}: cannot be imported" in result.err


def test_file_given_as_module_is_explained(cli: CommandLine) -> None:
    assert "not its file" in cli("worker", "--drain", "--tasks", "./jobs.py").err


def test_missing_trio_names_the_command_that_installs_it(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    result = cli("worker", "--drain", "--backend", "trio")
    assert result.code == 1
    assert "pip install 'taskengine[trio]'" in result.err


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_missing_extra_names_the_command_that_installs_it(
    cli: CommandLine, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = cli("ps")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert missing in result.err
    assert "pip install 'taskengine[cli]'" in result.err


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, taskengine.cli; "
        "print([name for name in ('click', 'rich', 'trio', 'apsw', 'httpx', 'httpcore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_module_is_runnable_and_help_is_light() -> None:
    code = (
        "import runpy, sys; sys.argv = ['taskengine', '--help']\n"
        "try: runpy.run_module('taskengine', run_name='__main__')\n"
        "except SystemExit as error: print(error.code)\n"
        "print([name for name in ('rich', 'trio', 'apsw', 'httpx', 'httpcore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"]


def test_reader_that_goes_away_is_no_error_message(cli: CommandLine, processes: Processes) -> None:
    cli("submit", "--from", "-", stdin=b'{"url": "http://a.example/"}\n' * 3000)
    process = processes.start("ps", "--limit", "3000")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait(60)


def test_errors_inside_groups_are_told_one_by_one(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskengine.cli import listing

    def fail(*_: object) -> None:
        raise BaseExceptionGroup("several", [OSError("disk"), ExceptionGroup("more", [ValueError("odd")])])

    cli.submit("http://a.example/")
    monkeypatch.setattr(listing, "run_async", fail)
    result = cli("ps")
    assert (result.code, result.err) == (1, "taskengine: disk\ntaskengine: ValueError: odd\n")


def test_ctrl_c_exits_with_1(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskengine.cli import listing

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    cli.submit("http://a.example/")
    monkeypatch.setattr(listing, "run_async", interrupt)
    assert (cli("ps").code, os.path.exists(cli.db)) == (1, True)
