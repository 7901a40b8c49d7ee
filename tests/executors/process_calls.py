"""Calls for child processes, and what the tests of them look at."""

import gc
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import anyio
from attrs import define, field

from taskengine.executors.process.executor import ProcessExecutor
from taskengine.ports import BodyEnd, Call, CallFacts, ErrorReport
from taskengine.registry import TaskDefinition
from taskengine.signals import Signals
from tests.executors import bodies_for_children as bodies

KILL_GRACE = 2.0


@define(eq=False)
class HeardVoice:
    """A voice that notes what is said, for a test that waits for it."""

    said: list[tuple[Any, ...]] = field(factory=list)
    seconds: float | None = None
    folder: str | None = None
    _news: anyio.Event = field(factory=anyio.Event)

    def _note(self, *words: Any) -> None:
        self.said.append(words)
        self._news.set()
        self._news = anyio.Event()

    async def wait_for(self, word: str) -> tuple[Any, ...]:
        """Wait for a word to be said, and return it with its details."""
        while True:
            found = next((words for words in self.said if words[0] == word), None)
            if found is not None:
                return found
            await self.wait_for_news()

    async def wait_for_news(self) -> None:
        """Wait until something more is said."""
        await self._news.wait()

    def all(self, word: str) -> list[tuple[Any, ...]]:
        return [words for words in self.said if words[0] == word]

    def checkpoint(self) -> None:
        self._note("checkpoint")

    def reached_pause(self) -> None:
        self._note("reached_pause")

    def left_pause(self) -> None:
        self._note("left_pause")

    def begun(self) -> None:
        """Every body says it; the tests ask about the rest."""

    def heartbeat(self) -> None:
        self._note("heartbeat")

    def progress(self, text: str) -> None:
        self._note("progress", json.loads(text))

    def log(self, level: int, message: str) -> None:
        self._note("log", level, message)

    def extend(self, *, attempt: float, idle: float, total: float) -> None:
        self._note("extend", attempt, idle, total)
        if self.seconds is not None:
            self.seconds += attempt

    def remaining(self) -> float | None:
        self._note("remaining")
        return self.seconds

    def artifact_dir(self) -> str:
        if self.folder is None:
            raise OSError("no room")
        return self.folder


def call_of(
    function: Callable[..., Any],
    *args: Any,
    voice: HeardVoice | None = None,
    signals: Signals | None = None,
    kill_grace: float = KILL_GRACE,
    max_value_bytes: int = 1024 * 1024,
    **kwargs: Any,
) -> Call:
    """Make a call as the runner does."""
    definition = TaskDefinition.of(function, name=f"test.{function.__name__.strip('<>')}")
    facts = CallFacts(
        task_id="0192-id",
        name=definition.name,
        attempt=3,
        takes_context=definition.takes_context,
        arguments=definition.encode_arguments(args, kwargs),
        metadata={"tenant": "a"},
        idempotency_key="key",
        voice=voice or HeardVoice(),
        max_value_bytes=max_value_bytes,
        max_error_bytes=64 * 1024,
        kill_grace=kill_grace,
    )
    return Call(
        task_id=facts.task_id,
        name=facts.name,
        function=function,
        args=args,
        kwargs=kwargs,
        context=copy_context(),
        signals=signals or Signals(),
        facts=facts,
    )


async def run(executor: ProcessExecutor, function: Callable[..., Any], *args: Any, **options: Any) -> BodyEnd:
    """Run one call to its end."""
    with anyio.fail_after(30):
        return await executor.start(call_of(function, *args, **options)).run()


async def result(executor: ProcessExecutor, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run one call that is to succeed, and return what it returned."""
    end = await run(executor, function, *args, **options)
    assert (end.error, end.report) == (None, None)
    assert end.result is not None
    return json.loads(end.result)


@asynccontextmanager
async def open_executor(**options: Any) -> AsyncIterator[ProcessExecutor]:
    """An executor whose children are all gone at the end, whatever happened."""
    before = set(os.listdir("/proc/self/fd"))
    executor = ProcessExecutor(**options)
    try:
        yield executor
    finally:
        await executor.aclose()
    await anyio.wait_all_tasks_blocked()  # Transports close in the loop's next turn.
    gc.collect()
    assert children_of_this_process() == []
    assert len(os.listdir("/proc/self/fd")) <= len(before)


def children_of_this_process() -> list[str]:
    """Return their pids, but for the tracker that multiprocessing leaves in every process that has once used it."""
    found: list[str] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found += file.read().split()
        except FileNotFoundError:  # a thread that has ended
            continue
    return [pid for pid in found if not _is_tracker(pid)]


def _is_tracker(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def report_of(end: BodyEnd) -> ErrorReport:
    assert end.error is None
    assert end.result is None
    assert end.report is not None
    assert end.report.failure.attempt == 3
    return end.report


def state_of(pid: int) -> str | None:
    """Return the letter of a process's state: `Z` is dead and not waited for, None is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = re.search(r"\) (\S)", text)
    return found.group(1) if found else None


class Watch:
    """A process, and the moment at which it dies; made while it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    async def wait_until_dead(self) -> None:
        """Wait, but not for ever."""
        try:
            with anyio.fail_after(10):
                await anyio.wait_readable(self._fd)
        finally:
            anyio.notify_closing(self._fd)
            os.close(self._fd)
        assert state_of(self.pid) in (None, "Z", "X")


def run_and_tell(backend: str) -> None:
    """Run a body that never ends and print what it says: the main program of a parent that is to be killed."""

    async def main() -> None:
        voice = HeardVoice()
        executor = ProcessExecutor()
        async with anyio.create_task_group() as tg:
            tg.start_soon(executor.start(call_of(bodies.start_program, then="spin", voice=voice)).run)
            print((await voice.wait_for("log"))[2], flush=True)  # noqa: T201

    anyio.run(main, backend=backend)
