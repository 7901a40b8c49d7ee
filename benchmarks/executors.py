"""What a task costs in each executor, beside the bare call in `asyncio.to_thread` and `ProcessPoolExecutor`.

All run a function that does nothing, on the memory store, two at a time, so that the executor is what is measured. The
engine's own share (claim, outcome, history, the wait for the result) is what the same function costs inline; without it
an executor should cost at most one and a half times the bare call. The bare calls are asyncio's on either backend.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import anyio

from benchmarks.bodies import do_nothing
from benchmarks.measuring import Report, Setting, Target, interleave_all
from taskengine import Engine, MemoryStore, TaskCall

TARGETS = {
    "thread_without_share_vs_to_thread": Target(1.5, 1.5, is_floor=False),
    "process_without_share_vs_process_pool": Target(1.5, 1.5, is_floor=False),
}

AT_ONCE = 2

EXECUTORS = ("inline", "thread", "process")


async def _run_tasks(executor: str, count: int) -> float:
    """Return microseconds a task."""
    async with Engine(MemoryStore(), tasks=[], concurrency=AT_ONCE, child_max_tasks=10**9) as engine:
        engine.register("warm", do_nothing, executor=executor)
        for _ in range(AT_ONCE):  # Threads and children are started before the clock is.
            await (await engine.submit(TaskCall.of("warm", 0))).wait()
        begin = time.perf_counter()
        handles = await engine.submit_many(TaskCall.of("warm", number) for number in range(count))
        await engine.wait_all(handles)
        return (time.perf_counter() - begin) / count * 1e6


async def _call(count: int, call: Callable[[int], "asyncio.Future[int]"]) -> float:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await call(number)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tg:
        for _ in range(AT_ONCE):
            tg.create_task(work())
    return (time.perf_counter() - begin) / count * 1e6


async def _call_in_threads(count: int) -> float:
    def call(number: int) -> "asyncio.Future[int]":
        return asyncio.ensure_future(asyncio.to_thread(do_nothing, number))

    await _call(AT_ONCE, call)
    return await _call(count, call)


async def _call_in_processes(count: int) -> float:
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:

        def call(number: int) -> "asyncio.Future[int]":
            return loop.run_in_executor(pool, do_nothing, number)

        await _call(AT_ONCE * 4, call)
        return await _call(count, call)


def run(setting: Setting) -> Report:
    """Measure every executor and every bare call in turns."""
    count, few = setting.size(4_000, 50), setting.size(1_500, 20)

    def ours(executor: str) -> float:
        number = few if executor == "process" else count
        return anyio.run(_run_tasks, executor, number, backend=setting.backend)

    turns: dict[str, Callable[[], float]] = {
        "inline": lambda: ours("inline"),
        "thread": lambda: ours("thread"),
        "process": lambda: ours("process"),
        "to_thread": lambda: asyncio.run(_call_in_threads(count)),
        "process_pool": lambda: asyncio.run(_call_in_processes(few)),
    }
    rounds = interleave_all(setting, turns)
    report = Report("executors", setting.backend, targets=TARGETS)
    for name, samples in rounds.items():
        report.results[f"{name}_us"] = [round(sample, 1) for sample in samples]
    for ours_name, floor_name in (("thread", "to_thread"), ("process", "process_pool")):
        report.add_ratio_of(
            f"{ours_name}_without_share_vs_{floor_name}",
            [
                max(0.001, mine - share) / bare
                for mine, share, bare in zip(rounds[ours_name], rounds["inline"], rounds[floor_name], strict=True)
            ],
        )
    return report
