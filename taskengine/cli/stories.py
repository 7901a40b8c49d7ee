"""The demo's stories. Each one happens for real and is judged by what the store and the server have seen."""

import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from attrs import define, field, frozen

from taskengine.cli.local_downstream import Answer, Hold, LocalDownstream
from taskengine.core.lifecycle import LEASED, State, Trigger
from taskengine.core.model import Task
from taskengine.engine import Engine
from taskengine.handles import TaskHandle
from taskengine.tasks.http import http_post

HELD_SECONDS = 30.0
"""How long the server keeps a call that is going to be cancelled or killed."""

QUICKLY = 1.0
"""Seconds in which a cancelled call must be over."""

PATIENCE = 30.0
"""Seconds for one story; a story that takes longer has failed."""

SCRIPT: dict[str, tuple[Answer, ...]] = {
    "/retry": (503, 200),
    "/same_key": (200,),
    "/bad_request": (400,),
    "/cancel": (Hold(HELD_SECONDS),),
    "/kill": (Hold(HELD_SECONDS), 200),
}


@define(eq=False)
class Stage:
    """What the stories play on."""

    engine: Engine
    server: LocalDownstream
    folder: Path
    backend: str


@define(eq=False)
class Verdict:
    """How a story went."""

    task: Task | None = None
    problems: list[str] = field(factory=list)
    remarks: list[str] = field(factory=list)

    def expect(self, holds: bool, fact: str) -> None:
        """Note a fact that the story depends on, and a problem if it does not hold."""
        if not holds:
            self.problems.append(f"not so: {fact}")

    def expect_end(self, task: Task, state: State, attempt: int) -> None:
        """Note how the task should have ended."""
        self.task = task
        self.expect(task.state is state, f"the task is {state.value} (it is {task.state.value}: {task.error})")
        self.expect(task.attempt == attempt, f"it took {attempt} attempts (it took {task.attempt})")

    def expect_posts(self, number: int, seen: int) -> None:
        """Note how often the server should have been called."""
        self.expect(seen == number, f"the server saw {number} requests (it saw {seen})")


@frozen
class Story:
    """A story to be played."""

    name: str
    """Also the path on the server."""
    title: str
    play: Callable[[Stage, Verdict], Awaitable[None]]

    @property
    def path(self) -> str:
        return f"/{self.name}"


async def _retry(stage: Stage, verdict: Verdict) -> None:
    handle = await stage.engine.submit(http_post.bind(stage.server.url("/retry"), json={"order": 1}))
    await handle.wait()
    verdict.expect_end(await handle.task(), State.SUCCEEDED, attempt=2)
    verdict.expect_posts(2, stage.server.posts["/retry"])


async def _same_key(stage: Stage, verdict: Verdict) -> None:
    call = http_post.bind(stage.server.url("/same_key"), json={"order": 2})
    first = await stage.engine.submit(call, idempotency_key="order-2")
    await first.wait()
    second = await stage.engine.submit(call, idempotency_key="order-2")
    await second.wait()
    verdict.expect(first.id == second.id, "both submits gave the same id")
    verdict.expect(first.created and not second.created, "only the first one made a task")
    verdict.expect_end(await second.task(), State.SUCCEEDED, attempt=1)
    verdict.expect_posts(1, stage.server.posts["/same_key"])


async def _bad_request(stage: Stage, verdict: Verdict) -> None:
    handle = await stage.engine.submit(http_post.bind(stage.server.url("/bad_request"), json={"order": "?"}))
    await handle.wait()
    verdict.expect_end(await handle.task(), State.FAILED, attempt=1)
    verdict.expect_posts(1, stage.server.posts["/bad_request"])


async def _cancel(stage: Stage, verdict: Verdict) -> None:
    server = stage.server
    handle = await stage.engine.submit(http_post.bind(server.url("/cancel"), timeout=2 * HELD_SECONDS))
    await server.wait_until(lambda: server.posts["/cancel"] == 1)
    asked_at = anyio.current_time()
    task = await handle.cancel(reason="the demo has seen enough")
    took = anyio.current_time() - asked_at
    verdict.expect_end(task, State.CANCELLED, attempt=1)
    verdict.expect(took < QUICKLY, f"it ended in less than {QUICKLY:g} s (it took {took:.2f} s)")
    await server.wait_until(lambda: server.disconnects["/cancel"] == 1)
    verdict.expect_posts(1, server.posts["/cancel"])
    verdict.remarks.append(f"over {took * 1000:.0f} ms after the cancel, and the server saw the disconnect")


async def _kill(stage: Stage, verdict: Verdict) -> None:
    server = stage.server
    database = stage.folder / "killed.db"
    # The stage's own engine must not get hold of this task, so it has a file of its own.
    async with Engine(database) as client:
        handle = await client.submit(http_post.bind(server.url("/kill"), timeout=2 * HELD_SECONDS))
        async with _Worker(stage, database, "first") as first:
            await server.wait_until(lambda: server.posts["/kill"] == 1)
            held = await handle.task()
            first.process.send_signal(signal.SIGKILL)
            await first.process.wait()
        verdict.expect(held.state in LEASED, f"a worker held the task when it was killed (it was {held.state.value})")
        async with _Worker(stage, database, "next", "--drain") as second:
            code = await second.process.wait()
            verdict.expect(code == 0, f"the next worker ended well (exit code {code}: {second.last_words()})")
        await _judge_recovery(handle, verdict)
    verdict.expect_posts(2, server.posts["/kill"])


async def _judge_recovery(handle: TaskHandle[Any], verdict: Verdict) -> None:
    verdict.expect_end(await handle.task(), State.SUCCEEDED, attempt=2)
    triggers = [move.trigger for move in await handle.history()]
    verdict.expect(Trigger.OWNER_REQUEUE in triggers, "the next worker took the task from the dead one")


class _Worker:
    """A worker in a process of its own; it does not outlive the block."""

    def __init__(self, stage: Stage, database: Path, name: str, *options: str) -> None:
        self._command = [
            *(sys.executable, "-m", "taskengine", "--db", str(database)),
            *("worker", "--backend", stage.backend, "--allow-host", "127.0.0.1", *options),
        ]
        self._log = stage.folder / f"{name}.log"

    async def __aenter__(self) -> "_Worker":
        with self._log.open("wb") as log:
            self.process: Process = await anyio.open_process(self._command, stdin=None, stdout=log, stderr=log)
        return self

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            if self.process.returncode is None:
                self.process.kill()
            await self.process.aclose()

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"


STORIES = (
    Story("retry", "A call is answered with 503, then with 200.", _retry),
    Story("same_key", "One idempotency key is submitted twice.", _same_key),
    Story("bad_request", "A call is answered with 400.", _bad_request),
    Story("cancel", "A call that would take 30 seconds is cancelled in flight.", _cancel),
    Story("kill", "A worker process is killed with -9 while it holds a task; the next one takes over.", _kill),
)


async def play(story: Story, stage: Stage) -> tuple[Verdict, float]:
    """Play one story; return how it went and how many seconds it took."""
    verdict = Verdict()
    began_at = anyio.current_time()
    try:
        with anyio.fail_after(PATIENCE):
            await story.play(stage, verdict)
    except TimeoutError:
        verdict.problems.append(f"not over after {PATIENCE:g} s")
    except Exception as error:
        verdict.problems.append(f"{type(error).__name__}: {error}")
    return verdict, anyio.current_time() - began_at
