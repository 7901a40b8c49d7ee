"""Bodies that child processes import by name, good and bad."""

import asyncio
import ctypes
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from datetime import timedelta
from typing import Any, NoReturn

import anyio
import anyio.lowlevel

from taskengine import AttemptFailed, TaskContext, TaskStopped, task
from taskengine.core.errors import TaskDiscarded, TaskSnoozed

HOARD: list[bytes] = []


# --- good ones --------------------------------------------------------------------------------------------------


def add(a: int, b: int = 1) -> int:
    return a + b


async def add_slowly(a: int, b: int) -> int:
    await anyio.lowlevel.checkpoint()
    assert asyncio.get_running_loop().is_running()
    return a + b


def double(span: timedelta) -> timedelta:
    return span * 2


@task(name="decorated", max_attempts=7)
def decorated(ctx: TaskContext, word: str) -> list[Any]:
    return [word, ctx.task_id, ctx.name, ctx.attempt, dict(ctx.metadata), ctx.idempotency_key]


def pid() -> int:
    return os.getpid()


def path_entries() -> list[str]:
    return list(sys.path)


def is_on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def modules() -> list[str]:
    return sorted(sys.modules)


def open_files() -> dict[str, str]:
    """What the open file descriptors lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


def make_text(size: int) -> str:
    return "x" * size


class Holder:
    @staticmethod
    def nested(a: int) -> int:
        return -a


# --- with the context -------------------------------------------------------------------------------------------


def say_all(ctx: TaskContext) -> float | None:
    ctx.log("a line with %s", "an argument")
    ctx.error("bad \udc80 \x00 text")
    ctx.progress(1, 4, unit="files", message="first")
    ctx.heartbeat()
    ctx.checkpoint()
    ctx.extend(attempt=1, idle=2, total=3)
    return ctx.remaining()


def count_down(ctx: TaskContext) -> list[float | None]:
    return [ctx.remaining(), ctx.remaining()]


def check_often(ctx: TaskContext, times: int) -> None:
    for number in range(times):
        ctx.checkpoint()
        ctx.heartbeat()
        ctx.progress(number + 1, times)


def late_progress(ctx: TaskContext) -> None:
    ctx.progress(1)
    ctx.progress(2)
    ctx.log("now")
    while not ctx.is_stop_requested:
        time.sleep(0.001)


def wait_for_stop(ctx: TaskContext) -> NoReturn:
    ctx.log("begun")
    while True:
        ctx.checkpoint()
        time.sleep(0.001)


async def wait_for_stop_in_group(ctx: TaskContext) -> None:
    async with anyio.create_task_group() as tg:
        tg.start_soon(_acheck, ctx)


async def _acheck(ctx: TaskContext) -> None:
    ctx.log("begun")
    while True:
        await ctx.acheckpoint()


def return_when_resumed(ctx: TaskContext) -> str:
    ctx.log("begun")
    while not ctx.is_pause_requested:
        time.sleep(0.001)
    ctx.checkpoint()
    return "resumed"


def make_artifacts(ctx: TaskContext) -> str:
    return ctx.artifact_dir()


def use_downstream(ctx: TaskContext) -> None:
    ctx.downstream.send  # noqa: B018  # the property raises


def snooze(ctx: TaskContext) -> None:
    ctx.snooze(2.5, "later")


def discard(ctx: TaskContext) -> None:
    ctx.discard("pointless")


async def raise_in_groups(what: str) -> None:
    error: BaseException = {
        "stopped": TaskStopped("enough"),
        "snoozed": TaskSnoozed(3.0),
        "discarded": TaskDiscarded("why"),
        "value": ValueError("bad"),
    }[what]
    raise BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [error])])


def raise_odd_snooze() -> None:
    raise TaskSnoozed(float("inf"))


def log_from_a_thread_that_stays(ctx: TaskContext) -> int:
    """Leave a thread behind that goes on talking after the end."""
    said = threading.Event()

    def talk() -> None:
        while True:
            ctx.log("still here")
            ctx.progress(1)
            ctx.checkpoint()
            said.set()

    threading.Thread(target=talk, daemon=True).start()
    said.wait()
    return 1


def handle_sigterm(ctx: TaskContext) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    ctx.log("begun")
    while True:
        pass


# --- bad ones ---------------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    def __init__(self, first: str, second: int) -> None:
        Exception.__init__(self)
        self.lock = threading.Lock()
        self.second = second

    def __str__(self) -> str:
        return f"second={self.second}"


def raise_two_arguments() -> None:
    raise TwoArguments("a", 2)


def raise_failed() -> None:
    raise AttemptFailed(
        "no", kind="connection", retryable=False, retry_after=4.0, type_name="Busy", detail={"status": 503}
    )


def raise_failed_oddly() -> None:
    raise AttemptFailed("no", detail={"lock": threading.Lock()})


def raise_named(name: str) -> None:
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}[name]("x")


def exit_hard(code: int) -> None:
    os._exit(code)


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def spin(ctx: TaskContext) -> None:
    ctx.log("begun")
    while True:
        pass


def burn() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        pass


def fill_memory(size: int) -> int:
    HOARD.append(b"x" * size)
    return len(HOARD)


def print_and_run() -> str:
    print("to standard output")  # noqa: T201
    os.write(1, b"raw bytes to standard output\n")
    subprocess.run(["echo", "from a program"], check=True)
    return sys.stdin.read()


def write_garbage(text: str) -> None:
    """Write to the engine's own pipe, which is the last one of this process."""
    os.write(_pipe_to_engine(), text.encode())


def write_garbage_later(ctx: TaskContext, fifo: str) -> int:
    """Leave a thread behind that writes to the engine's pipe when the body has ended, then lets `fifo` know."""

    def write() -> None:
        try:
            while True:
                ctx.artifact_dir()
        except OSError:
            os.write(_pipe_to_engine(), b"garbage")
        with open(fifo, "w", encoding="ascii") as file:
            file.write("done")

    threading.Thread(target=write, daemon=True).start()
    return os.getpid()


def close_pipe_to_engine(ctx: TaskContext) -> None:
    os.close(_pipe_to_engine())
    ctx.log("never heard")


def _pipe_to_engine() -> int:
    pipes = [int(name) for name, target in open_files().items() if target.startswith("pipe:") and int(name) > 2]
    return min(number for number in pipes if not _is_readable_end(number))


def _is_readable_end(number: int) -> bool:
    with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
        flags = next(line for line in file if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY


def start_program(ctx: TaskContext, *, then: str) -> int:
    """Start a program that would go on for ever; tell both numbers."""
    program = subprocess.Popen(["sleep", "1000"])
    ctx.log("%s %s", os.getpid(), program.pid)
    if then == "spin":
        while True:
            pass
    if then == "crash":
        os._exit(9)
    return program.pid


def fork_and_return(ctx: TaskContext) -> str:
    """Come back twice, as a body that forks carelessly does."""
    number = os.fork()
    if number == 0:
        ctx.log("from the fork")
        return "fork"
    os.waitpid(number, 0)
    return "original"


def fork_and_crash(ctx: TaskContext) -> None:
    """Leave a fork behind that would hold every pipe open."""
    number = os.fork()
    if number == 0:
        while True:
            signal.pause()
    ctx.log("%s %s", os.getpid(), number)
    os._exit(4)


def return_generator() -> Any:
    def generate() -> Generator[int, None, None]:
        yield 1

    return generate()


def return_named(what: str) -> Any:
    if what == "lambda":
        return lambda: 1
    if what == "file":
        return open(os.devnull, encoding="ascii")
    if what == "set":
        return {1, 2}
    return object()


async def never_awaited() -> int:
    return 1


def return_coroutine() -> Any:
    return never_awaited()


def log_with_logging(ctx: TaskContext) -> None:
    ctx.warning("only kept")
    logging.getLogger("somebody.else").warning("printed by logging")


def not_importable() -> None:
    """Replaced below: the name leads elsewhere."""


original_not_importable = not_importable
not_importable = add  # type: ignore[assignment]


def flood(ctx: TaskContext, lines: int) -> None:
    for number in range(lines):
        ctx.log("line %d of many", number)
