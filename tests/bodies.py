"""Bodies that many tests run, and the few steps that many tests take."""

import os
import time
from pathlib import Path

import anyio

from taskengine import Engine, RetryPolicy, SqliteStore, State, TaskContext, task
from taskengine.handles import TaskRef, id_of
from taskengine.ports import Store

STEP = 0.005
"""Seconds between two checkpoints of a body that goes step by step."""


@task
async def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def sleep_long(seconds: float = 3600.0) -> None:
    await anyio.sleep(seconds)


@task(retry=RetryPolicy(max_attempts=3, base=0.01, cap=0.01))
async def fail_until(ctx: TaskContext, attempt: int) -> int:
    """Fail in every attempt before the given one."""
    if ctx.attempt < attempt:
        raise ValueError(f"attempt {ctx.attempt} fails")
    return ctx.attempt


@task
def double(n: int) -> int:
    return 2 * n


@task
async def echo(value: "Plain") -> "Plain":
    return value


# The same body for each executor: it goes from checkpoint to checkpoint until a file is there.


class Sign:
    """A file for which bodies wait."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "go")

    def give(self) -> None:
        with open(self.path, "w"):
            pass


def is_there(path: str) -> bool:
    return os.path.exists(path)


@task
async def step_on_loop(ctx: TaskContext, until: str) -> int:
    steps = 0
    while not is_there(until):
        await ctx.acheckpoint()
        steps += 1
        ctx.progress(steps)
        await anyio.sleep(STEP)
    return steps


def _step(ctx: TaskContext, until: str) -> int:
    steps = 0
    while not is_there(until):
        ctx.checkpoint()
        steps += 1
        ctx.progress(steps)
        time.sleep(STEP)
    return steps


@task(executor="thread")
def step_in_thread(ctx: TaskContext, until: str) -> int:
    return _step(ctx, until)


@task(executor="process")
def step_in_child(ctx: TaskContext, until: str) -> int:
    return _step(ctx, until)


STEPPING = {"loop": step_on_loop, "thread": step_in_thread, "process": step_in_child}


def _stay(ctx: TaskContext, until: str) -> str:
    """Come to no checkpoint until the file is there, and to one then."""
    while not is_there(until):
        time.sleep(STEP)
    ctx.checkpoint()
    return "done"


@task(executor="thread")
def stay_in_thread(ctx: TaskContext, until: str) -> str:
    return _stay(ctx, until)


@task(executor="process")
def stay_in_child(ctx: TaskContext, until: str) -> str:
    return _stay(ctx, until)


@task
async def stay_on_loop(ctx: TaskContext, until: str) -> str:
    while not is_there(until):  # noqa: ASYNC110  # a file, as for the bodies that share no memory
        await anyio.sleep(STEP)
    await ctx.acheckpoint()
    return "done"


STAYING = {"loop": stay_on_loop, "thread": stay_in_thread, "process": stay_in_child}


@task(executor="process")
def sleep_in_child(seconds: float) -> None:
    time.sleep(seconds)


Plain = None | bool | int | float | str | list[object] | dict[str, object]


def same_store(store: Store) -> Store:
    """Return what a second engine on the same tasks is given: an own connection, or the one memory."""
    return SqliteStore(store.path) if isinstance(store, SqliteStore) else store


async def reach(engine: Engine, task: TaskRef, *states: State) -> None:
    """Wait until a task has come to one of these states; it may have left it since."""
    task_id = id_of(task)
    with anyio.fail_after(60):
        async for event in engine.events(after=0):
            if event.task_id == task_id and event.target in states:
                return
