"""What passes between a body in a child and its engine: stop and pause inwards, everything it says outwards."""

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

from taskengine import TaskStopped
from taskengine.ports import BodyEnd
from taskengine.signals import Signals
from tests.executors import bodies_for_children as bodies
from tests.executors.process_calls import HeardVoice, call_of, open_executor, report_of, result, run


async def test_what_a_body_says_is_heard_in_order() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice(seconds=100.0)
        left = await result(executor, bodies.say_all, voice=voice)
    assert voice.said == [
        ("remaining",),  # Sent along with the call.
        ("log", logging.INFO, "a line with an argument"),
        ("log", logging.ERROR, "bad \ufffd \ufffd text"),
        ("progress", {"done": 1, "total": 4, "unit": "files", "message": "first"}),
        ("heartbeat",),
        ("checkpoint",),
        ("extend", 1.0, 2.0, 3.0),
        ("remaining",),  # Asked again, since it was extended.
    ]
    assert left == pytest.approx(101.0, abs=0.01)


async def test_the_remaining_time_is_counted_in_the_child() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice(seconds=50.0)
        first, second = await result(executor, bodies.count_down, voice=voice)
        assert 40 < second <= first <= 50
        # Once for the call, and once when the body began, with which the clocks begin anew.
        assert len(voice.all("remaining")) == 2
        assert await result(executor, bodies.count_down, voice=HeardVoice()) == [None, None]


async def test_checkpoints_are_thinned_out_and_the_last_progress_is_heard() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice()
        await result(executor, bodies.check_often, 20_000, voice=voice)
    for word in ("checkpoint", "heartbeat", "progress"):
        assert 1 <= len(voice.all(word)) < 2_000
    assert voice.all("progress")[-1] == ("progress", {"done": 20_000, "total": 20_000})


async def test_progress_that_came_too_soon_is_heard_a_little_later() -> None:
    async with open_executor(warm_spare=False) as executor:
        voice, signals = HeardVoice(), Signals()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tg:
                tg.start_soon(executor.start(call_of(bodies.late_progress, voice=voice, signals=signals)).run)
                while ("progress", {"done": 2}) not in voice.said:
                    await voice.wait_for_news()
                signals.request_stop(None)


async def _end_after(voice: HeardVoice, act: Any, function: Any, *, is_stopped: bool = True) -> BodyEnd:
    ends: list[BodyEnd] = []
    signals = Signals()
    async with open_executor(warm_spare=False) as executor:

        async def keep_end() -> None:
            ends.append(await executor.start(call_of(function, voice=voice, signals=signals)).run())

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tg:
                tg.start_soon(keep_end)
                await voice.wait_for("log")
                await act(signals)
        assert await result(executor, bodies.add, 1) == 2
    return ends[0]


@pytest.mark.parametrize("function", [bodies.wait_for_stop, bodies.wait_for_stop_in_group])
async def test_a_stop_reaches_the_next_checkpoint_with_its_reason(function: Any) -> None:
    async def stop(signals: Signals) -> None:
        signals.request_stop("please \udc80")

    error = (await _end_after(HeardVoice(), stop, function)).error
    assert isinstance(error, TaskStopped)
    assert error.reason == "please \ufffd"


async def test_a_stop_before_the_child_is_ready_is_not_lost() -> None:
    signals = Signals()
    signals.request_stop("early")
    async with open_executor(warm_spare=False) as executor:
        end = await run(executor, bodies.wait_for_stop, signals=signals)
    assert isinstance(end.error, TaskStopped)
    assert end.error.reason == "early"


async def test_a_pause_is_kept_until_it_is_resumed() -> None:
    voice = HeardVoice()

    async def pause(signals: Signals) -> None:
        signals.request_pause()
        await voice.wait_for("reached_pause")
        assert voice.all("left_pause") == []
        signals.resume()

    end = await _end_after(voice, pause, bodies.return_when_resumed)
    assert end.result == '"resumed"'
    assert voice.said[-1] == ("left_pause",)


async def test_a_stop_ends_a_pause() -> None:
    voice = HeardVoice()

    async def pause_and_stop(signals: Signals) -> None:
        signals.request_pause()
        await voice.wait_for("reached_pause")
        signals.request_stop("now")

    for function in (bodies.wait_for_stop, bodies.wait_for_stop_in_group):
        voice.said.clear()
        end = await _end_after(voice, pause_and_stop, function)
        assert isinstance(end.error, TaskStopped)
        assert voice.said[-1] == ("left_pause",)


async def test_the_artifact_folder_is_asked_for(tmp_path: Path) -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice(folder=str(tmp_path))
        assert await result(executor, bodies.make_artifacts, voice=voice) == str(tmp_path)
        report = report_of(await run(executor, bodies.make_artifacts, voice=HeardVoice()))
    assert (report.failure.type, report.failure.message) == ("OSError", "no room")


async def test_there_is_no_downstream_in_a_child() -> None:
    async with open_executor(warm_spare=False) as executor:
        assert report_of(await run(executor, bodies.use_downstream)).failure.type == "UsageError"


async def test_lines_of_the_context_are_not_printed_by_logging_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    async with open_executor(warm_spare=False) as executor:
        voice = HeardVoice()
        await result(executor, bodies.log_with_logging, voice=voice)
    assert voice.all("log") == [("log", logging.WARNING, "only kept")]
    said = capfd.readouterr().err
    assert "only kept" not in said
    assert said.count("printed by logging") == 1


async def test_a_thread_that_a_body_left_behind_is_heard_no_more() -> None:
    async with open_executor(warm_spare=False) as executor:
        first = await result(executor, bodies.pid)
        assert await result(executor, bodies.log_from_a_thread_that_stays) == 1
        voice = HeardVoice()
        assert await result(executor, bodies.count_down, voice=voice) == [None, None]
        assert voice.all("log") == []
        assert await result(executor, bodies.pid) == first
