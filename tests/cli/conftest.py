"""What the tests of the command line share: running commands in this process and in others, and a server."""

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define

from taskengine import Engine, State, TaskCall
from taskengine.cli import main
from taskengine.cli.local_downstream import Answer, LocalDownstream, serving


@define
class Result:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@define(eq=False)
class CommandLine:
    """Runs commands in this process, on one database."""

    db: Path
    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: str, stdin: bytes | None = None, db: Path | None = None) -> Result:
        self.monkeypatch.setenv("TASKENGINE_DB", str(db or self.db))
        if stdin is not None:
            self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self.capture.readouterr()
        code = main(arguments)
        captured = self.capture.readouterr()
        return Result(code, captured.out, captured.err)

    def submit(self, url: str, *arguments: str) -> str:
        result = self("submit", "http_post", "--arg", f"url={url}", *arguments)
        assert result.code == 0, result.err
        return result.out.strip()

    def state(self, task_id: str) -> dict[str, Any]:
        task: dict[str, Any] = self("status", task_id, "--json").json
        return task


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path / "tasks.db", capsys, monkeypatch)


_numbers = itertools.count()


@pytest.fixture
def write_module(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that writes a module into the current folder and returns its name."""

    def write(source: str) -> str:
        name = f"cli_tasks_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@define(eq=False)
class Server:
    """A server in a loop of its own, beside the commands."""

    seen: LocalDownstream
    portal: BlockingPortal

    def url(self, path: str = "/") -> str:
        return self.seen.url(path)

    def wait_until(self, condition: Callable[[LocalDownstream], bool]) -> None:
        self.portal.call(self.seen.wait_until, lambda: condition(self.seen))


@pytest.fixture
def serve() -> Iterator[Callable[[Mapping[str, Sequence[Answer]]], Server]]:
    """Return a function that starts a server with a script."""
    with ExitStack() as stack:

        def start(script: Mapping[str, Sequence[Answer]]) -> Server:
            portal = stack.enter_context(start_blocking_portal())
            return Server(stack.enter_context(portal.wrap_async_context_manager(serving(script))), portal)

        yield start


@define(eq=False)
class Beside:
    """An engine that runs tasks in a loop of its own, beside the commands: another owner on their database."""

    engine: Engine
    portal: BlockingPortal

    def wait_until(self, task_id: str, state: State) -> None:
        """Wait until a task has moved to a state."""
        self.portal.call(self._wait_until, task_id, state)

    async def _wait_until(self, task_id: str, state: State) -> None:
        async for event in self.engine.events(after=0):
            if event.task_id == task_id and event.target is state:
                return

    def run(self, call: TaskCall[Any], **options: Any) -> str:
        """Submit a call, wait until its body runs, and return its id."""

        async def submit() -> str:
            return (await self.engine.submit(call, **options)).id

        task_id = self.portal.call(submit)
        self.wait_until(task_id, State.RUNNING)
        return task_id


BesideMaker = Callable[..., Beside]


@pytest.fixture
def beside(cli: CommandLine) -> Iterator[BesideMaker]:
    """Return a function that starts an engine with tasks and settings; it ends bodies at once when it is left."""
    with ExitStack() as stack:

        def start(*tasks: Any, backend: str = "asyncio", **settings: Any) -> Beside:
            engine = Engine(cli.db, tasks=tasks, **{"shutdown_grace": 0, "kill_grace": 0.2, **settings})
            portal = stack.enter_context(start_blocking_portal(backend))
            return Beside(stack.enter_context(portal.wrap_async_context_manager(engine)), portal)

        yield start


@define(eq=False)
class Processes:
    """Commands in processes of their own; none outlives the test."""

    db: Path
    folder: Path
    started: list["subprocess.Popen[str]"]

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "taskengine", "--db", str(self.db), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        self.started.append(process)
        return process


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "tasks.db", tmp_path, [])
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def await_line(process: "subprocess.Popen[str]", part: str) -> None:
    """Read a process's stderr up to a line that holds `part`."""
    assert process.stderr is not None, "it is a pipe"
    seen = []
    for line in process.stderr:
        seen.append(line)
        if part in line:
            return
    raise AssertionError(f"{part!r} never came: {''.join(seen)}")


async def await_progress(engine: Engine, task_id: str) -> None:
    """Wait until a body's report of how far it is has been stored."""
    while (await engine.get(task_id)).progress is None:  # noqa: ASYNC110  # progress is no move, so no event tells of it
        await anyio.sleep(0.01)
