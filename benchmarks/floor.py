"""What the same work costs without the engine: the floor that each ratio stands on.

* `SqlFloor` runs the engine's own SQL, on its own schema, in batches: it builds the same JSON texts, and decides,
  checks, waits for and tells nothing.
* `run_pool` runs bodies in a bare anyio pool.
* `run_httpx` makes the calls with bare httpx in its fastest form: a connection for each worker.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import apsw
from anyio.streams.memory import MemoryObjectReceiveStream

from taskengine import SqliteStore
from taskengine.core.lifecycle import State, Trigger
from taskengine.defaults import MAX_ATTEMPTS
from taskengine.ids import new_id
from taskengine.stores.sqlite import transaction as sql
from taskengine.stores.sqlite.rows import decode_tasks, encode_rows

BATCH = 200
FILL_BATCH = 10_000
OWNER = "floor"
NO_OPTIONS = (None,) * 7


class SqlFloor:
    """A bare connection to a SQLite file with the engine's schema.

    Args:
        path: the file; made if it is not there.
        name: of the tasks.
        args: makes the JSON text of the arguments of task n.
    """

    def __init__(
        self, path: Path, *, name: str = "trivial", args: Callable[[int], str] = lambda number: f"[[{number}],{{}}]"
    ) -> None:
        store = SqliteStore(path)
        store.open()
        store.close()
        self._name = name
        self._args = args
        self._db = apsw.Connection(str(path))
        self._synchronous("FULL")

    def _synchronous(self, mode: str) -> None:
        self._db.execute(f"PRAGMA synchronous = {mode}")

    def __enter__(self) -> "SqlFloor":
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._db.close()

    # --- measured ---

    def live(self, count: int, batch: int = BATCH) -> None:
        """Take `count` tasks through their whole lives, three transactions for each batch."""
        for start in range(0, count, batch):
            size = min(batch, count - start)
            self.insert(size)
            self._settle(self._claim(size))

    def insert(self, count: int) -> None:
        """Store tasks in one transaction."""
        with _Write(self._db) as write:
            now, key = write.now, write.next_key
            write.last_rank = max(now, write.last_rank)
            tasks, history = [], []
            for number in range(key, key + count):
                write.last_rank += 1
                tasks.append(
                    (
                        number,
                        new_id(),
                        self._name,
                        self._args(number),
                        State.QUEUED,
                        1,
                        MAX_ATTEMPTS,
                        "retry",
                        0,
                        write.last_rank,
                        now,
                        now,
                        *NO_OPTIONS,
                    )
                )
                history.append(
                    (number, 1, State.PENDING, State.QUEUED, now, Trigger.USER_SUBMIT, "user", None, 0, None)
                )
            write.next_key += count
            self._db.execute(sql.INSERT, (encode_rows(tasks),))
            write.finish(history, [(self._name, State.QUEUED, count), ("", Trigger.USER_SUBMIT, count)])

    def _claim(self, count: int) -> list[Any]:
        with _Write(self._db) as write:
            now = write.now
            self._db.execute(sql.DUE_TASKS, (now, 500)).fetchall()
            self._db.execute(sql.NEXT_DUE).fetchall()
            ((text,),) = self._db.execute(sql.CLAIMABLE_OF_ONE, (self._name, count)).fetchall()
            assert isinstance(text, bytes), "a gathered row is a blob"
            rows = decode_tasks(text)
            self._db.execute(sql.CLAIM, (OWNER, encode_rows([row.key for row in rows])))
            trigger = Trigger.CLAIMER_CLAIM
            history = [
                (row.key, 2, State.QUEUED, State.STARTING, now, trigger, "engine", None, 1, None) for row in rows
            ]
            tally = [(self._name, State.QUEUED, -count), (self._name, State.STARTING, count), ("", trigger, count)]
            write.finish(history, tally)
        return rows

    def _settle(self, rows: Sequence[Any]) -> None:
        with _Write(self._db) as write:
            now, count = write.now, len(rows)
            launched, completed = Trigger.EXECUTOR_LAUNCHED, Trigger.EXECUTOR_COMPLETED
            writes, history = [], []
            for row in rows:
                key, rank, due = row.key, row.rank, row.due_at
                writes.append(
                    (key, 1, 2, State.SUCCEEDED, 4, 1, 0, rank, due, now, now, None, None, None, str(key), None)
                )
                history.append((key, 3, State.STARTING, State.RUNNING, now, launched, "engine", None, 1, None))
                history.append((key, 4, State.RUNNING, State.SUCCEEDED, now, completed, "engine", None, 1, None))
            self._db.execute(sql.UPDATE, (encode_rows(writes),))
            assert self._db.changes() == count, "nobody else writes here"
            tally = [
                (self._name, State.STARTING, -count),
                (self._name, State.SUCCEEDED, count),
                ("", launched, count),
                ("", completed, count),
            ]
            write.finish(history, tally)

    # --- for setting up ---

    def fill(self, count: int) -> None:
        """Store many waiting tasks as fast as can be, and leave a file that is synced."""
        self._synchronous("OFF")
        for start in range(0, count, FILL_BATCH):
            self.insert(min(FILL_BATCH, count - start))
        self._synchronous("FULL")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def waiting(self) -> int:
        """Return how many tasks are queued."""
        rows = self._db.execute("SELECT n FROM tally WHERE name = ? AND word = 'queued'", (self._name,)).fetchall()
        return int(rows[0][0] or 0) if rows else 0

    def settled(self) -> int:
        """Return how many tasks have succeeded."""
        return int(self._db.execute("SELECT count(*) FROM task WHERE state = 'succeeded'").fetchall()[0][0] or 0)


class _Write:
    """One transaction with the head and the counters that every one of the engine's has."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> "_Write":
        self._db.execute("BEGIN IMMEDIATE")
        head: Any = self._db.execute(sql.HEAD, (OWNER,)).fetchall()[0]
        self.next_key, self.next_position, self.last_rank = head[:3]
        self.now = time.time_ns() // 1000
        return self

    def finish(self, history: Sequence[tuple[Any, ...]], tally: Sequence[tuple[str, str, int]]) -> None:
        self._db.execute(sql.APPEND, (self.next_position, encode_rows(history)))
        self._db.execute(sql.TALLY, (encode_rows(tally),))
        self._db.execute(sql.SAVE_HEAD, (self.next_key, self.next_position + len(history), self.last_rank))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._db.execute("COMMIT" if exc is None else "ROLLBACK")


async def run_pool(body: Callable[[int], Awaitable[object]], count: int, workers: int, places: int) -> float:
    """Run `body` for the numbers up to `count` on workers that share a stream; return the seconds it took.

    Args:
        places: items that the stream holds. With `count` places it is filled before the workers begin: no bound, no
            backpressure, and the least that a pool can cost.
    """
    send, receive = anyio.create_memory_object_stream[int](places)

    async def work(numbers: MemoryObjectReceiveStream[int]) -> None:
        with numbers:
            async for number in numbers:
                await body(number)

    begin = time.perf_counter()
    async with anyio.create_task_group() as tg:
        for _ in range(workers):
            tg.start_soon(work, receive.clone())
        receive.close()
        with send:
            for number in range(count):
                if places >= count:
                    send.send_nowait(number)
                else:
                    await send.send(number)
    return time.perf_counter() - begin


async def run_httpx(url: str, count: int, workers: int) -> float:
    """POST `count` times with httpx, a client (one connection) for each worker; return the seconds it took.

    One client for all would be slower: its pool is searched at each call. The TLS context is shared because making one
    takes longer than all of a client's calls.
    """
    import httpx

    context = httpx.create_ssl_context(trust_env=False)
    numbers = iter(range(count))

    async def work() -> None:
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=5.0) as client:
            for number in numbers:
                key = new_id()
                headers = {"Idempotency-Key": key, "X-Task-Id": key, "X-Task-Attempt": "1"}
                answer = await client.post(url, json={"number": number}, headers=headers)
                assert answer.status_code == 200, answer.text

    begin = time.perf_counter()
    async with anyio.create_task_group() as tg:
        for _ in range(workers):
            tg.start_soon(work)
    return time.perf_counter() - begin
