"""The claimer: how much this engine may hold, and when it is worth looking.

It never touches the store. It leaves a standing credit with the persister, which claims in every tick as much as the
credit allows, so that one commit can store a task and claim it. And it wakes the persister when something may be due:
at the next due time, when another process has written, when more was due than one tick promotes.

The credit is the slots plus a prefetch. Claiming a few short tasks ahead keeps slots busy while a commit is under way;
for long tasks it would only keep them from other engines, so the prefetch follows the measured length of bodies.

Waiting for a due time is done in short steps, because due times are wall-clock and that can jump.
"""

import math
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import frozen

from taskengine.actors.messages import Credit, SlotsLeft, TickReport, Wake
from taskengine.actors.settings import Settings
from taskengine.ports import Clock

LONGEST_STEP = 1.0
"""Seconds; how late a jump of the wall clock, or a resumed machine, is noticed."""

LONGEST_IDLE = 5.0
"""Seconds between looks when nothing is known to become due: a safety net, should a piece of news be missed."""

HORIZON = 0.1
"""Seconds of work that may wait in front of the slots."""

SMOOTHING = 0.2
"""Weight of the newest tick in the average length of a body."""


@frozen
class LookAgain:
    """Another process has committed something."""


@frozen
class StopClaiming:
    """No claim from the next tick on."""


class Claimer:
    """The actor. `run` is its life; everything else comes in as messages."""

    def __init__(
        self,
        *,
        news: "MemoryObjectReceiveStream[TickReport | LookAgain | StopClaiming | SlotsLeft]",
        persister: MemoryObjectSendStream[Any],
        clock: Clock,
        settings: Settings,
    ) -> None:
        self._news = news
        self._persister = persister
        self._clock = clock
        self._settings = settings
        self._next_due: int | None = None
        self._must_wake = False
        self._slots = settings.concurrency
        self._is_claiming = True
        self._average: float | None = None
        self._credit: tuple[int, int] | None = None

    async def run(self) -> None:
        """Serve until cancelled.

        Cancellation: at once; the standing credit stays as it is.
        """
        await self._give_credit()
        while True:
            with anyio.move_on_after(self._wait()) as waiting:
                self._note(await self._news.receive())
            self._drain()
            if waiting.cancelled_caught and self._next_due is None:
                self._must_wake = True
            await self._give_credit()
            if self._must_wake or self._is_due():
                self._must_wake = False
                self._next_due = None
                await self._persister.send(Wake())

    def close(self) -> None:
        """Close the stream ends that belong to this actor."""
        self._persister.close()
        self._news.close()

    def _drain(self) -> None:
        try:
            while True:
                self._note(self._news.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            pass

    def _note(self, news: TickReport | LookAgain | StopClaiming | SlotsLeft) -> None:
        if isinstance(news, StopClaiming):
            self._is_claiming = False
        elif isinstance(news, SlotsLeft):
            self._slots = news.slots
        elif isinstance(news, LookAgain):
            self._must_wake = True
        elif not news.is_outage:
            self._next_due = news.next_due
            self._must_wake = self._must_wake or news.has_more_due
            if news.ended:
                length = news.busy_seconds / news.ended
                self._average = (
                    length if self._average is None else self._average + SMOOTHING * (length - self._average)
                )

    def _wait(self) -> float:
        if self._must_wake:
            return 0.0
        if not self._is_claiming:
            return math.inf
        if self._next_due is None:
            return LONGEST_IDLE
        return min(LONGEST_STEP, max(0.0, (self._next_due - self._clock.now()) / 1_000_000))

    def _is_due(self) -> bool:
        return self._is_claiming and self._next_due is not None and self._next_due <= self._clock.now()

    async def _give_credit(self) -> None:
        slots = self._slots if self._is_claiming else 0
        prefetch = self._prefetch() if slots else 0
        if (slots, prefetch) != self._credit:
            self._credit = (slots, prefetch)
            await self._persister.send(Credit(slots, prefetch))

    def _prefetch(self) -> int:
        """Claim ahead as much as the slots do within the horizon; nothing before a body was measured."""
        if self._average is None or self._average >= HORIZON:
            return 0
        ahead = self._settings.concurrency * HORIZON / max(self._average, 0.0001)
        # In steps, so that a wavering average does not send a message after every tick.
        return min(self._settings.prefetch, max(1, 1 << (int(ahead).bit_length() - 1)) if ahead >= 1 else 0)
