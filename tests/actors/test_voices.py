"""A body's voice: its clocks, told by hand, and what is kept of what it says."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskengine import Timeouts
from taskengine.actors.messages import Saying
from taskengine.actors.settings import Settings
from taskengine.actors.voices import EchoingVoice, LocalVoice
from taskengine.core.lifecycle import State
from taskengine.core.model import FailureKind, TaskRow
from tests.actors.hand_clock import NOW, HandClock

SECOND = 1_000_000
ATTEMPT, IDLE, TOTAL = FailureKind.TIMEOUT_ATTEMPT, FailureKind.TIMEOUT_IDLE, FailureKind.TIMEOUT_TOTAL


class Spoken:
    """A voice, its clock, and how often it asked to be listened to."""

    def __init__(
        self, timeouts: Timeouts | None = None, *, total: float | None = None, clock: Any = None, **settings: Any
    ) -> None:
        self.clock: HandClock = clock or HandClock()
        self.heard = 0
        self.began = self.clock.monotonic()
        row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=State.RUNNING)
        row.deadline_at = None if total is None else NOW + round(total * SECOND)

        def hear() -> None:
            self.heard += 1

        self.voice = LocalVoice(
            row,
            timeouts or Timeouts(),
            clock=self.clock,
            settings=Settings(**settings),
            heard=hear,
            make_artifact_dir=lambda: "/somewhere",
        )

    def ends(self) -> tuple[float, FailureKind] | None:
        """Tell what is next, in seconds after the body began."""
        timeout = self.voice.next_timeout()
        return None if timeout is None else (round(timeout[0] - self.began, 6), timeout[1])

    def fetched(self) -> Saying:
        saying = self.voice.fetch()
        assert saying is not None
        return saying


# --- clocks ---


def test_without_timeouts_there_is_no_end() -> None:
    spoken = Spoken()
    assert (spoken.ends(), spoken.voice.remaining()) == (None, None)
    spoken.voice.extend(attempt=5, idle=5, total=5)
    assert (spoken.ends(), spoken.voice.remaining()) == (None, None), "an extension makes no timeout"


def test_the_attempt_s_clock_runs_from_the_begin_whatever_is_said() -> None:
    spoken = Spoken(Timeouts(attempt=10))
    spoken.clock.advance(4)
    spoken.voice.checkpoint()
    spoken.voice.heartbeat()
    assert spoken.ends() == (10, ATTEMPT)
    assert spoken.voice.remaining() == pytest.approx(6)
    spoken.clock.advance(100)
    assert spoken.voice.remaining() == 0.0, "never negative"


def test_the_idle_clock_begins_anew_at_each_checkpoint_and_at_nothing_else() -> None:
    spoken = Spoken(Timeouts(idle=10))
    spoken.clock.advance(4)
    spoken.voice.heartbeat()
    spoken.voice.progress("{}")
    spoken.voice.log(20, "x")
    assert spoken.ends() == (10, IDLE)
    spoken.voice.checkpoint()
    assert spoken.ends() == (14, IDLE)
    assert spoken.voice.remaining() is None, "a body can always begin it anew"


def test_the_total_s_clock_does_not_follow_a_jump_of_the_wall_clock() -> None:
    spoken = Spoken(total=60)
    spoken.clock.wall += 3600 * SECOND
    spoken.clock.advance(10)
    assert spoken.ends() == (60, TOTAL)
    assert spoken.voice.remaining() == pytest.approx(50)


def test_a_total_that_had_passed_before_the_begin_is_over() -> None:
    spoken = Spoken(total=-5)
    assert spoken.ends() == (-5, TOTAL)
    assert spoken.voice.remaining() == 0.0


@pytest.mark.parametrize(
    ("attempt", "idle", "total", "first"),
    [
        (10, 20, 30, (10, ATTEMPT)),
        (20, 10, 30, (10, IDLE)),
        (30, 20, 10, (10, TOTAL)),
        (None, 20, 30, (20, IDLE)),
        (20, None, 30, (20, ATTEMPT)),
        (20, 10, None, (10, IDLE)),
        (10, 10, 10, (10, TOTAL)),
    ],
)
def test_the_earliest_end_comes_first(
    attempt: float | None, idle: float | None, total: float | None, first: tuple[float, FailureKind]
) -> None:
    assert Spoken(Timeouts(attempt=attempt, idle=idle), total=total).ends() == first


def test_what_remains_is_the_lesser_of_attempt_and_total() -> None:
    assert Spoken(Timeouts(attempt=10), total=30).voice.remaining() == pytest.approx(10)
    assert Spoken(Timeouts(attempt=30), total=10).voice.remaining() == pytest.approx(10)


# --- paused time ---


def test_while_paused_only_the_total_s_clock_runs() -> None:
    spoken = Spoken(Timeouts(attempt=10, idle=5), total=100)
    spoken.clock.advance(4)
    spoken.voice.reached_pause()
    spoken.clock.advance(1_000)
    assert spoken.voice.is_paused
    assert spoken.ends() == (100, TOTAL)
    assert Spoken(Timeouts(attempt=10, idle=5)).voice.next_timeout() is not None
    alone = Spoken(Timeouts(attempt=10, idle=5))
    alone.voice.reached_pause()
    assert alone.voice.next_timeout() is None


def test_paused_time_counts_neither_for_the_attempt_nor_as_idle() -> None:
    spoken = Spoken(Timeouts(attempt=10, idle=8))
    spoken.clock.advance(2)
    spoken.voice.checkpoint()
    spoken.voice.reached_pause()
    spoken.clock.advance(50)
    assert spoken.voice.remaining() == pytest.approx(8), "it stands still"
    spoken.voice.left_pause()
    assert not spoken.voice.is_paused
    assert spoken.ends() == (60, ATTEMPT)
    spoken.clock.advance(3)
    assert spoken.voice.remaining() == pytest.approx(5)
    spoken.voice.checkpoint()
    assert spoken.ends() == (60, ATTEMPT)


def test_the_time_of_several_pauses_adds_up_for_the_attempt_and_ends_with_a_checkpoint_for_idle() -> None:
    spoken = Spoken(Timeouts(attempt=100, idle=10))
    for paused in (5, 7):
        spoken.voice.reached_pause()
        spoken.clock.advance(paused)
        spoken.voice.left_pause()
    assert spoken.ends() == (22, IDLE)
    spoken.voice.checkpoint()
    assert spoken.ends() == (22, IDLE), "12 s after the begin, and 10 more"
    spoken.clock.advance(95)
    spoken.voice.checkpoint()
    assert spoken.ends() == (112, ATTEMPT)


def test_leaving_a_pause_that_was_not_reached_changes_nothing() -> None:
    spoken = Spoken(Timeouts(attempt=10))
    spoken.clock.advance(5)
    spoken.voice.left_pause()
    assert spoken.ends() == (10, ATTEMPT)


def test_reaching_and_leaving_a_pause_are_heard_at_once() -> None:
    spoken = Spoken()
    spoken.voice.reached_pause()
    assert (spoken.heard, spoken.voice.has_pause_news) == (1, True)
    spoken.voice.left_pause()
    assert spoken.heard == 2


def test_a_look_while_a_thread_leaves_its_pause_does_not_see_the_paused_time_as_work() -> None:
    class Interleaved(HandClock):
        """Looks from "another thread" each time that this one asks for the time."""

        def __init__(self) -> None:
            super().__init__()
            self.look: Callable[[], object] | None = None

        def monotonic(self) -> float:
            look, self.look = self.look, None
            if look is not None:
                look()
                self.look = look
            return super().monotonic()

    clock = Interleaved()
    spoken = Spoken(Timeouts(attempt=10, idle=10), clock=clock)
    spoken.voice.reached_pause()
    clock.advance(1_000)
    seen: list[tuple[float, FailureKind]] = []

    def look() -> None:
        timeout = spoken.voice.next_timeout()
        if timeout is not None:
            seen.append(timeout)

    clock.look = look
    spoken.voice.left_pause()
    clock.look = None
    assert [kind for at, kind in seen if at <= clock.monotonic()] == [], "it would be ended for nothing"


# --- extensions ---


def test_an_attempt_can_be_extended_more_than_once() -> None:
    spoken = Spoken(Timeouts(attempt=10))
    spoken.voice.extend(attempt=5, idle=0, total=0)
    spoken.voice.extend(attempt=2.5, idle=0, total=0)
    assert spoken.ends() == (17.5, ATTEMPT)
    assert spoken.heard, "the runner must look anew"


def test_an_extension_of_the_idle_time_is_for_the_current_one_only() -> None:
    spoken = Spoken(Timeouts(idle=10))
    spoken.voice.extend(attempt=0, idle=20, total=0)
    assert spoken.ends() == (30, IDLE)
    spoken.clock.advance(25)
    spoken.voice.checkpoint()
    assert spoken.ends() == (35, IDLE)


def test_an_extension_of_the_total_is_stored() -> None:
    spoken = Spoken(total=60)
    spoken.voice.extend(attempt=0, idle=0, total=30)
    spoken.voice.extend(attempt=0, idle=0, total=0.5)
    assert spoken.ends() == (90.5, TOTAL)
    assert spoken.fetched().deadline_at == NOW + 90 * SECOND + SECOND // 2
    spoken.voice.extend(attempt=5, idle=5, total=0)
    assert spoken.fetched().deadline_at is None, "it is as it was"


def test_an_extension_counts_while_paused() -> None:
    spoken = Spoken(Timeouts(attempt=10))
    spoken.voice.reached_pause()
    spoken.voice.extend(attempt=5, idle=0, total=0)
    spoken.clock.advance(100)
    spoken.voice.left_pause()
    assert spoken.ends() == (115, ATTEMPT)


# --- what is said ---


def test_where_nothing_was_said_there_is_nothing_to_fetch() -> None:
    spoken = Spoken()
    spoken.voice.checkpoint()
    spoken.voice.reached_pause()
    spoken.voice.left_pause()
    assert not spoken.voice.has_news
    assert spoken.voice.fetch() is None


def test_the_newest_progress_counts_and_is_fetched_once() -> None:
    spoken = Spoken()
    spoken.voice.progress('{"done":1}')
    spoken.clock.advance(1)
    spoken.voice.progress('{"done":2}')
    saying = spoken.fetched()
    assert (saying.progress, saying.seen_at, saying.lines) == ('{"done":2}', NOW + SECOND, ())
    assert not spoken.voice.has_news
    assert spoken.voice.fetch() is None


def test_a_heartbeat_tells_when_and_keeps_the_progress_that_waits() -> None:
    spoken = Spoken()
    spoken.voice.heartbeat()
    saying = spoken.fetched()
    assert (saying.progress, saying.seen_at) == (None, NOW)
    spoken.voice.progress("{}")
    spoken.clock.advance(2)
    spoken.voice.heartbeat()
    saying = spoken.fetched()
    assert (saying.progress, saying.seen_at) == ("{}", NOW + 2 * SECOND)


def test_it_asks_to_be_listened_to_once_until_it_is() -> None:
    spoken = Spoken()
    for _ in range(5):
        spoken.voice.log(20, "x")
        spoken.voice.progress("{}")
        spoken.voice.heartbeat()
    assert spoken.heard == 1
    spoken.voice.fetch()
    spoken.voice.heartbeat()
    assert spoken.heard == 2


def test_lines_are_numbered_through_and_fetched_once() -> None:
    spoken = Spoken()
    spoken.voice.log(20, "a")
    spoken.clock.advance(1)
    spoken.voice.log(40, "b")
    assert list(spoken.fetched().lines) == [(1, NOW, 20, "a"), (2, NOW + SECOND, 40, "b")]
    spoken.voice.log(20, "c")
    saying = spoken.fetched()
    assert list(saying.lines) == [(3, NOW + SECOND, 20, "c")]
    assert saying.seen_at is None, "a line is no sign of progress"


def test_lines_beyond_the_limit_push_out_the_oldest() -> None:
    spoken = Spoken(max_log_lines=3)
    for number in range(10_000):
        spoken.voice.log(20, str(number))
    assert [(line[0], line[3]) for line in spoken.fetched().lines] == [
        (9_998, "9997"),
        (9_999, "9998"),
        (10_000, "9999"),
    ]


def test_with_a_limit_of_none_no_line_is_kept() -> None:
    spoken = Spoken(max_log_lines=0)
    spoken.voice.log(20, "x")
    assert (spoken.heard, spoken.voice.fetch()) == (0, None)


def test_a_line_is_cut_and_made_storable() -> None:
    spoken = Spoken(max_log_bytes=64)
    spoken.voice.log(20, "\x00\ud800")
    spoken.voice.log(20, "ä" * 1_000)
    replaced, cut = (line[3] for line in spoken.fetched().lines)
    assert replaced == "\ufffd\ufffd"
    assert cut.startswith("ä" * 32 + "…")
    assert "2000 bytes" in cut


def test_asking_for_the_folder_is_noted() -> None:
    spoken = Spoken()
    assert not spoken.voice.has_artifacts
    assert spoken.voice.artifact_dir() == "/somewhere"
    assert spoken.voice.has_artifacts


def test_a_folder_that_cannot_be_made_is_the_body_s_to_know() -> None:
    def refuse() -> str:
        raise OSError("disk is full")

    row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=State.RUNNING)
    voice = LocalVoice(
        row, Timeouts(), clock=HandClock(), settings=Settings(), heard=lambda: None, make_artifact_dir=refuse
    )
    with pytest.raises(OSError, match="full"):
        voice.artifact_dir()


def test_the_lines_of_a_body_in_another_process_are_logged_here_as_well(caplog: pytest.LogCaptureFixture) -> None:
    row = TaskRow(key=1, id="t-1", name="mail", args="[[],{}]", state=State.RUNNING, attempt=2)
    voice = EchoingVoice(
        row, Timeouts(), clock=HandClock(), settings=Settings(), heard=lambda: None, make_artifact_dir=lambda: ""
    )
    with caplog.at_level(logging.INFO, "taskengine.task"):
        voice.log(logging.WARNING, "100 % done")
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("taskengine.task.t-1", "WARNING", "100 % done")
    assert (vars(record)["task_id"], vars(record)["attempt"]) == ("t-1", 2)
    saying = voice.fetch()
    assert saying is not None
    assert list(saying.lines) == [(1, NOW, logging.WARNING, "100 % done")]


def test_what_many_threads_say_is_fetched_in_full_and_never_left_behind_unheard() -> None:
    spoken = Spoken(max_log_lines=100_000)
    bell = threading.Event()
    spoken.voice._heard = bell.set

    def talk() -> None:
        for _ in range(500):
            spoken.voice.log(20, "x")

    threads = [threading.Thread(target=talk, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    numbers: list[int] = []
    while len(numbers) < 2_000:
        assert bell.wait(30), "somebody has spoken and nobody was told"
        bell.clear()
        saying = spoken.voice.fetch()
        if saying is not None:
            numbers.extend(line[0] for line in saying.lines)
    for thread in threads:
        thread.join(30)
    assert numbers == list(range(1, 2_001))
