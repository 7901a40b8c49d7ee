"""Whether a long backlog slows the engine down: the first 5,000 of a million against 5,000 that are all."""

import statistics
import time
from pathlib import Path

import anyio

from benchmarks.bodies import Countdown, CountdownPlace, count_down
from benchmarks.floor import SqlFloor
from benchmarks.measuring import Report, Setting, Target, interleave
from taskengine import Engine, SqliteStore

TARGETS = {"million_vs_5k": Target(0.85, 0.85)}


async def _drain_first(path: Path, count: int) -> tuple[float, float]:
    """Return the rate of the first `count` bodies, and the seconds that opening the engine took."""
    CountdownPlace.current = countdown = Countdown(count)
    begin = time.perf_counter()
    async with Engine(SqliteStore(path), tasks=[count_down]) as engine:
        opened = time.perf_counter() - begin
        await countdown.is_over.wait()
        assert engine.task_names == ("count_down",)
    return (count - 1) / (countdown.last_at - countdown.first_at), opened


def _top_up(path: Path, count: int) -> None:
    with SqlFloor(path, name="count_down", args=lambda _: "[[],{}]") as bare:
        missing = count - bare.waiting()
        if missing > 0:
            bare.fill(missing)


def run(setting: Setting) -> Report:
    """Measure both; each file is filled once and topped up between rounds, which is not counted."""
    many, few = setting.size(1_000_000, 20_000), setting.size(5_000, 1_000)
    opened: dict[int, list[float]] = {many: [], few: []}

    with setting.database() as big, setting.database() as small:
        begin = time.perf_counter()
        _top_up(big, many)
        filled = time.perf_counter() - begin

        def drain(path: Path, count: int) -> float:
            _top_up(path, count)
            rate, seconds = anyio.run(_drain_first, path, few, backend=setting.backend)
            opened[count].append(seconds)
            return float(rate)

        rounds = interleave(setting, lambda: drain(big, many), lambda: drain(small, few))
        size = big.stat().st_size / 2**20

    report = Report("backlog", setting.backend, targets=TARGETS)
    report.add_ratio("million_vs_5k", rounds)
    report.results |= {
        "waiting": many,
        "drained": few,
        "first_of_many_per_s": round(statistics.median(rounds.ours)),
        "first_of_few_per_s": round(statistics.median(rounds.floor)),
        "open_with_many_ms": round(statistics.median(opened[many]) * 1000, 1),
        "open_with_few_ms": round(statistics.median(opened[few]) * 1000, 1),
        "file_mib": round(size),
        "fill_seconds": round(filled, 1),
    }
    return report
