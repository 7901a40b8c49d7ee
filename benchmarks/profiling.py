"""Where the time goes: one run of ours under cProfile, the event loop's thread and the writer's apart.

The profiler makes calls dearer than they are (by some 50 to 100 %, small functions most), so that the figures rank
places; the rates that count are those of the benchmarks. Time is wall-clock time: waiting for the other thread shows up
as `poll` and in whatever waits for the GIL, and the collector's work in whatever allocates. Run it on a quiet machine.
"""

import cProfile
import pstats
import sys
from collections.abc import Callable
from typing import Any

import anyio

from benchmarks.bodies import trivial
from benchmarks.http import DELAY, post_through_engine
from benchmarks.http_server import serving
from benchmarks.measuring import Setting
from benchmarks.throughput import live, submit_bulk, submit_singly
from taskengine import MemoryStore, SqliteStore
from taskengine.actors import persister as persister_module

TOP = 25
_OWN, _WITH_CALLEES = 2, 3
"""Columns of pstats: calls, primitive calls, own time, time with callees."""


def _run_bulk(setting: Setting, count: int) -> None:
    with setting.database() as path:
        anyio.run(live, SqliteStore(path), submit_bulk, trivial.bind, count, backend=setting.backend)


def _run_single(setting: Setting, count: int) -> None:
    with setting.database() as path:
        anyio.run(live, SqliteStore(path), submit_singly, trivial.bind, count, backend=setting.backend)


def _run_memory(setting: Setting, count: int) -> None:
    anyio.run(live, MemoryStore(), submit_bulk, trivial.bind, count, backend=setting.backend)


def _run_http(setting: Setting, count: int) -> None:
    with setting.database() as path, serving(DELAY) as url:
        anyio.run(post_through_engine, SqliteStore(path), url, count, backend=setting.backend)


TARGETS: dict[str, tuple[Callable[[Setting, int], None], int]] = {
    "throughput": (_run_bulk, 20_000),
    "single": (_run_single, 10_000),
    "memory": (_run_memory, 10_000),
    "http": (_run_http, 3_000),
}


def profile(target: str, setting: Setting) -> None:
    """Run it and print the dearest places of both threads, in microseconds a task."""
    run, full = TARGETS[target]
    count = setting.size(full, 200)
    loop, writer = cProfile.Profile(), cProfile.Profile()
    # The one seam between the threads; Any, because it is nobody's public name.
    persister: Any = persister_module
    plain_tick = persister.run_tick

    def profiled_tick(*args: Any) -> Any:
        # In memory the tick is made on the loop's own thread, whose profile has it already.
        if target == "memory":
            return plain_tick(*args)
        writer.enable()
        try:
            return plain_tick(*args)
        finally:
            writer.disable()

    persister.run_tick = profiled_tick
    loop.enable()
    try:
        run(setting, count)
    finally:
        loop.disable()
        persister.run_tick = plain_tick
    _print(f"{target} on {setting.backend}: the event loop's thread", loop, count, by=_OWN)
    if target != "memory":
        # With callees, because there it is one function that does the work: which statement is what one wants to know.
        _print(f"{target} on {setting.backend}: ticks on the writer's thread", writer, count, by=_WITH_CALLEES)


def _print(title: str, profile: cProfile.Profile, count: int, *, by: int) -> None:
    stats: Any = pstats.Stats(profile, stream=sys.stdout)
    rows = sorted(stats.stats.items(), key=lambda item: item[1][by], reverse=True)
    print(f"\n{title}\n{'own µs/task':>12} {'with callees':>12} {'calls/task':>10}  place")
    for (file, line, name), (_, calls, own, cumulative, _) in rows[:TOP]:
        place = name if file == "~" else f"{_short(file)}:{line} {name}"
        print(f"{own * 1e6 / count:12.2f} {cumulative * 1e6 / count:12.2f} {calls / count:10.2f}  {place}")
    print(f"{stats.total_tt * 1e6 / count:12.2f} {'':12} {'':10}  all")


def _short(file: str) -> str:
    return "/".join(file.replace("\\", "/").split("/")[-3:])
