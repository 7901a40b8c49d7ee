"""A worker process for tests that kill it: python -m tests.worker_program PATH BACKEND [setting=value …].

It says `ready` when the engine runs, and ends when its standard input is closed or `drain=1` has been reached.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

import anyio
import anyio.to_thread

from taskengine import Engine, TaskContext, TaskEnd, task
from tests.bodies import add, sleep_long, stay_on_loop, step_in_child, step_in_thread, step_on_loop


@task
async def say_and_sleep(ctx: TaskContext) -> int:
    """Tell that an attempt has begun; sleep for ever in the first one."""
    print(f"begun {ctx.attempt}", flush=True)
    if ctx.attempt == 1:
        await anyio.sleep(3600)
    return ctx.attempt


@task
async def die() -> None:
    """Take the whole process down, as a segfault would."""
    os.kill(os.getpid(), signal.SIGKILL)
    await anyio.sleep(3600)


@task
async def block_loop(seconds: float) -> str:
    """Block the event loop."""
    print("blocking", flush=True)
    time.sleep(seconds)  # noqa: ASYNC251  # that is the fault to be shown
    return "done"


@task
async def note_end(end: TaskEnd) -> str:
    """Tell of a task that has ended: a callback."""
    print(f"noted {end.state}", flush=True)
    return end.state


TASKS: list[Any] = [
    add,
    sleep_long,
    say_and_sleep,
    die,
    block_loop,
    note_end,
    step_on_loop,
    step_in_thread,
    step_in_child,
    stay_on_loop,
]


async def main(path: str, settings: dict[str, Any]) -> None:
    drains = settings.pop("drain", 0)
    if "concurrency" in settings:
        settings["concurrency"] = int(settings["concurrency"])
    async with Engine(path, tasks=TASKS, shutdown_grace=0, **settings) as engine:
        print("ready", flush=True)
        if drains:
            await engine.drain()
        else:
            closed = anyio.Event()
            token = anyio.lowlevel.current_token()
            threading.Thread(
                target=lambda: (sys.stdin.read(), anyio.from_thread.run_sync(closed.set, token=token)), daemon=True
            ).start()
            await closed.wait()


if __name__ == "__main__":
    given = {key: float(value) for key, value in (word.split("=") for word in sys.argv[3:])}
    anyio.run(main, sys.argv[1], given, backend=sys.argv[2])
