"""Bodies for engines with child processes; importable, so that a child finds them."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from taskengine import RetryPolicy, TaskContext, task

AGAIN = RetryPolicy(max_attempts=2, base=0.0)


@task(executor="process")
def loop_for_ever() -> None:
    """Never end, never look, and use a processor."""
    while True:
        pass


@task(executor="process")
def child_pid(number: int = 0) -> int:
    """Tell which process this is."""
    return os.getpid()


@task(executor="process", max_attempts=1)
def exit_at_once(code: int) -> NoReturn:
    """End the process behind the engine's back."""
    os._exit(code)


@task(executor="process", max_attempts=1)
def kill_own_process() -> None:
    """Be killed, as by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


@task(executor="process", retry=AGAIN)
def crash_once(ctx: TaskContext) -> int:
    """Crash in the first attempt."""
    if ctx.attempt == 1:
        os._exit(7)
    return ctx.attempt


@task(executor="process")
def wait_for_file(path: str) -> str:
    """End when the file is there."""
    while not Path(path).exists():
        time.sleep(0.005)
    return "seen"


@task(executor="process")
def speak(ctx: TaskContext) -> str:
    """Use the whole context."""
    ctx.progress(1, 4, unit="files", message="on its way")
    ctx.log("line %d", 1)
    ctx.warning("line 2")
    ctx.heartbeat()
    Path(ctx.artifact_dir(), "left.txt").write_text("by a child")
    ctx.checkpoint()
    return f"{ctx.metadata['of']} {ctx.remaining() is not None}"


@task(executor="process", max_attempts=3)
def snooze_then_discard(ctx: TaskContext) -> None:
    """Sleep once, then find the work pointless."""
    if ctx.attempt == 1:
        ctx.snooze(0.0, "later")
    ctx.discard("nobody wants it")


class NeedsTwo(Exception):
    """Cannot be made again from its own text."""

    def __init__(self, first: str, second: str) -> None:
        self.lock = threading.Lock()
        self.first, self.second = first, second
        super().__init__()


@task(executor="process", max_attempts=1)
def raise_needs_two() -> None:
    """Raise what no parent could unpickle."""
    raise NeedsTwo("a", "b")


@task(executor="process")
def return_generator() -> Iterator[int]:
    """Return what nobody can store."""
    return iter(range(3))


@task(executor="process")
async def wait_in_child(ctx: TaskContext) -> None:
    """Look at what is asked, in a loop of the child's own."""
    import anyio

    while True:
        await ctx.acheckpoint()
        await anyio.sleep(0.005)


@task(executor="process")
def look_in_child(ctx: TaskContext) -> None:
    """Look at what is asked."""
    while True:
        ctx.checkpoint()
        time.sleep(0.005)


@task(timeout=0.05, max_attempts=1)
def end_at_its_timeout(ctx: TaskContext) -> None:
    """Take just about as long as it may."""
    left = ctx.remaining()
    time.sleep(left if left is not None else 0)


@task
def stuck_in_thread() -> None:
    """Wait for what never comes."""
    threading.Event().wait()


@task(executor="thread")
def quick_in_thread(number: int) -> int:
    """End at once."""
    return number
