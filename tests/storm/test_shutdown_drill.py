"""SIGTERM to a worker with fifty bodies of every kind: it exits in bounded time, and holds nothing any more."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from taskengine import Engine, SqliteStore, State
from taskengine.core.lifecycle import LEASED
from taskengine.testing.invariants import check_invariants
from tests.storm import bodies

GRACE = 1.0
"""Seconds that the worker gives its bodies."""
FORCE = 2.0
"""Seconds between force and giving up; the default."""
SLOW_MACHINE = 20.0
"""Seconds on top, for a machine that does other things."""

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("worker_backend", ["asyncio", "trio"])
async def test_sigterm_with_bodies_of_every_kind_ends_within_its_deadline_and_leaves_nothing_owned(
    tmp_path: Path, worker_backend: str
) -> None:
    path = tmp_path / "tasks.db"
    arguments = ["--db", str(path), "--tasks", "tests.storm.bodies", "worker", "--backend", worker_backend]
    arguments += ["--concurrency", "60", "--grace", str(GRACE)]
    count = sum(number for _, number in bodies.STAYING)
    async with Engine(path) as client:
        await client.submit_many(body.bind() for body, number in bodies.STAYING for _ in range(number))
        process = _start(arguments)
        try:
            with anyio.fail_after(90):
                await _all_running(client, count)
                children = _children_of(process.pid)
                assert len(children) >= 5
                process.send_signal(signal.SIGTERM)
                with anyio.fail_after(GRACE + FORCE + SLOW_MACHINE):
                    code = await anyio.to_thread.run_sync(process.wait)
        finally:
            process.kill()
            process.wait()
        assert code == 0
        by_state = (await client.stats()).by_state
    assert sum(by_state[state] for state in LEASED) == 0
    stuck = sum(number for body, number in bodies.STAYING if body in (bodies.stay_swallowing, STUCK))
    assert (by_state[State.LOST], by_state[State.QUEUED]) == (stuck, count - stuck)
    assert [pid for pid in children if _is_alive(pid)] == []
    store = SqliteStore(path)
    store.open()
    try:
        assert store.reader().owners() == []
        assert check_invariants(store) == []
    finally:
        store.close()


STUCK = bodies.stay_stuck_in_thread


def _start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "taskengine", *arguments], cwd=ROOT)


async def _all_running(client: Engine, left: int) -> None:
    async for move in client.events(after=0):
        left -= move.target is State.RUNNING
        if left == 0:
            return


def _children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None and int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def _is_alive(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    """Return the fields behind the name: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
