"""Ending and pausing bodies by a clock that the test moves: the order of force, pauses that are missed, timeouts."""

import gc
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from taskengine import Engine, MemoryStore, Timeouts, task
from taskengine.actors.messages import Attempt
from taskengine.actors.overseer import Live, Overseer, Slot
from taskengine.actors.settings import Settings
from taskengine.actors.voices import LocalVoice
from taskengine.core.lifecycle import State
from taskengine.core.model import FailureKind, TaskRow
from taskengine.ports import BodyEnd
from taskengine.signals import Signals
from tests.actors.hand_clock import NOW, HandClock

STOP_GRACE, KILL_GRACE, PAUSE_WINDOW = 100.0, 20.0, 50.0
"""Seconds of the hand clock; long, so that no real time of a test comes near."""


class FakeBody:
    """A body that only counts what is done to it."""

    def __init__(self) -> None:
        self.interrupts = 0

    async def run(self) -> BodyEnd:
        raise AssertionError("nobody runs it here")

    def interrupt(self) -> None:
        self.interrupts += 1

    def abandon(self) -> None:
        raise AssertionError("the runner does that")

    def where(self) -> str:
        return "here"


class Watched:
    """An overseer at work, its clock, and what it has told the runner."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.given_up: list[Live] = []
        self.missed: list[Attempt] = []
        self.settings = Settings(stop_grace=STOP_GRACE, kill_grace=KILL_GRACE, pause_window=PAUSE_WINDOW)
        self.overseer = Overseer(
            clock=self.clock, settings=self.settings, give_up=self._give_up, pause_missed=self._miss
        )

    async def _give_up(self, live: Live) -> None:
        live.attempt.is_ended = True
        self.given_up.append(live)

    async def _miss(self, attempt: Attempt) -> None:
        self.missed.append(attempt)

    def live(
        self, timeouts: Timeouts | None = None, *, total: float | None = None, takes_context: bool = True
    ) -> "Fake":
        """Make a body that is watched, as the runner does when one begins."""
        row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=State.RUNNING)
        row.deadline_at = None if total is None else NOW + round(total * 1_000_000)
        voice = LocalVoice(
            row,
            timeouts or Timeouts(),
            clock=self.clock,
            settings=self.settings,
            heard=lambda: None,
            make_artifact_dir=lambda: "",
        )
        fake = Fake(Attempt(row), voice, takes_context)
        self.overseer.watch(fake.live)
        return fake

    async def at(self, seconds: float) -> None:
        """Let so many seconds pass and the overseer act on all that is due."""
        self.clock.advance(seconds)
        await self.look()

    async def look(self) -> None:
        """Wake it: something that ended long ago is due before anything else."""
        over = Fake(Attempt(TaskRow(key=2, id="over", name="mail", args="", state=State.SUCCEEDED)), None, True)
        over.attempt.is_ended = True
        over.live.kill_at = -math.inf
        self.overseer.watch(over.live)
        await anyio.wait_all_tasks_blocked()


class Fake:
    """An attempt with its body at work, in the test's hands."""

    def __init__(self, attempt: Attempt, voice: LocalVoice | None, takes_context: bool) -> None:
        self.attempt = attempt
        self.body = FakeBody()
        self.signals = Signals()
        self.live = Live(attempt, self.body, self.signals, Slot(0), voice, takes_context)
        self._voice = voice

    @property
    def voice(self) -> LocalVoice:
        assert self._voice is not None
        return self._voice

    @property
    def interrupts(self) -> int:
        return self.body.interrupts

    def must_wait(self) -> bool:
        return self.signals.must_wait


@asynccontextmanager
async def watching() -> AsyncIterator[Watched]:
    watched = Watched()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tg:
            tg.start_soon(watched.overseer.run)
            await anyio.wait_all_tasks_blocked()
            yield watched
            tg.cancel_scope.cancel()


# --- the order of force ---


async def test_a_stop_leaves_the_body_its_grace_then_comes_force_and_then_it_is_given_up() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.stop(fake.live, "tea")
        assert (fake.signals.is_stop_requested, fake.signals.reason) == (True, "tea")
        await watched.at(STOP_GRACE - 1)
        assert fake.interrupts == 0
        await watched.at(1)
        assert fake.interrupts == 1
        assert fake.signals.reason == "tea"
        await watched.at(KILL_GRACE - 1)
        assert (fake.interrupts, watched.given_up) == (1, [])
        await watched.at(1)
        assert watched.given_up == [fake.live]
        await watched.at(1_000)
        assert (watched.given_up, fake.interrupts) == ([fake.live], 1), "nothing more"


async def test_a_body_that_cannot_see_the_flag_is_ended_by_force_at_once() -> None:
    async with watching() as watched:
        fake = watched.live(takes_context=False)
        watched.overseer.stop(fake.live, "tea")
        assert fake.interrupts == 1
        await watched.at(KILL_GRACE)
        assert watched.given_up == [fake.live]


async def test_a_second_stop_does_not_begin_the_grace_anew() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.stop(fake.live, "tea")
        await watched.at(STOP_GRACE / 2)
        watched.overseer.stop(fake.live, "more tea")
        await watched.at(STOP_GRACE / 2)
        assert (fake.interrupts, fake.signals.reason) == (1, "tea")


async def test_force_during_the_grace_does_not_wait_for_its_end() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.stop(fake.live, "tea")
        watched.overseer.force(fake.live, "now")
        assert (fake.interrupts, fake.signals.reason) == (1, "now")
        await watched.at(KILL_GRACE)
        assert watched.given_up == [fake.live]


async def test_force_may_be_used_again_without_more_time_and_a_stop_after_it_changes_nothing() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.force(fake.live, "now")
        await watched.at(KILL_GRACE / 2)
        watched.overseer.force(fake.live, "now")
        watched.overseer.stop(fake.live, "tea")
        assert (fake.interrupts, fake.signals.reason) == (2, "now")
        await watched.at(KILL_GRACE / 2)
        assert watched.given_up == [fake.live]


async def test_a_body_that_has_ended_in_time_is_left_alone() -> None:
    async with watching() as watched:
        stopped, forced, timed = watched.live(), watched.live(), watched.live(Timeouts(attempt=10))
        watched.overseer.stop(stopped.live, None)
        watched.overseer.force(forced.live, None)
        for fake in (stopped, forced, timed):
            fake.attempt.is_ended = True
        await watched.at(1_000)
        assert (stopped.interrupts, forced.interrupts, timed.interrupts) == (0, 1, 0)
        assert (watched.given_up, timed.attempt.cause) == ([], None)


async def test_many_bodies_are_ended_each_at_its_own_time() -> None:
    async with watching() as watched:
        early, late = watched.live(), watched.live()
        watched.overseer.stop(late.live, None)
        await watched.at(30)
        watched.overseer.force(early.live, None)
        await watched.at(KILL_GRACE)
        assert watched.given_up == [early.live]
        assert late.interrupts == 0
        await watched.at(STOP_GRACE - 30 - KILL_GRACE)
        assert late.interrupts == 1
        await watched.at(KILL_GRACE)
        assert watched.given_up == [early.live, late.live]


async def test_a_clock_that_leaps_over_several_instants_leaves_no_step_out() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.stop(fake.live, None)
        await watched.at(10_000)
        assert (fake.interrupts, watched.given_up) == (1, []), "force comes before giving up, with its own time"
        await watched.at(KILL_GRACE)
        assert watched.given_up == [fake.live]


# --- pauses ---


async def test_a_pause_that_is_reached_in_its_window_is_not_missed() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.pause(fake.live)
        assert fake.must_wait()
        fake.voice.reached_pause()
        await watched.at(PAUSE_WINDOW)
        assert watched.missed == []
        watched.overseer.unpause(fake.live)
        assert not fake.must_wait()
        assert fake.interrupts == 0


async def test_a_pause_that_is_not_reached_in_its_window_is_missed_once() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.pause(fake.live)
        await watched.at(PAUSE_WINDOW - 1)
        assert watched.missed == []
        await watched.at(1)
        assert watched.missed == [fake.attempt]
        assert fake.must_wait(), "until the persister has taken it back"
        await watched.at(1_000)
        assert watched.missed == [fake.attempt]


async def test_a_pause_of_a_body_that_cannot_see_the_flag_is_missed_at_once() -> None:
    async with watching() as watched:
        fake = watched.live(takes_context=False)
        watched.overseer.pause(fake.live)
        await anyio.wait_all_tasks_blocked()
        assert watched.missed == [fake.attempt]
        assert not fake.signals.is_pause_requested


async def test_a_resume_within_the_window_ends_it() -> None:
    async with watching() as watched:
        fake = watched.live()
        watched.overseer.pause(fake.live)
        watched.overseer.unpause(fake.live)
        await watched.at(PAUSE_WINDOW)
        assert (watched.missed, fake.signals.is_pause_requested) == ([], False)


async def test_what_is_ending_is_not_paused_and_a_stop_ends_a_pause() -> None:
    async with watching() as watched:
        stopping, forced, pausing = watched.live(), watched.live(), watched.live()
        watched.overseer.stop(stopping.live, None)
        watched.overseer.force(forced.live, None)
        for fake in (stopping, forced):
            watched.overseer.pause(fake.live)
            assert not fake.signals.is_pause_requested
        watched.overseer.pause(pausing.live)
        watched.overseer.stop(pausing.live, None)
        assert not pausing.must_wait()
        await watched.at(PAUSE_WINDOW)
        assert watched.missed == []


# --- timeouts ---


@pytest.mark.parametrize(
    ("timeouts", "total", "kind", "words"),
    [
        (Timeouts(attempt=10), None, FailureKind.TIMEOUT_ATTEMPT, "the attempt took too long"),
        (Timeouts(idle=10), None, FailureKind.TIMEOUT_IDLE, "no checkpoint was reached in time"),
        (Timeouts(), 10, FailureKind.TIMEOUT_TOTAL, "the task as a whole is out of time"),
        (Timeouts(attempt=10, idle=30), 20, FailureKind.TIMEOUT_ATTEMPT, "the attempt took too long"),
    ],
)
async def test_a_body_out_of_time_is_ended_by_force_and_why_is_noted_first(
    timeouts: Timeouts, total: float | None, kind: FailureKind, words: str
) -> None:
    async with watching() as watched:
        fake = watched.live(timeouts, total=total)
        await watched.at(9)
        assert (fake.interrupts, fake.attempt.cause) == (0, None)
        await watched.at(1)
        assert (fake.interrupts, fake.attempt.cause, fake.signals.reason) == (1, kind.value, words)
        await watched.at(KILL_GRACE)
        assert watched.given_up == [fake.live]


async def test_a_cause_that_was_noted_before_stays() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=10))
        fake.attempt.cause = "shutdown"
        await watched.at(10)
        assert (fake.interrupts, fake.attempt.cause) == (1, "shutdown")


async def test_checkpoints_move_the_idle_end_on() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(idle=10))
        for _ in range(5):
            await watched.at(9)
            fake.voice.checkpoint()
        await watched.at(9)
        assert fake.interrupts == 0
        await watched.at(1)
        assert fake.interrupts == 1


async def test_an_extension_moves_the_end_on() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=10))
        fake.voice.extend(attempt=5, idle=0, total=0)
        await watched.at(14)
        assert fake.interrupts == 0
        await watched.at(1)
        assert fake.interrupts == 1


async def test_paused_time_does_not_count_and_the_clock_goes_on_after_it() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=10))
        await watched.at(4)
        fake.voice.reached_pause()
        await watched.at(1_000)
        assert fake.interrupts == 0
        fake.voice.left_pause()
        watched.overseer.unpause(fake.live)
        await watched.at(5)
        assert fake.interrupts == 0
        await watched.at(1)
        assert fake.interrupts == 1


async def test_the_total_s_clock_runs_while_paused() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=10), total=60)
        fake.voice.reached_pause()
        await watched.at(60)
        assert (fake.interrupts, fake.attempt.cause) == (1, FailureKind.TIMEOUT_TOTAL.value)


async def test_while_the_grace_of_a_stop_lasts_no_timeout_counts() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=10))
        watched.overseer.stop(fake.live, "tea")
        await watched.at(50)
        assert (fake.interrupts, fake.attempt.cause) == (0, None)
        await watched.at(50)
        assert (fake.interrupts, fake.signals.reason) == (1, "tea")


async def test_a_missed_pause_and_a_timeout_at_one_instant_both_count() -> None:
    async with watching() as watched:
        fake = watched.live(Timeouts(attempt=PAUSE_WINDOW))
        watched.overseer.pause(fake.live)
        await watched.at(PAUSE_WINDOW)
        assert watched.missed == [fake.attempt]
        assert fake.attempt.cause == FailureKind.TIMEOUT_ATTEMPT.value


async def test_a_body_without_a_voice_has_no_clock() -> None:
    async with watching() as watched:
        fake = Fake(Attempt(TaskRow(key=1, id="t", name="mail", args="", state=State.RUNNING)), None, False)
        watched.overseer.watch(fake.live)
        await watched.at(1_000)
        assert fake.interrupts == 0
        watched.overseer.force(fake.live, None)
        await watched.at(KILL_GRACE)
        assert watched.given_up == [fake.live]


@pytest.mark.parametrize("second", [None, (10_000.0, FailureKind.TIMEOUT_TOTAL)], ids=["paused", "moved on"])
async def test_a_thread_that_moves_its_clocks_while_they_are_looked_at_is_not_ended(
    second: tuple[float, FailureKind] | None,
) -> None:
    class Moving(LocalVoice):
        """Its body comes to a checkpoint, in its thread, between two looks of the overseer."""

        looks = 0

        def next_timeout(self) -> tuple[float, FailureKind] | None:
            first = super().next_timeout()
            is_due = first is not None and first[0] <= self._clock.monotonic()
            if not is_due:
                return first
            self.looks += 1
            return first if self.looks == 1 else second

    async with watching() as watched:
        fake = watched.live()
        voice = Moving(
            fake.attempt.row,
            Timeouts(idle=10),
            clock=watched.clock,
            settings=watched.settings,
            heard=lambda: None,
            make_artifact_dir=lambda: "",
        )
        fake.live.voice = voice
        watched.overseer.watch(fake.live)
        await watched.at(10)
        assert fake.attempt.cause in (None, FailureKind.TIMEOUT_IDLE.value)


# --- the heap ---


@task(timeout=3_600)
async def brief() -> None:
    """Says nothing: what has been said is kept a moment longer, until it is stored."""


async def test_bodies_that_have_ended_are_not_kept_until_their_timeout_would_have_come() -> None:
    async with Engine(MemoryStore(), tasks=[brief], concurrency=10) as engine:
        handles = await engine.submit_many([brief.bind() for _ in range(400)])
        with anyio.fail_after(60):
            for handle in handles:
                assert (await handle.wait()).ok
        gc.collect()
        kept = sum(type(thing) is Live for thing in gc.get_objects())
    assert kept < 200, "those of an hour would be in memory"
