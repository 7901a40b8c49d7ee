"""What is logged: committed facts with the promised fields, one JSON object a line, and nothing by default."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from taskengine import Engine, JsonFormatter, RetryPolicy, State, TaskCall, TaskContext
from taskengine.ports import Store
from taskengine.tasks import http_post
from taskengine.testing.downstream import FakeDownstream
from tests.actors.test_runner import running
from tests.bodies import add, fail_until, sleep_long

Records = list[dict[str, Any]]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Collect what the shipped formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("taskengine")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def records_of(lines: io.StringIO, task_id: str) -> Records:
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    return [record for record in found if record.get("task_id") == task_id]


async def test_a_retried_task_tells_its_starts_its_retry_and_one_end(store: Store, lines: io.StringIO) -> None:
    async with Engine(store, tasks=[fail_until]) as engine:
        handle = await engine.submit(fail_until.bind(2), label="nice")
        await handle.wait()
    records = records_of(lines, handle.id)
    assert [record["event"] for record in records] == ["task_start", "task_retry", "task_start", "task_done"]
    retry, done = records[1], records[3]
    assert retry["reason"] == "ValueError: attempt 1 fails"
    assert (retry["attempt"], retry["retry"], done["attempt"], done["retry"]) == (1, 1, 2, 2)
    assert round(retry["delay_s"], 3) == retry["delay_s"]
    assert isinstance(retry["duration_ms"], int)
    assert isinstance(done["duration_ms"], int)
    assert (done["state"], done["label"], "error" in done) == ("succeeded", "nice", False)
    assert all(record["ts"].endswith("Z") for record in records)


async def test_every_final_state_has_exactly_one_task_done(store: Store, lines: io.StringIO) -> None:
    async with Engine(store, tasks=[add, fail_until, sleep_long]) as engine:
        done = await engine.submit(add.bind(1))
        failed = await engine.submit(fail_until.bind(9), max_attempts=1)
        waiting = await engine.submit(add.bind(1), delay=3600)
        long = await engine.submit(sleep_long.bind())
        assert await engine.wait_all([done, failed], timeout=20)
        await running(engine, long.id)
        await waiting.cancel()
        await long.cancel()
    states = []
    for handle in (done, failed, waiting, long):
        ends = [record for record in records_of(lines, handle.id) if record["event"] == "task_done"]
        assert len(ends) == 1
        states.append(ends[0]["state"])
    assert states == [State.SUCCEEDED, State.FAILED, State.CANCELLED, State.CANCELLED]
    assert "ValueError" in records_of(lines, failed.id)[-1]["error"]


async def test_an_interrupted_body_is_told_as_such(store: Store, lines: io.StringIO) -> None:
    async with Engine(store, tasks=[sleep_long], shutdown_grace=0) as engine:
        handle = await engine.submit(sleep_long.bind())
        await running(engine, handle.id)
    last = records_of(lines, handle.id)[-1]
    assert last["event"] == "task_interrupted"
    assert isinstance(last["duration_ms"], int)


async def test_http_tasks_tell_their_url_and_status_without_secrets(store: Store, lines: io.StringIO) -> None:
    downstream = FakeDownstream([503, 200])
    async with Engine(store, tasks=[http_post], downstream=downstream) as engine:
        call = http_post.bind("http://example.test/hook?token=s3cret", headers={"Authorization": "s3cret"})
        handle = await engine.submit(call, retry=RetryPolicy(base=0.01))
        assert (await handle.wait()).ok
    records = records_of(lines, handle.id)
    assert [record["event"] for record in records] == ["task_start", "task_retry", "task_start", "task_done"]
    assert records[0]["url"].startswith("http://example.test/hook")
    assert records[-1]["http_status"] == 200
    assert "503" in records[1]["reason"]
    assert "s3cret" not in lines.getvalue()


async def test_control_characters_in_labels_cannot_make_a_second_line(store: Store, lines: io.StringIO) -> None:
    plain = io.StringIO()
    handler = logging.StreamHandler(plain)
    logging.getLogger("taskengine").addHandler(handler)
    try:
        async with Engine(store, tasks=[add]) as engine:
            await (await engine.submit(add.bind(1), label="one\ntwo\x1b[31m %s")).wait()
    finally:
        logging.getLogger("taskengine").removeHandler(handler)
    assert len(plain.getvalue().splitlines()) == 2
    assert "\x1b" not in plain.getvalue()


async def test_a_handler_that_raises_does_not_harm_the_engine(
    store: Store, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no disk for logs")

    broken = Broken()
    logging.getLogger("taskengine").addHandler(broken)
    try:
        async with Engine(store, tasks=[add]) as engine:
            assert (await (await engine.submit(add.bind(1))).wait()).ok
    finally:
        logging.getLogger("taskengine").removeHandler(broken)


async def test_a_host_that_listens_to_warnings_only_hears_of_retries(store: Store) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(logging.Filter("taskengine"))  # asyncio's debug mode warns of slow callbacks
    logging.getLogger().addHandler(handler)
    try:
        async with Engine(store, tasks=[fail_until]) as engine:
            await (await engine.submit(fail_until.bind(2))).wait()
    finally:
        logging.getLogger().removeHandler(handler)
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["task_retry"]


async def test_a_body_logs_under_its_own_logger_with_its_id(store: Store, lines: io.StringIO) -> None:
    async with Engine(store, tasks=[]) as engine:
        engine.register("talk", talk)
        handle = await engine.submit(TaskCall.of("talk"))
        await handle.wait()
    (said,) = [record for record in records_of(lines, handle.id) if record["event"] == "message"]
    assert (said["logger"], said["message"], said["attempt"]) == (f"taskengine.task.{handle.id}", "hello 1", 1)
    assert f"taskengine.task.{handle.id}" not in logging.Logger.manager.loggerDict


def talk(ctx: TaskContext) -> None:
    ctx.log("hello %d", 1)


def test_a_host_that_configures_nothing_hears_nothing() -> None:
    script = (
        "import anyio\nfrom taskengine import MemoryStore, run_task, task\n"
        "@task\nasync def fail() -> None:\n    raise ValueError('x')\n"
        "from taskengine import RetryPolicy\n"
        "print(anyio.run(lambda: run_task(fail.bind(), retry=RetryPolicy(base=0))).state.value)\n"
        "import logging\nlogging.getLogger('taskengine').warning('nobody listens')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("failed\n", "")
