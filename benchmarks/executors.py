"""What a task costs in each executor, beside the bare call in `asyncio.to_thread` and `ProcessPoolExecutor`.

All run a function that does nothing, on the memory store. The engine's own share (claim, outcome, history, the wait for
the result) is what an async body costs, as many at once, that waits for one callback of the loop, as a body in a thread
or a process does. Without that share an executor should cost at most one and a half times the bare call. Threads run 50
at once, as the engine does by default, and children two, one for each processor. The bare calls are asyncio's on either
backend.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import anyio

from benchmarks.bodies import do_nothing, wait_once
from benchmarks.measuring import Report, Setting, Target, interleave_all
from taskengine import Engine, MemoryStore, TaskCall
from taskengine.taskoptions import ExecutorName

TARGETS = {
    "thread_without_share_vs_to_thread": Target(1.5, 1.5, is_floor=False),
    "process_without_share_vs_process_pool": Target(1.5, 1.5, is_floor=False),
}

THREADS, CHILDREN = 50, 2
"""Bodies at once."""


async def _run_tasks(executor: ExecutorName, at_once: int, count: int) -> float:
    """Return microseconds a task."""
    body = wait_once if executor == "loop" else do_nothing
    async with Engine(MemoryStore(), tasks=[], concurrency=at_once) as engine:
        engine.register("body", body, executor=executor)
        # Threads and children are started before the clock is.
        await engine.wait_all(await engine.submit_many(TaskCall.of("body", 0) for _ in range(2 * at_once)))
        begin = time.perf_counter()
        await engine.wait_all(await engine.submit_many(TaskCall.of("body", number) for number in range(count)))
        return (time.perf_counter() - begin) / count * 1e6


async def _call(count: int, at_once: int, call: Callable[[int], "asyncio.Future[int]"]) -> float:
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await call(number)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as tg:
        for _ in range(at_once):
            tg.create_task(work())
    return (time.perf_counter() - begin) / count * 1e6


async def _call_in_threads(count: int) -> float:
    def call(number: int) -> "asyncio.Future[int]":
        return asyncio.ensure_future(asyncio.to_thread(do_nothing, number))

    await _call(THREADS, THREADS, call)
    return await _call(count, THREADS, call)


async def _call_in_processes(count: int) -> float:
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(CHILDREN, mp_context=get_context("spawn")) as pool:

        def call(number: int) -> "asyncio.Future[int]":
            return loop.run_in_executor(pool, do_nothing, number)

        await _call(4 * CHILDREN, CHILDREN, call)
        return await _call(count, CHILDREN, call)


def run(setting: Setting) -> Report:
    """Measure every executor and every bare call in turns."""
    count, few = setting.size(4_000, 50), setting.size(1_500, 20)

    def ours(executor: ExecutorName, at_once: int, number: int) -> float:
        return anyio.run(_run_tasks, executor, at_once, number, backend=setting.backend)

    turns: dict[str, Callable[[], float]] = {
        "inline": lambda: ours("inline", THREADS, count),
        "share_of_50": lambda: ours("loop", THREADS, count),
        "thread": lambda: ours("thread", THREADS, count),
        "to_thread": lambda: asyncio.run(_call_in_threads(count)),
        "share_of_2": lambda: ours("loop", CHILDREN, few),
        "process": lambda: ours("process", CHILDREN, few),
        "process_pool": lambda: asyncio.run(_call_in_processes(few)),
    }
    rounds = interleave_all(setting, turns)
    report = Report("executors", setting.backend, targets=TARGETS)
    for name, samples in rounds.items():
        report.results[f"{name}_us"] = [round(sample, 1) for sample in samples]
    for ours_name, share_name, floor_name in (
        ("thread", "share_of_50", "to_thread"),
        ("process", "share_of_2", "process_pool"),
    ):
        report.add_ratio_of(
            f"{ours_name}_without_share_vs_{floor_name}",
            [
                max(0.001, mine - share) / bare
                for mine, share, bare in zip(rounds[ours_name], rounds[share_name], rounds[floor_name], strict=True)
            ],
        )
    return report
