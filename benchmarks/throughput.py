"""Lives a second: tasks that do nothing, from submit to their stored result."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import anyio
from attrs import frozen

from benchmarks.bodies import trivial, trivial_once
from benchmarks.floor import SqlFloor, run_pool
from benchmarks.measuring import Report, Rounds, Setting, Target, interleave
from taskengine import Engine, MemoryStore, SqliteStore, TaskCall
from taskengine.defaults import CONCURRENCY, PREFETCH
from taskengine.ports import Store

SUBMITTERS = 50

TARGETS = {
    "bulk_full_vs_floor": Target(0.33, 0.28),
    "single_full_vs_floor": Target(0.2, 0.18),
    "memory_vs_pool": Target(0.2, 0.2),
}


@frozen
class Pace:
    """How fast a run was."""

    rate: float
    """Lives a second."""
    loop_us: float
    """CPU time of the event loop's thread, in microseconds a task."""
    other_us: float
    """CPU time of the other threads, in microseconds a task."""


Submit = Callable[["Engine", Callable[[int], TaskCall[int]], int], Any]


async def submit_bulk(engine: Engine, bind: Callable[[int], TaskCall[int]], count: int) -> None:
    """Submit all with one call."""
    await engine.submit_many(bind(number) for number in range(count))


async def submit_singly(engine: Engine, bind: Callable[[int], TaskCall[int]], count: int) -> None:
    """Submit one by one, from fifty submitters that each await their own acknowledgement."""
    numbers = iter(range(count))

    async def submit() -> None:
        for number in numbers:
            await engine.submit(bind(number))

    async with anyio.create_task_group() as tg:
        for _ in range(SUBMITTERS):
            tg.start_soon(submit)


async def live(store: Store, submit: Submit, bind: Callable[[int], TaskCall[int]], count: int) -> Pace:
    """Take `count` tasks through an engine of their own; its start and end are not counted."""
    async with Engine(store, tasks=[trivial, trivial_once]) as engine:
        begin, process, thread = time.perf_counter(), time.process_time(), time.thread_time()
        await submit(engine, bind, count)
        await engine.drain()
        seconds = time.perf_counter() - begin
        thread = time.thread_time() - thread
        process = time.process_time() - process
        stats = await engine.stats()
        assert stats.completed == count, stats
    return Pace(count / seconds, thread * 1e6 / count, (process - thread) * 1e6 / count)


def run(setting: Setting) -> Report:
    """Measure bulk and single submission with durability full, and bulk in memory."""
    report = Report("throughput", setting.backend, targets=TARGETS)
    _measure_sqlite(setting, report, "bulk_full", submit_bulk, trivial.bind, setting.size(20_000, 400))
    _measure_sqlite(setting, report, "bulk_full_one_attempt", submit_bulk, trivial_once.bind, setting.size(10_000, 400))
    _measure_sqlite(setting, report, "single_full", submit_singly, trivial.bind, setting.size(10_000, 400))
    _measure_memory(setting, report, setting.size(10_000, 400))
    return report


def _measure_sqlite(
    setting: Setting,
    report: Report,
    name: str,
    submit: Submit,
    bind: Callable[[int], TaskCall[int]],
    count: int,
) -> None:
    paces: list[Pace] = []

    def ours() -> float:
        with setting.database() as path:
            paces.append(anyio.run(live, SqliteStore(path), submit, bind, count, backend=setting.backend))
            return paces[-1].rate

    def floor() -> float:
        with setting.database() as path, SqlFloor(path) as bare:
            begin = time.perf_counter()
            bare.live(count)
            return count / (time.perf_counter() - begin)

    rounds = interleave(setting, ours, floor)
    report.add_ratio(f"{name}_vs_floor", rounds)
    _add_paces(report, name, paces[-setting.rounds :])
    report.results[f"{name}_floor_lives_per_s"] = round(statistics.median(rounds.floor))


def _measure_memory(setting: Setting, report: Report, count: int) -> None:
    paces: list[Pace] = []
    prefilled: list[float] = []

    def ours() -> float:
        paces.append(anyio.run(live, MemoryStore(), submit_bulk, trivial.bind, count, backend=setting.backend))
        return paces[-1].rate

    def floor() -> float:
        prefilled.append(count / anyio.run(run_pool, trivial, count, CONCURRENCY, count, backend=setting.backend))
        # As many places as an engine holds tasks: its slots and its prefetch.
        return count / anyio.run(run_pool, trivial, count, CONCURRENCY, PREFETCH, backend=setting.backend)

    rounds = interleave(setting, ours, floor)
    report.add_ratio("memory_vs_pool", rounds)
    _add_paces(report, "memory", paces[-setting.rounds :])
    report.results["pool_lives_per_s"] = round(statistics.median(rounds.floor))
    unbounded = Rounds(rounds.ours, prefilled[-setting.rounds :])
    report.add_ratio("memory_vs_prefilled_pool", unbounded)
    report.results["prefilled_pool_lives_per_s"] = round(statistics.median(unbounded.floor))


def _add_paces(report: Report, name: str, paces: list[Pace]) -> None:
    report.results[f"{name}_lives_per_s"] = round(statistics.median(pace.rate for pace in paces))
    report.results[f"{name}_loop_cpu_us_per_task"] = round(statistics.median(pace.loop_us for pace in paces), 1)
    report.results[f"{name}_other_cpu_us_per_task"] = round(statistics.median(pace.other_us for pace in paces), 1)
