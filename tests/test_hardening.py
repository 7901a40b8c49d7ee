"""Faults that once took the engine, its host or a neighbour along; each now costs itself only."""

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

from taskengine import (
    AttemptFailed,
    DownstreamError,
    Engine,
    EngineNotRunning,
    InvalidOption,
    InvalidResult,
    MemoryStore,
    SqliteStore,
    State,
    StoreUnavailable,
    TaskCall,
    TaskStopped,
)
from taskengine.ports import Store
from taskengine.testing.faults import FaultyStore
from tests.actors.test_runner import running
from tests.bodies import add, same_store, sleep_long

TASKS: list[Any] = [add, sleep_long]


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # refuses to be looked at
        raise RuntimeError("no class")


class Forgetful(AttemptFailed):
    def __init__(self) -> None:
        pass


ODD: list[Callable[[], BaseException]] = [
    NoClass,
    Forgetful,
    lambda: AttemptFailed("x", kind=["a list"]),  # type: ignore[arg-type]
    lambda: AttemptFailed("x", retry_after="soon"),  # type: ignore[arg-type]
    lambda: AttemptFailed("x", type_name="\ud800"),
    lambda: AttemptFailed("x", retryable="yes"),  # type: ignore[arg-type]
    lambda: AttemptFailed("x", detail={"f": object()}),
    lambda: DownstreamError("x", retryable=object()),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", ODD)
async def test_an_exception_that_cannot_be_looked_at_is_a_failed_attempt(
    store: Store, make: Callable[[], BaseException]
) -> None:
    async def fail() -> None:
        raise make()

    async with Engine(store, tasks=[fail, *TASKS], concurrency=1) as engine:
        handle = await engine.submit(TaskCall.of("fail"), max_attempts=1)
        outcome = await handle.wait(timeout=20)
        assert outcome.state is State.FAILED
        assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok


async def test_a_thread_that_cannot_be_started_fails_its_attempt_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync() -> int:
        return 1

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with Engine(store, tasks=[sync, *TASKS], concurrency=1) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            failed = await (await engine.submit(TaskCall.of("sync"), max_attempts=1)).wait(timeout=20)
        assert failed.failure is not None
        assert "can't start new thread" in failed.failure.message
        assert (await (await engine.submit(TaskCall.of("sync"))).wait(timeout=20)).ok


@pytest.mark.parametrize("bad", ["\ud800", "a\0b", ""])
async def test_an_id_that_can_be_none_is_refused_and_harms_nobody(store: Store, bad: str) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        for ask in (engine.cancel, engine.requeue, engine.delete, engine.run_now, engine.get, engine.history):
            with pytest.raises(InvalidOption, match="task_id"):
                await ask(bad)
        wrong: list[dict[str, Any]] = [{"name": bad}, {"tag": bad}, {"ids": [bad]}]
        for options in wrong:
            with pytest.raises(InvalidOption):
                await engine.list(**options)
        assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok


async def test_reads_while_the_engine_is_left_are_answered(tmp_path: Path) -> None:
    answers: list[BaseException] = []

    async def poll(engine: Engine, task_id: str) -> None:
        with anyio.fail_after(20):
            try:
                while True:
                    await engine.get(task_id)
            except EngineNotRunning as error:
                answers.append(error)

    for number in range(5):
        async with anyio.create_task_group() as tg:
            async with Engine(tmp_path / f"{number}.db", tasks=TASKS) as engine:
                handle = await engine.submit(add.bind(1))
                for _ in range(3):
                    tg.start_soon(poll, engine, handle.id)
                await handle.wait()
    assert len(answers) == 15


async def test_a_second_engine_on_one_store_object_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    async with Engine(store, tasks=TASKS) as engine:
        with pytest.raises(EngineNotRunning, match="of its own"):
            async with Engine(store, tasks=TASKS):
                pass
        assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok


async def test_a_handler_that_raises_at_the_engine_s_own_lines_is_harmless(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no disk for logs")

    async def swallow() -> None:
        while True:
            try:
                await anyio.sleep(3600)
            except BaseException:
                continue

    broken = Broken()
    logging.getLogger("taskengine").addHandler(broken)
    try:
        async with Engine(store, tasks=[swallow, *TASKS], kill_grace=0.05, shutdown_grace=0) as engine:
            handle = await engine.submit(TaskCall.of("swallow"))
            await running(engine, handle.id)
            assert (await handle.cancel()).state is State.LOST
            assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok
    finally:
        logging.getLogger("taskengine").removeHandler(broken)


async def test_an_exception_raised_into_the_store_s_threads_does_not_end_them(tmp_path: Path) -> None:
    async with Engine(tmp_path / "tasks.db", tasks=TASKS) as engine:
        for thread in threading.enumerate():
            if thread.name in ("taskengine-writer", "taskengine-reader"):
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident or 0), ctypes.py_object(MemoryError)
                )
        with anyio.fail_after(30):
            for n in range(20):
                try:
                    assert (await (await engine.submit(add.bind(n))).wait()).ok
                except (StoreUnavailable, MemoryError):
                    continue  # The call that was struck; the threads go on.
            assert (await engine.stats()).completed >= 18


DAMAGE = [
    "UPDATE task SET args = '{broken' WHERE id = 'bad'",
    "UPDATE task SET args = CAST(x'5b22ff225d' AS TEXT) WHERE id = 'bad'",
    "UPDATE task SET metadata = '{broken' WHERE id = 'bad'",
    "UPDATE task SET label = CAST(x'ff' AS TEXT) WHERE id = 'bad'",
    "UPDATE task SET tags = '5' WHERE id = 'bad'",
    "UPDATE task SET retry = '[]' WHERE id = 'bad'",
    "UPDATE task SET wish = '{broken' WHERE id = 'bad'",
    "UPDATE task SET failure = '{broken' WHERE id = 'bad'",
    "UPDATE task SET state = 'stopping', owner = 'gone', wish = '{broken' WHERE id = 'bad'",
    "UPDATE task SET charged = max_attempts WHERE id = 'bad'",
    "INSERT INTO owner VALUES ('junk', '', '', 1, '', 0, 0, CAST(x'ff' AS TEXT))",
    "INSERT INTO command VALUES ('c', 'bad', 'nobody', 'pause', 'newer', NULL, 0)",
]


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_row_stops_nothing_else_and_can_be_listed(tmp_path: Path, damage: str) -> None:
    """B37: it is held, failed or passed over; the others run, reading never fails, the next start neither."""
    path = tmp_path / "tasks.db"
    async with Engine(path) as client:
        await client.submit(TaskCall.of("add", 1), id="bad", max_attempts=3)
        await client.submit_many([TaskCall.of("add", n) for n in range(3)])
    db = apsw.Connection(str(path))
    db.execute(damage)
    db.close()
    for _ in range(2):
        async with Engine(path, tasks=TASKS) as engine:
            more = await engine.submit(add.bind(7))
            assert (await more.wait(timeout=20)).ok
            assert await engine.wait_all([task.id for task in await engine.list() if task.id != "bad"], timeout=20)
            assert len(await engine.list()) >= 4
            assert (await engine.get("bad")).id == "bad"


async def test_waiting_for_a_damaged_result_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with Engine(path, tasks=TASKS) as engine:
        handle = await engine.submit(add.bind(1))
        await handle.wait()
    db = apsw.Connection(str(path))
    db.execute("UPDATE task SET result = '{broken'")
    db.close()
    async with Engine(path) as client:
        with pytest.raises(InvalidResult, match="cannot be read"):
            await (await client.handle(handle.id)).wait()


async def test_a_relative_path_survives_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with Engine("tasks.db", tasks=TASKS) as engine:
        os.chdir("/")
        assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok


async def test_an_engine_without_a_slot_left_claims_nothing_and_can_be_left(store: Store) -> None:
    release = threading.Event()

    def deaf() -> None:
        release.wait(60)

    try:
        async with Engine(
            store, tasks=[deaf, *TASKS], concurrency=1, max_spare_slots=0, kill_grace=0.05, shutdown_grace=0.1
        ) as engine:
            handle = await engine.submit(TaskCall.of("deaf"))
            await running(engine, handle.id)
            assert (await handle.cancel()).state is State.LOST
            waiting = await engine.submit(add.bind(1))
            with pytest.raises(TimeoutError):
                await waiting.wait(timeout=0.2)
        async with Engine(same_store(store), tasks=TASKS) as engine:
            assert (await (await engine.handle(waiting.id)).wait(timeout=20)).ok
    finally:
        release.set()


async def test_requests_in_an_outage_are_bounded_and_the_body_s_own_end_is_kept() -> None:
    store = FaultyStore(MemoryStore())
    release = anyio.Event()

    async def stop_by_itself() -> None:
        await release.wait()
        raise TaskStopped

    async with Engine(store, tasks=[stop_by_itself], store_patience=0.1, cancel_wait=0.1) as engine:
        handle = await engine.submit(TaskCall.of("stop_by_itself"), max_attempts=1)
        await running(engine, handle.id)
        store.fail(StoreUnavailable("locked"), until_healed=True)
        for ask in (handle.cancel, lambda: engine.requeue(handle), lambda: engine.run_now(handle)):
            with anyio.fail_after(20), pytest.raises(StoreUnavailable):
                await ask()
        release.set()
        await anyio.wait_all_tasks_blocked()
        store.heal()
        outcome = await handle.wait(timeout=20)
    assert outcome.state is State.FAILED
    assert outcome.failure is not None
    assert outcome.failure.type == "TaskStopped"


async def test_a_failing_read_while_somebody_waits_does_not_end_the_engine() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    async with Engine(store, tasks=TASKS, shutdown_grace=0) as engine, Engine(inner) as other:
        handle = await engine.submit(sleep_long.bind())
        await running(engine, handle.id)
        async with anyio.create_task_group() as tg:
            tg.start_soon(handle.wait)
            await anyio.wait_all_tasks_blocked()  # The waiter has looked, and waits for news.
            store.fail(StoreUnavailable("no file handles"), point="reader")
            await other.submit(TaskCall.of("nobody_here"))
            await anyio.wait_all_tasks_blocked()
            assert not store.has_faults  # It has struck the look that the foreign commit asked for.
            await handle.cancel()
        assert (await (await engine.submit(add.bind(1))).wait(timeout=20)).ok


async def test_waiting_for_all_does_not_wait_for_what_is_deleted(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        done = await engine.submit(add.bind(1))
        long = await engine.submit(sleep_long.bind())
        await running(engine, long.id)
        async with anyio.create_task_group() as tg:

            async def wait() -> None:
                assert await engine.wait_all([done, long], timeout=20)

            tg.start_soon(wait)
            await done.wait()
            await engine.delete(done)
            await long.cancel()
            await engine.delete(long)


async def test_due_tasks_with_large_arguments_are_claimed_a_few_at_a_time(tmp_path: Path) -> None:
    async def measure(text: str) -> int:
        return len(text)

    path, text = tmp_path / "tasks.db", '"' * 500_000
    async with Engine(path, durability="fast") as client:
        for _ in range(4):
            await client.submit_many([TaskCall.of("measure", text) for _ in range(15)])
    async with Engine(path, tasks=[measure], concurrency=60) as engine:
        most = 0
        async for event in engine.events(after=0):
            if event.target is State.STARTING:
                most = max(most, (await engine.stats()).by_state["starting"])
            if event.target is State.SUCCEEDED and (await engine.stats()).completed == 60:
                break
        assert most < 60
