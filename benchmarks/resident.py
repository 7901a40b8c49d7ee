"""A process with one engine, to look at its memory: `python -m benchmarks.resident PATH BACKEND WORK`.

It runs WORK bodies, then holds all slots with bodies that stay, and prints {"rss_mib": …, "peak_mib": …}.
"""

import gc
import json
import resource
import sys
from pathlib import Path

import anyio

from benchmarks.bodies import Countdown, CountdownPlace, count_down_then_stay
from taskengine import Engine, SqliteStore

CONCURRENCY = 10
SETTLE = 0.5
"""Seconds after which nothing moves any more."""


async def _hold(path: Path, work: int) -> dict[str, float]:
    CountdownPlace.current = countdown = Countdown(work)
    engine = Engine(
        SqliteStore(path), tasks=[count_down_then_stay], concurrency=CONCURRENCY, shutdown_grace=0.0, kill_grace=1.0
    )
    async with engine:
        if work:
            await countdown.is_over.wait()
        await engine.stats()
        await engine.list(limit=100)
        await anyio.sleep(SETTLE)
        gc.collect()
        return {"rss_mib": _resident_mib(), "peak_mib": _peak_mib()}


def _resident_mib() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return _peak_mib()
    return pages * resource.getpagesize() / 2**20


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    """Run it."""
    path, backend, work = sys.argv[1:]
    print(json.dumps(anyio.run(_hold, Path(path), int(work), backend=backend)))


if __name__ == "__main__":
    main()
