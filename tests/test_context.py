"""What a body can do with its context: answer, ask for time, leave early and tell."""

import contextlib
import json
import logging
import math
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import anyio
import pytest
from anyio import to_thread

from taskengine import InvalidOption, TaskDiscarded, TaskSnoozed, TaskStopped
from taskengine.context import LONGEST, MAX_MESSAGE, TaskContext
from taskengine.signals import Signals
from taskengine.testing.context import RecordingVoice, make_context

LIMIT = 30.0
"""Seconds; a guard against hanging."""


class Setting:
    """A context with both its ends in the test's hands."""

    def __init__(self) -> None:
        self.signals = Signals()
        self.voice = RecordingVoice()
        self.ctx = make_context(task_id="t-1", attempt=2, signals=self.signals, voice=self.voice)


@pytest.fixture
def at() -> Setting:
    return Setting()


# --- checkpoints, in a thread ---


def test_a_checkpoint_with_nothing_asked_goes_on_and_counts(at: Setting) -> None:
    at.ctx.checkpoint()
    assert at.voice.checkpoints == 1
    assert (at.ctx.is_stop_requested, at.ctx.is_pause_requested) == (False, False)


def test_a_checkpoint_after_a_stop_raises_with_its_reason(at: Setting) -> None:
    at.signals.request_stop("tea")
    assert at.ctx.is_stop_requested
    for _ in range(2):
        with pytest.raises(TaskStopped) as stopped:
            at.ctx.checkpoint()
        assert stopped.value.reason == "tea"
    assert at.voice.checkpoints == 0, "it is no sign of progress"


class InThread:
    """A call in a thread of its own, and what it raised."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.error: BaseException | None = None

        def run() -> None:
            try:
                call()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def has_ended(self) -> bool:
        self.thread.join(LIMIT)
        return not self.thread.is_alive()


def test_a_paused_thread_waits_at_its_checkpoint_and_goes_on_when_it_is_resumed(at: Setting) -> None:
    at.signals.request_pause()
    assert at.ctx.is_pause_requested
    body = InThread(at.ctx.checkpoint)
    assert at.voice.at_pause.wait(LIMIT)
    assert body.thread.is_alive()
    at.signals.resume()
    assert body.has_ended()
    assert body.error is None
    assert not at.voice.at_pause.is_set()


def test_a_paused_thread_that_is_stopped_raises_from_its_checkpoint(at: Setting) -> None:
    at.signals.request_pause()
    body = InThread(at.ctx.checkpoint)
    assert at.voice.at_pause.wait(LIMIT)
    at.signals.request_stop("tea")
    assert body.has_ended()
    assert isinstance(body.error, TaskStopped)
    assert body.error.reason == "tea"
    assert not at.voice.at_pause.is_set(), "its clocks run again"


def test_pauses_and_resumes_at_any_moment_leave_no_thread_behind(at: Setting) -> None:
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            at.ctx.checkpoint()

    body = InThread(run)
    for _ in range(2_000):
        at.signals.request_pause()
        at.signals.resume()
    is_over.set()
    assert body.has_ended()
    assert body.error is None


# --- checkpoints, on the loop ---


async def test_a_plain_checkpoint_on_the_loop_never_blocks_it(at: Setting) -> None:
    at.signals.request_pause()
    at.ctx.checkpoint()
    assert at.voice.checkpoints == 1
    assert not at.voice.at_pause.is_set(), "the pause is not reached: it goes on"
    at.signals.request_stop(None)
    with pytest.raises(TaskStopped):
        at.ctx.checkpoint()


async def test_a_plain_checkpoint_in_a_thread_beside_a_loop_waits(at: Setting) -> None:
    at.signals.request_pause()
    went_on = False

    async def body() -> None:
        nonlocal went_on
        await to_thread.run_sync(at.ctx.checkpoint)
        went_on = True

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(body)
            await to_thread.run_sync(at.voice.at_pause.wait, LIMIT)
            assert at.voice.at_pause.is_set()
            assert not went_on
            at.signals.resume()
    assert went_on


async def test_a_paused_anyio_task_waits_at_its_checkpoint_and_goes_on_when_it_is_resumed(at: Setting) -> None:
    at.signals.request_pause()
    went_on = False

    async def body() -> None:
        nonlocal went_on
        await at.ctx.acheckpoint()
        went_on = True

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(body)
            await anyio.wait_all_tasks_blocked()
            assert at.voice.at_pause.is_set()
            assert not went_on
            at.signals.resume()
    assert went_on
    assert not at.voice.at_pause.is_set()
    assert at.voice.checkpoints == 1


async def test_a_paused_anyio_task_that_is_stopped_raises_from_its_checkpoint(at: Setting) -> None:
    at.signals.request_pause()
    reasons: list[str | None] = []

    async def body() -> None:
        try:
            await at.ctx.acheckpoint()
        except TaskStopped as stopped:
            reasons.append(stopped.reason)

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(body)
            await anyio.wait_all_tasks_blocked()
            await to_thread.run_sync(at.signals.request_stop, "tea")
    assert reasons == ["tea"]
    assert not at.voice.at_pause.is_set()


async def test_a_checkpoint_raises_a_stop_that_is_there_and_one_that_comes_while_others_run(at: Setting) -> None:
    async def stop() -> None:
        at.signals.request_stop("tea")

    async with anyio.create_task_group() as tg:
        tg.start_soon(stop)
        with pytest.raises(TaskStopped):
            while True:
                await at.ctx.acheckpoint()
    with pytest.raises(TaskStopped):
        await at.ctx.acheckpoint()


async def test_a_checkpoint_lets_others_run_and_can_be_cancelled(at: Setting) -> None:
    ran = anyio.Event()

    async def other() -> None:
        ran.set()

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(other)
            while not ran.is_set():
                await at.ctx.acheckpoint()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await at.ctx.acheckpoint()
    assert scope.cancelled_caught


async def test_a_cancelled_pause_lets_the_clocks_run_again(at: Setting) -> None:
    at.signals.request_pause()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(at.ctx.acheckpoint)
            await anyio.wait_all_tasks_blocked()
            assert at.voice.at_pause.is_set()
            tg.cancel_scope.cancel()
    assert not at.voice.at_pause.is_set()


# --- leaving early ---


@pytest.mark.parametrize("delay", [0, 0.0, 2.5, 3, LONGEST])
def test_a_snooze_leaves_with_its_delay_and_reason(at: Setting, delay: float) -> None:
    with pytest.raises(TaskSnoozed) as snoozed:
        at.ctx.snooze(delay, "not yet")
    assert (snoozed.value.delay, snoozed.value.reason) == (float(delay), "not yet")
    assert type(snoozed.value.delay) is float


NO_SECONDS = [-1, -0.001, math.nan, math.inf, -math.inf, LONGEST * 2, 10**400, True, "5", None, [], Decimal(5), 1j]


@pytest.mark.parametrize("delay", NO_SECONDS, ids=repr)
def test_a_snooze_of_no_number_of_seconds_is_refused(at: Setting, delay: Any) -> None:
    with pytest.raises(InvalidOption, match="delay"):
        at.ctx.snooze(delay)


@pytest.mark.parametrize("leave", [lambda ctx: ctx.snooze(1), lambda ctx: ctx.discard("x")], ids=["snooze", "discard"])
def test_except_exception_does_not_keep_a_body_from_leaving(at: Setting, leave: Callable[[TaskContext], None]) -> None:
    with pytest.raises(BaseException) as left, contextlib.suppress(Exception):
        leave(at.ctx)
    assert not isinstance(left.value, Exception)


@pytest.mark.parametrize(("reason", "kept"), [("the user is gone", "the user is gone"), (404, "404"), (None, "None")])
def test_a_discard_leaves_with_its_reason_as_text(at: Setting, reason: Any, kept: str) -> None:
    with pytest.raises(TaskDiscarded) as discarded:
        at.ctx.discard(reason)
    assert discarded.value.reason == kept


# --- time ---


def test_extensions_are_passed_on_as_seconds(at: Setting) -> None:
    at.ctx.extend(attempt=1, idle=2.5)
    at.ctx.extend(total=3)
    at.ctx.extend()
    assert at.voice.extensions == [
        {"attempt": 1.0, "idle": 2.5, "total": 0.0},
        {"attempt": 0.0, "idle": 0.0, "total": 3.0},
        {"attempt": 0.0, "idle": 0.0, "total": 0.0},
    ]


@pytest.mark.parametrize("option", ["attempt", "idle", "total"])
@pytest.mark.parametrize("seconds", NO_SECONDS, ids=repr)
def test_an_extension_by_no_number_of_seconds_is_refused_and_changes_nothing(
    at: Setting, option: str, seconds: Any
) -> None:
    with pytest.raises(InvalidOption, match=option):
        at.ctx.extend(**{"attempt": 1.0, "idle": 1.0, "total": 1.0, option: seconds})
    assert at.voice.extensions == []


# --- telling ---


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, {}),
        ((1,), {}, {"done": 1}),
        ((1, 4), {"unit": "files"}, {"done": 1, "total": 4, "unit": "files"}),
        ((0.5,), {"message": "half"}, {"done": 0.5, "message": "half"}),
        ((-1, 0), {}, {"done": -1, "total": 0}),
        ((), {"message": ""}, {"message": ""}),
        ((), {"message": 404, "unit": b"x"}, {"message": "404", "unit": "b'x'"}),
    ],
)
def test_progress_is_told_as_json_of_what_was_said(
    at: Setting, args: tuple[Any, ...], kwargs: dict[str, Any], said: dict[str, Any]
) -> None:
    at.ctx.progress(*args, **kwargs)
    assert [json.loads(text) for text in at.voice.progress_texts] == [said]


@pytest.mark.parametrize("option", ["done", "total"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 10**400, True, "5", [], 1j, Decimal(1)], ids=repr)
def test_progress_of_no_finite_number_is_refused(at: Setting, option: str, number: Any) -> None:
    with pytest.raises(InvalidOption, match=option):
        at.ctx.progress(**{option: number})
    assert at.voice.progress_texts == []


def test_whatever_text_progress_holds_is_bounded_and_ascii(at: Setting) -> None:
    at.ctx.progress(message="\x00\ud800ä" * MAX_MESSAGE, unit="€" * 10_000)
    (text,) = at.voice.progress_texts
    assert text.isascii()
    assert "\x00" not in text
    said = json.loads(text)
    assert (len(said["message"]), len(said["unit"])) == (MAX_MESSAGE, MAX_MESSAGE)


def test_a_heartbeat_is_no_checkpoint(at: Setting) -> None:
    at.ctx.heartbeat()
    assert (at.voice.heartbeats, at.voice.checkpoints) == (1, 0)


# --- the log ---


def test_lines_go_to_the_log_with_the_task_s_fields_and_are_kept(at: Setting, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "taskengine.task"):
        at.ctx.log("copied %d of %s", 3, "4")
        at.ctx.warning("slow")
        at.ctx.error("no %(what)s", {"what": "disk"})
    assert [
        (record.name, record.levelname, record.getMessage(), vars(record)["task_id"], vars(record)["attempt"])
        for record in caplog.records
    ] == [
        ("taskengine.task.t-1", "INFO", "copied 3 of 4", "t-1", 2),
        ("taskengine.task.t-1", "WARNING", "slow", "t-1", 2),
        ("taskengine.task.t-1", "ERROR", "no disk", "t-1", 2),
    ]
    assert at.voice.lines == [("INFO", "copied 3 of 4"), ("WARNING", "slow"), ("ERROR", "no disk")]


def test_a_line_that_nobody_listens_to_is_kept_all_the_same(at: Setting) -> None:
    logging.getLogger("taskengine.task").setLevel(logging.CRITICAL)
    try:
        at.ctx.log("x")
    finally:
        logging.getLogger("taskengine.task").setLevel(logging.NOTSET)
    assert at.voice.lines == [("INFO", "x")]


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("message", "args", "kept"),
    [
        ("100 % done", (), "100 % done"),
        ("%d", (), "%d"),
        ("%(name)s", ({"name": "x"},), "x"),
        ("", (), ""),
        (404, (), "404"),
        (404, (1,), "int that cannot be formatted"),
        ("%d", ("x",), "str that cannot be formatted"),
        ("%s %s", (1,), "str that cannot be formatted"),
        ("%s", (1, 2), "str that cannot be formatted"),
        ("%", (1,), "str that cannot be formatted"),
        ("%y", (1,), "str that cannot be formatted"),
        ("%s", (Unprintable(),), "str that cannot be formatted"),
        (Unprintable(), (), "Unprintable that cannot be formatted"),
    ],
)
def test_a_line_that_cannot_be_formatted_harms_nobody(
    at: Setting, message: Any, args: tuple[Any, ...], kept: str
) -> None:
    at.ctx.log(message, *args)
    assert at.voice.lines == [("INFO", kept)]


def test_the_loggers_of_tasks_are_not_kept_by_the_logging_module(at: Setting) -> None:
    at.ctx.log("x")
    assert "taskengine.task.t-1" not in logging.Logger.manager.loggerDict
