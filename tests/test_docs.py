"""What the README and docs/ say is true: their Python runs, their commands parse, their tables are the code's."""

import importlib.util
import inspect
import json
import logging
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, get_args

import anyio
import click
import pytest
from attrs import frozen

import taskengine
from taskengine import (
    Engine,
    Explanation,
    FailureKind,
    JsonFormatter,
    MemoryStore,
    RetryPolicy,
    TaskContext,
    TaskEngineError,
    TaskHandle,
    task,
)
from taskengine.actors import settings as settings_module
from taskengine.actors.settings import Settings
from taskengine.cli.app import cli
from taskengine.core.lifecycle import TRANSITIONS, State
from taskengine.ports import HttpAnswer, HttpRequest
from taskengine.taskoptions import KeepArtifacts, TaskOptions
from taskengine.tasks import HttpxDownstream
from taskengine.testing.downstream import FakeDownstream

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@frozen
class Snippet:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def _snippets(*languages: str) -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match[1] in languages:
                found.append(Snippet(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


_MODULE = re.compile(r"# ([a-z_]+)\.py\n")

PYTHON = _snippets("python")
TEST_MODULES = [snippet for snippet in PYTHON if "def test_" in snippet.text]
PROGRAMS = [snippet for snippet in PYTHON if "def test_" not in snippet.text]


def _modules_of(page: Path) -> dict[str, str]:
    """Return what the snippets of a page say that begin with the name of a file: modules for its other snippets."""
    named = [(_MODULE.match(snippet.text), snippet.text) for snippet in PYTHON if snippet.page == page]
    return {found[1]: text for found, text in named if found is not None}


# --- Python ---


@pytest.fixture
def keep_logging() -> Iterator[None]:
    """Take back what a snippet does to the library's logger."""
    logger = logging.getLogger("taskengine")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.usefixtures("keep_logging")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("snippet", PROGRAMS, ids=str)
def test_a_program_of_the_docs_runs(
    snippet: Snippet, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = anyio.run

    def run_on_backend(main: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return run(main, *args, backend=backend)

    async def send(self: HttpxDownstream, request: HttpRequest) -> HttpAnswer:
        return await FakeDownstream().send(request)  # no test calls anybody out there

    monkeypatch.setattr(anyio, "run", run_on_backend)
    monkeypatch.setattr(HttpxDownstream, "send", send)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in _modules_of(snippet.page).items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)  # that of the run before
    script = tmp_path / "snippet.py"
    script.write_text(snippet.text)
    module = _MODULE.match(snippet.text)
    runpy.run_path(str(script), run_name="__main__" if module is None else module[1])


@pytest.mark.parametrize("snippet", TEST_MODULES, ids=str)
def test_a_test_module_of_the_docs_passes(snippet: Snippet, tmp_path: Path) -> None:
    has_pytest_asyncio = importlib.util.find_spec("pytest_asyncio") is not None
    if "pytest_asyncio" in snippet.text and not has_pytest_asyncio:
        # What the plugin would do with it is tried in tests/testing/test_fixtures.py.
        compile(snippet.text, str(snippet), "exec")
        return
    (tmp_path / "test_snippet.py").write_text(snippet.text)
    scope = "asyncio_default_fixture_loop_scope = function\n" if has_pytest_asyncio else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{scope}")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:looptime_plugin", "-p", "no:looptime", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_snippets_to_run() -> None:
    assert len(PROGRAMS) >= 10
    assert len(TEST_MODULES) >= 3


# --- commands ---


def _command_lines() -> list[tuple[Snippet, str]]:
    lines = []
    for snippet in _snippets("sh"):
        for line in snippet.text.replace("\\\n", " ").splitlines():
            command = line.rpartition("&&")[2].strip().removeprefix(".venv/bin/")
            if command.startswith("taskengine "):
                lines.append((snippet, command))
    return lines


@pytest.mark.parametrize("line", [pytest.param(line, id=line) for _, line in _command_lines()])
def test_a_command_of_the_docs_exists_with_its_options(line: str) -> None:
    words = shlex.split(line)[1:]
    with cli.make_context("taskengine", words) as group:
        name = next(word for word in words if word in cli.commands)
        rest = words[words.index(name) + 1 :]
        with cli.commands[name].make_context(name, rest, parent=group) as context:
            assert isinstance(context, click.Context)


def test_every_command_is_described() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert [name for name in cli.commands if f"| `{name}` |" not in page] == []


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    one_liners = [line for line in _lines("README.md") if line.startswith("python3 -m venv")]
    assert len(one_liners) == 2
    run_it, test_it = one_liners
    assert run_it.endswith("taskengine demo")
    assert "pytest" in test_it
    assert test_it in _lines(".ci/run")


def _lines(name: str) -> list[str]:
    return (ROOT / name).read_text().splitlines()


# --- tables ---


def _table_rows(page: str, columns: int) -> list[list[str]]:
    rows = []
    for line in _lines(page):
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")] if line.startswith("| ") else []
        if len(cells) == columns:
            rows.append(cells)
    return rows


def test_the_page_of_states_is_what_the_table_generates() -> None:
    generated = runpy.run_path(str(ROOT / "docs" / "states.py"))["render"]()
    assert generated == (ROOT / "docs" / "states.md").read_text(), "run: python docs/states.py"


def test_the_diagram_shows_every_move_and_no_other() -> None:
    moves = set()
    for line in _lines("docs/states.md"):
        match = re.fullmatch(r"    (\S+) --> (\w+) : (.+)", line)
        if match is not None:
            source = "pending" if match[1] == "[*]" else match[1]
            moves |= {(source, trigger.replace(" ", ":"), match[2]) for trigger in match[3].split(", ")}
    assert moves == {(s.value, t.value, to.value) for s, row in TRANSITIONS.items() for t, to in row.items()}


def test_every_setting_is_documented_with_its_default_and_range() -> None:
    documented = {
        cells[0].strip("`"): cells[1:3] for cells in _table_rows("docs/settings.md", 4) if cells[0].startswith("`")
    }
    expected = {"keep_artifacts": [Settings().keep_artifacts, ", ".join(get_args(KeepArtifacts))]}
    for name, (low, high) in settings_module._BOUNDS.items():
        expected[name] = [str(getattr(Settings(), name)), f"{low} to {high}"]
    assert documented == expected
    assert set(expected) == set(Settings.__annotations__)


def test_every_exception_and_failure_kind_is_documented() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    errors = {
        name
        for name in taskengine.__all__
        if isinstance(found := getattr(taskengine, name), type) and issubclass(found, BaseException)
    }
    assert errors - {TaskEngineError.__name__} == {name for name in errors if f"| `{name}` |" in page}
    assert [kind.value for kind in FailureKind if f"`{kind.value}`" not in page] == []


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in readme] == []


def test_the_page_on_architecture_names_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "taskengine"
    named = ("", "core", "actors", "executors", "executors/process", "observe", "stores", "testing")
    modules = [path for name in named for path in (package / name).glob("*.py") if not path.stem.startswith("__")]
    missing = [path.name for path in modules if not re.search(rf"\b{path.name}", page)]
    assert [name for name in missing if not name.startswith("contract_")] == []
    assert [path.name for path in package.glob("*/") if f"{path.name}/" not in page and path.name[0] != "_"] == []


# --- logs ---


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.lines: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.mark.usefixtures("keep_logging")
async def test_log_events_have_exactly_the_fields_that_are_documented() -> None:
    @task(retry=RetryPolicy(base=0))
    async def fail_twice(ctx: TaskContext) -> None:
        if ctx.attempt < 3:
            raise ValueError("no")

    @task
    async def interrupted() -> None:
        await anyio.sleep_forever()

    @task
    async def snooze_once(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.snooze(0, "too early")

    handler = _Lines()
    logger = logging.getLogger("taskengine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    async with Engine(MemoryStore(), tasks=[fail_twice, interrupted, snooze_once], shutdown_grace=0) as engine:
        await (await engine.submit(fail_twice.bind(), label="shown")).wait()
        await (await engine.submit(snooze_once.bind())).wait()
        await engine.submit(interrupted.bind())
        async for event in engine.events(after=0):
            if event.name == "interrupted" and event.target is State.RUNNING:
                break
    common = {"ts", "level", "logger", "event", "task_id", "attempt", "name", "label"}
    seen: dict[str, set[str]] = {}
    for line in handler.lines:
        if line["logger"] == "taskengine.tasks":
            seen.setdefault(line["event"], set()).update(set(line) - common)
    documented = {
        cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[2]))
        for cells in _table_rows("docs/logs.md", 4)
        if cells[0].startswith("`task_")
    }
    # Of an HTTP task, and of one that failed.
    documented["task_done"] -= {"http_status", "error"}
    documented["task_start"] = set()
    assert seen == documented


# --- the reference ---

VALUES = [
    "Task",
    "Outcome",
    "Transition",
    "Failure",
    "Progress",
    "LogLine",
    "Hold",
    "StandingHold",
    "Explanation",
    "TaskEnd",
    "Timeouts",
    "RetryPolicy",
    "Stats",
    "TaskPage",
    "TaskCall",
]


@pytest.mark.parametrize("name", VALUES)
def test_the_fields_of_a_value_are_documented_in_order(name: str) -> None:
    part = re.split(r"\n##+ ", (ROOT / "docs/engine.md").read_text().split(f"\n### {name}\n", 1)[1])[0]
    assert re.findall(r"^\| `(\w+)` \|", part, re.M) == [a.name for a in getattr(taskengine, name).__attrs_attrs__]


def test_every_public_value_is_in_the_reference() -> None:
    classes = {name for name in taskengine.__all__ if hasattr(getattr(taskengine, name), "__attrs_attrs__")}
    of_submissions = {"Submission", "SubmitOptions"}  # their fields are options of `submit`
    rules = {"Cron", "Every", "Months", "Once"}  # in the page on schedules
    assert classes - of_submissions - rules == set(VALUES)
    page = (ROOT / "docs" / "schedules.md").read_text()
    assert [name for name in sorted(rules) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("holder", [Engine, TaskHandle, TaskContext], ids=lambda holder: holder.__name__)
def test_every_method_is_in_the_reference(holder: type) -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    members = [name for name in dir(holder) if not name.startswith("_")]
    assert [name for name in members if not re.search(rf"`(?:await |ctx\.|engine\.)*{name}\b", page)] == []


def test_every_option_of_a_task_and_of_a_submission_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    of_tasks = set(TaskOptions.__annotations__)
    of_submissions = set(inspect.signature(Engine.submit).parameters) - {"self", "call"}
    rows = set(re.findall(r"^\| `(\w+)` \| [^|]* \| ", page, re.M))
    assert of_tasks | of_submissions <= rows


def test_every_code_of_an_explanation_is_documented() -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    said = inspect.getsource(Explanation).partition("code: str")[2].split('"""')[1]
    codes = re.findall(r"`(\w+)`", said)
    assert len(codes) >= 17
    assert [code for code in codes if f"| `{code}` |" not in page] == []
