"""The main job under kill -9: JSONL tasks against a server that fails at random, and workers that are killed."""

import json
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import anyio
import anyio.abc
import pytest
from attrs import define, field

from taskengine import SqliteStore, State
from taskengine.core.model import TaskFilter, TaskRow
from taskengine.testing.invariants import check_invariants


@define
class Journal:
    """Every POST that the server has seen, in order, with its answer."""

    random: Random
    posts: list[tuple[str, int, float, int]] = field(factory=list)
    """(task id, attempt, wall-clock seconds when it arrived, status)."""
    changed: anyio.Event = field(factory=anyio.Event)

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Answer requests of one connection: 10 % 503, 1 % 400, else 200."""
        buffer = b""
        async with stream:
            try:
                while True:
                    while b"\r\n\r\n" not in buffer:
                        buffer += await stream.receive()
                    head, _, buffer = buffer.partition(b"\r\n\r\n")
                    headers = {
                        name.strip().lower(): value.strip()
                        for name, _, value in (line.partition(":") for line in head.decode().split("\r\n")[1:])
                    }
                    while len(buffer) < int(headers.get("content-length", "0")):
                        buffer += await stream.receive()
                    buffer = buffer[int(headers.get("content-length", "0")) :]
                    status = self.note(headers["x-task-id"], int(headers["x-task-attempt"]))
                    await stream.send(b"HTTP/1.1 %d Said\r\nContent-Length: 2\r\n\r\nok" % status)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return  # The worker was killed, or is done with this connection.

    def note(self, task_id: str, attempt: int) -> int:
        draw = self.random.random()
        status = 503 if draw < 0.10 else 400 if draw < 0.11 else 200
        self.posts.append((task_id, attempt, time.time(), status))
        self.changed.set()
        return status

    async def wait_for(self, count: int) -> None:
        while len(self.posts) < count:
            self.changed = anyio.Event()
            await self.changed.wait()


def write_lines(path: Path, url: str, count: int) -> None:
    lines = (
        json.dumps({"url": url, "json": {"n": n}, "idempotency_key": f"k{n}", "max_attempts": 12}) for n in range(count)
    )
    path.write_text("\n".join(lines) + "\n")


def rows_of(path: Path) -> list[TaskRow]:
    store = SqliteStore(path)
    store.open()
    try:
        assert check_invariants(store) == []
        return store.reader().select(TaskFilter(), limit=100_000)
    finally:
        store.close()


async def run_and_kill(command: list[str], journal: Journal, count: int, kills: int) -> None:
    """Start workers one after the other, kill each at a known share of the work, and let the last one finish."""
    for number in range(kills):
        async with await anyio.open_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
            with anyio.fail_after(120):
                await journal.wait_for(count * (number + 1) // (kills + 2))
            worker.kill()
    done = await anyio.run_process(command, check=False, stderr=subprocess.PIPE)
    assert done.returncode in (0, 3), done.stderr.decode()  # 3: the 400s failed, as they should


@pytest.mark.parametrize("worker_backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("count", "kills"), [(600, 3), pytest.param(5_000, 5, marks=pytest.mark.slow)], ids=["short", "long"]
)
@pytest.mark.timeout(600)
async def test_killed_workers_lose_nothing_and_repeat_only_what_was_in_flight(
    tmp_path: Path, worker_backend: str, count: int, kills: int
) -> None:
    path, lines = tmp_path / "tasks.db", tmp_path / "tasks.jsonl"
    journal = Journal(Random(count))
    program = [sys.executable, "-m", "taskengine", "--db", str(path)]
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    write_lines(lines, f"http://127.0.0.1:{port}/", count)
    worker = ["worker", "--drain", "--concurrency", "50", "--allow-host", "127.0.0.1", "--backend", worker_backend]
    async with anyio.create_task_group() as tg:
        tg.start_soon(listener.serve, journal.serve)
        for expected in (count, 0):  # the second time adds nothing
            said = await anyio.run_process([*program, "submit", "--from", str(lines), "--json"])
            assert json.loads(said.stdout)["submitted"] == expected
        await run_and_kill([*program, *worker], journal, count, kills)
        tg.cancel_scope.cancel()
    await listener.aclose()
    check_story(rows_of(path), journal, count)


def check_story(rows: list[TaskRow], journal: Journal, count: int) -> None:
    """Compare what the store says with what the server saw."""
    posts = defaultdict(list)
    for task_id, attempt, at, status in journal.posts:
        posts[task_id].append((attempt, at, status))
    assert len(rows) == count
    assert {row.state for row in rows} <= {State.SUCCEEDED, State.FAILED}
    assert set(posts) == {row.id for row in rows}
    for row in rows:
        seen = posts[row.id]
        attempts = [attempt for attempt, _, _ in seen]
        assert attempts == sorted(set(attempts)), "one POST an attempt, in order"
        assert row.charged <= (row.max_attempts or 0)
        assert len(seen) <= row.attempt
        assert row.finished_at is not None
        assert all(at * 1_000_000 <= row.finished_at for _, at, _ in seen), "no POST after the end was committed"
        successes = sum(status == 200 for _, _, status in seen)
        assert successes >= (row.state is State.SUCCEEDED)
        assert successes <= 1 + row.crashes, "a 200 is repeated only where a kill came in between"
