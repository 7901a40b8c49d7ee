"""Bodies for command storms and shutdown drills; importable, so that child processes find them."""

import signal
import threading
import time
from contextlib import suppress
from typing import Any

import anyio

from taskengine import RetryPolicy, TaskContext, task

STEP = 0.005
"""Seconds between two looks of a body at what it is asked; a body that waits, not a test."""

AGAIN = RetryPolicy(max_attempts=5, base=0.01, cap=0.02)


async def _steps(ctx: TaskContext, steps: int) -> int:
    for number in range(steps):
        await ctx.acheckpoint()
        ctx.progress(number, steps)
        await anyio.sleep(STEP)
    return steps


def _steps_in_thread(ctx: TaskContext, steps: int) -> int:
    for number in range(steps):
        ctx.checkpoint()
        ctx.progress(number, steps)
        time.sleep(STEP)
    return steps


@task(retry=AGAIN)
async def on_loop(ctx: TaskContext, steps: int) -> int:
    """Go on for so many steps, looking at every one."""
    return await _steps(ctx, steps)


@task(retry=AGAIN)
async def deaf_on_loop(steps: int) -> int:
    """Never look; only force ends it."""
    await anyio.sleep(steps * STEP)
    return steps


@task(retry=AGAIN)
async def failing_on_loop(ctx: TaskContext, steps: int) -> int:
    """Fail after its steps, in every attempt."""
    await _steps(ctx, steps)
    raise ValueError("no")


@task(retry=AGAIN)
async def snoozing_on_loop(ctx: TaskContext, steps: int) -> int:
    """Ask for a little time three times, then end."""
    await _steps(ctx, steps)
    if ctx.attempt < 4:
        ctx.snooze(0.02)
    return steps


@task(retry=AGAIN)
def in_thread(ctx: TaskContext, steps: int) -> int:
    """Go on for so many steps in a thread, looking at every one."""
    return _steps_in_thread(ctx, steps)


@task(retry=AGAIN)
def deaf_in_thread(steps: int) -> int:
    """Never look; nothing ends it before its time."""
    time.sleep(steps * STEP)
    return steps


@task(retry=AGAIN, executor="process")
def in_process(ctx: TaskContext, steps: int) -> int:
    """Go on for so many steps in a child process, looking at every one."""
    return _steps_in_thread(ctx, steps)


@task(retry=AGAIN, executor="process")
def deaf_in_process(steps: int) -> int:
    """Loop without a look in a child process; only force ends it before its time."""
    end = time.monotonic() + steps * STEP
    while time.monotonic() < end:
        pass
    return steps


@task(retry=AGAIN, executor="inline")
def inline(steps: int) -> int:
    """Do it at once, on the loop."""
    return steps


ALL: list[Any] = [
    on_loop,
    deaf_on_loop,
    failing_on_loop,
    snoozing_on_loop,
    in_thread,
    deaf_in_thread,
    in_process,
    deaf_in_process,
    inline,
]


# --- for drills: none of these ends by itself ---


@task
async def stay(ctx: TaskContext) -> None:
    """Look at what is asked, for ever."""
    while True:
        await ctx.acheckpoint()
        await anyio.sleep(STEP)


@task
async def stay_deaf() -> None:
    """Wait for ever."""
    await anyio.sleep_forever()


@task
async def stay_swallowing() -> None:
    """Wait for ever, whatever is thrown in."""
    while True:
        with suppress(BaseException):  # the fault to be shown
            await anyio.sleep_forever()


@task
def stay_in_thread(ctx: TaskContext) -> None:
    """Look at what is asked, for ever, in a thread."""
    while True:
        ctx.checkpoint()
        time.sleep(STEP)


@task
def stay_stuck_in_thread() -> None:
    """Wait in a thread for what never comes."""
    threading.Event().wait()


@task(executor="process")
def stay_in_process(ctx: TaskContext) -> None:
    """Look at what is asked, for ever, in a child process."""
    while True:
        ctx.checkpoint()
        time.sleep(STEP)


@task(executor="process")
def stay_stubborn_in_process() -> None:
    """Loop in a child process, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


STAYING: list[tuple[Any, int]] = [
    (stay, 15),
    (stay_deaf, 10),
    (stay_swallowing, 5),
    (stay_in_thread, 10),
    (stay_stuck_in_thread, 5),
    (stay_in_process, 3),
    (stay_stubborn_in_process, 2),
]
"""Fifty bodies of every kind."""
