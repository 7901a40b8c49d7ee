"""From just before `submit` to the first line of the body, when the engine has nothing else to do."""

import statistics
import time

import anyio

from benchmarks.bodies import Stamps, stamp
from benchmarks.floor import SqlFloor
from benchmarks.measuring import Report, Setting, Target, describe_samples, interleave
from taskengine import Engine, SqliteStore

TARGETS = {"submit_to_start_p99_ms": Target(10.0, 10.0, is_floor=False)}

PAUSE = 0.002
"""Seconds between two tasks, so that each finds the engine idle."""
WARM_UP = 10
"""Tasks and commits that are not counted."""


async def _sample(store: SqliteStore, count: int) -> tuple[list[float], list[float], list[float]]:
    to_start, to_answer, to_outcome = [], [], []
    async with Engine(store, tasks=[stamp]) as engine:
        for _ in range(WARM_UP):
            await (await engine.submit(stamp.bind())).wait()
        for _ in range(count):
            begin = time.perf_counter_ns()
            handle = await engine.submit(stamp.bind())
            answered = time.perf_counter_ns()
            await handle.wait()
            ended = time.perf_counter_ns()
            to_start.append((Stamps.begun_ns - begin) / 1e6)
            to_answer.append((answered - begin) / 1e6)
            to_outcome.append((ended - begin) / 1e6)
            await anyio.sleep(PAUSE)
    return to_start, to_answer, to_outcome


def run(setting: Setting) -> Report:
    """Measure submit to start, durability full, beside one bare synced commit of the same SQL."""
    count = setting.size(200, 10)
    samples: list[tuple[list[float], list[float], list[float]]] = []
    commits: list[list[float]] = []

    def ours() -> float:
        with setting.database() as path:
            samples.append(anyio.run(_sample, SqliteStore(path), count, backend=setting.backend))
        return 1 / statistics.median(samples[-1][0])

    def floor() -> float:
        with setting.database() as path, SqlFloor(path, name="stamp", args=lambda _: "[[],{}]") as bare:
            for _ in range(WARM_UP):
                bare.insert(1)
            commits.append([_time_commit(bare) for _ in range(count)])
        return 1 / statistics.median(commits[-1])

    rounds = interleave(setting, ours, floor)
    report = Report("latency", setting.backend, targets=TARGETS)
    report.add_ratio("commit_p50_vs_submit_to_start_p50", rounds)
    del samples[: -setting.rounds], commits[: -setting.rounds]
    for place, name in enumerate(("submit_to_start", "submit_to_answer", "submit_to_outcome")):
        report.results |= describe_samples(name, [sample[place] for sample in samples])
    report.results |= describe_samples("bare_commit", commits)
    report.results["samples"] = setting.rounds * count
    return report


def _time_commit(bare: SqlFloor) -> float:
    begin = time.perf_counter_ns()
    bare.insert(1)
    took = (time.perf_counter_ns() - begin) / 1e6
    time.sleep(PAUSE)
    return took
