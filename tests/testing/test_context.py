"""The context for calling a body without an engine."""

import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import TaskContext, TaskDiscarded, TaskSnoozed, TaskStopped, task
from taskengine.core.errors import UsageError
from taskengine.ports import Downstream
from taskengine.signals import Signals
from taskengine.testing.context import RecordingVoice, make_context


@task
async def copy(ctx: TaskContext, amount: int) -> int:
    for number in range(amount):
        await ctx.acheckpoint()
        ctx.progress(number + 1, amount, unit="files")
    ctx.log("copied %d", amount)
    ctx.heartbeat()
    return amount


async def test_a_body_is_called_directly_and_what_it_says_is_kept() -> None:
    voice = RecordingVoice()
    assert await copy(make_context(voice=voice), 2) == 2
    assert (voice.checkpoints, voice.heartbeats) == (2, 1)
    assert voice.progress_texts == [
        '{"done": 1, "total": 2, "unit": "files"}',
        '{"done": 2, "total": 2, "unit": "files"}',
    ]
    assert voice.lines == [("INFO", "copied 2")]


async def test_a_test_plays_the_engine_s_part_by_the_signals() -> None:
    signals = Signals()
    signals.request_stop("tea")
    with pytest.raises(TaskStopped) as stopped:
        await copy(make_context(signals=signals), 2)
    assert stopped.value.reason == "tea"


async def test_a_test_sees_when_a_body_is_paused() -> None:
    signals, voice = Signals(), RecordingVoice()
    signals.request_pause()
    results: list[int] = []

    async def body() -> None:
        results.append(await copy(make_context(signals=signals, voice=voice), 1))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tg:
            tg.start_soon(body)
            await anyio.wait_all_tasks_blocked()
            assert voice.at_pause.is_set()
            signals.resume()
    assert results == [1]
    assert not voice.at_pause.is_set()


def test_what_a_body_is_told_of_itself_is_what_the_test_said() -> None:
    ctx = make_context(task_id="t", name="n", attempt=4, metadata={"a": 1}, idempotency_key="k")
    told: tuple[Any, ...] = (ctx.task_id, ctx.name, ctx.attempt, ctx.metadata, ctx.idempotency_key, ctx.facts)
    assert told == ("t", "n", 4, {"a": 1}, "k", {})
    plain = make_context()
    assert (plain.task_id, plain.name, plain.attempt, plain.metadata, plain.idempotency_key) == (
        "task-1",
        "task",
        1,
        {},
        "key-1",
    )


def test_two_contexts_share_nothing() -> None:
    one, other = make_context(), make_context()
    one.facts["url"] = "x"
    assert other.facts == {}


def test_the_remaining_time_is_what_the_test_said() -> None:
    assert make_context().remaining() is None
    assert make_context(voice=RecordingVoice(remaining=2.5)).remaining() == 2.5


def test_extensions_are_kept() -> None:
    voice = RecordingVoice()
    make_context(voice=voice).extend(attempt=5)
    assert voice.extensions == [{"attempt": 5.0, "idle": 0.0, "total": 0.0}]


def test_the_artifact_folder_is_there_until_the_voice_is_closed() -> None:
    voice = RecordingVoice()
    ctx = make_context(voice=voice)
    folder = Path(ctx.artifact_dir())
    assert folder.is_dir()
    assert ctx.artifact_dir() == str(folder)
    (folder / "left.txt").write_text("x")
    voice.close()
    assert not os.path.exists(folder)
    voice.close()


def test_a_downstream_is_there_if_the_test_gave_one() -> None:
    class Nowhere:
        async def send(self, request: object) -> None: ...
        async def aclose(self) -> None: ...

    with pytest.raises(UsageError, match="no downstream"):
        make_context().downstream  # noqa: B018
    nowhere: Downstream = Nowhere()  # type: ignore[assignment]
    assert make_context(downstream=nowhere).downstream is nowhere


def test_leaving_by_snooze_or_discard_is_seen_as_it_is_raised() -> None:
    with pytest.raises(TaskSnoozed):
        make_context().snooze(1)
    with pytest.raises(TaskDiscarded):
        make_context().discard("too late")


def test_a_pause_in_a_thread_is_seen_and_ended_by_the_test() -> None:
    signals, voice = Signals(), RecordingVoice()
    signals.request_pause()
    thread = threading.Thread(target=make_context(signals=signals, voice=voice).checkpoint, daemon=True)
    thread.start()
    assert voice.at_pause.wait(30)
    assert thread.is_alive()
    signals.resume()
    thread.join(30)
    assert not thread.is_alive()
