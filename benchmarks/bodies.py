"""The bodies that benchmarks run."""

import time

import anyio

from taskengine import task
from taskengine.eventloop import run_soon


@task
async def trivial(number: int) -> int:
    """Do nothing, with the default number of attempts."""
    return number


@task(max_attempts=1)
async def trivial_once(number: int) -> int:
    """Do nothing, in an attempt that is the last one and so is never prefetched."""
    return number


def do_nothing(number: int) -> int:
    """Do nothing, in whatever executor."""
    return number


async def wait_once(number: int) -> int:
    """Wait for one callback of the loop, as everything does whose answer comes from elsewhere."""
    answered = anyio.Event()
    run_soon()(answered.set)
    await answered.wait()
    return number


class Stamps:
    """When bodies began, by `time.perf_counter_ns`; benchmarks run one engine at a time."""

    begun_ns = 0


@task
async def stamp() -> None:
    """Note when it began."""
    Stamps.begun_ns = time.perf_counter_ns()


class Countdown:
    """How many bodies are wanted, and when the first and the last of them ran."""

    def __init__(self, wanted: int) -> None:
        self.left = wanted
        self.first_at = self.last_at = 0.0
        self.is_over = anyio.Event()


class CountdownPlace:
    """Where `count_down` finds the countdown of the engine that runs now."""

    current: Countdown


@task
async def count_down() -> None:
    """Count; the bodies beyond what is wanted are not noted."""
    countdown = CountdownPlace.current
    if countdown.left == 0:
        return
    now = time.perf_counter()
    countdown.first_at = countdown.first_at or now
    countdown.left -= 1
    if countdown.left == 0:
        countdown.last_at = now
        countdown.is_over.set()


@task
async def count_down_then_stay() -> None:
    """Count, and when all that were wanted have run, stay for ever."""
    if CountdownPlace.current.left:
        await count_down()
    else:
        await anyio.sleep_forever()


@task
async def stay() -> None:
    """Stay for ever."""
    await anyio.sleep_forever()
