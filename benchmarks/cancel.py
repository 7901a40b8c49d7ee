"""How long `cancel` of a running async body takes, until the committed `cancelled` is returned."""

import time

import anyio

from benchmarks.bodies import stay
from benchmarks.measuring import Report, Setting, Target, describe_samples
from taskengine import Engine, SqliteStore, State

TARGETS = {"inflight_p99_ms": Target(20.0, 20.0, is_floor=False)}

AT_ONCE = 10
"""Bodies at work while one of them is cancelled."""
SETTLE = 0.01
"""Seconds after which nothing is under way any more."""


async def _cancel_some(store: SqliteStore, count: int) -> list[float]:
    samples: list[float] = []
    cursor = 0
    async with Engine(store, tasks=[stay], concurrency=AT_ONCE) as engine:
        while len(samples) < count:
            handles = await engine.submit_many(stay.bind() for _ in range(AT_ONCE))
            cursor = await _all_running(engine, cursor)
            for handle in handles:
                begin = time.perf_counter_ns()
                task = await handle.cancel()
                samples.append((time.perf_counter_ns() - begin) / 1e6)
                assert task.state is State.CANCELLED, task.state
    return samples[:count]


async def _all_running(engine: Engine, cursor: int) -> int:
    """Wait until it is committed that the bodies behind the cursor run; return the cursor behind that."""
    left = AT_ONCE
    async for move in engine.events(cursor):
        left -= move.target is State.RUNNING
        cursor = move.position
        if left == 0:
            break
    await anyio.sleep(SETTLE)
    return cursor


def run(setting: Setting) -> Report:
    """Measure five rounds with durability full."""
    count = setting.size(200, 10)
    rounds: list[list[float]] = []
    for _ in range(setting.rounds):
        with setting.database() as path:
            rounds.append(anyio.run(_cancel_some, SqliteStore(path), count, backend=setting.backend))
    report = Report("cancel", setting.backend, targets=TARGETS)
    report.results |= describe_samples("inflight", rounds)
    report.results["samples"] = setting.rounds * count
    return report
