"""HTTP tasks a second, against bare httpx making the same calls."""

import statistics
import time

import anyio

from benchmarks.floor import run_httpx
from benchmarks.http_server import serving
from benchmarks.measuring import Report, Setting, Target, interleave
from taskengine import Engine, SqliteStore
from taskengine.tasks import http_post
from taskengine.tasks.downstream import HttpxDownstream

TARGETS = {"vs_bare_httpx": Target(0.7, 0.7)}

CONCURRENCY = 100
DELAY = 0.01
"""Seconds after which the server answers."""


async def post_through_engine(store: SqliteStore, url: str, count: int) -> float:
    """Submit and drain `count` HTTP tasks; return the seconds it took."""
    downstream = HttpxDownstream(allow_hosts=["127.0.0.1"])
    async with Engine(store, tasks=[http_post], concurrency=CONCURRENCY, downstream=downstream) as engine:
        begin = time.perf_counter()
        await engine.submit_many(http_post.bind(url, json={"number": number}) for number in range(count))
        await engine.drain()
        seconds = time.perf_counter() - begin
        stats = await engine.stats()
        assert stats.completed == count, stats
        assert stats.retried == 0, stats
    await downstream.aclose()
    return seconds


def run(setting: Setting) -> Report:
    """Measure both at a concurrency of 100 against a server that answers after 10 ms; durability full."""
    count = setting.size(3_000, 200)
    with serving(DELAY) as url:

        def ours() -> float:
            with setting.database() as path:
                return count / anyio.run(post_through_engine, SqliteStore(path), url, count, backend=setting.backend)

        def floor() -> float:
            return count / anyio.run(run_httpx, url, count, CONCURRENCY, backend=setting.backend)

        rounds = interleave(setting, ours, floor)
    report = Report("http", setting.backend, targets=TARGETS)
    report.add_ratio("vs_bare_httpx", rounds)
    report.results |= {
        "tasks_per_s": round(statistics.median(rounds.ours)),
        "bare_httpx_calls_per_s": round(statistics.median(rounds.floor)),
        "concurrency": CONCURRENCY,
        "calls": count,
    }
    return report
