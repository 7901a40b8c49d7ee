"""Ending and pausing bodies that are at work, and the clocks that run against them.

The order of force: a stop sets the flag and leaves the body `stop_grace` seconds to come to a checkpoint; then, and for
a cancel, a timeout or a shutdown at once, it is ended by force; what has not ended `kill_grace` later is abandoned.
Why is noted in the attempt before anything is cancelled.

Instants wait in a heap. An entry is only a moment to look: what is due then is asked of the body's own clocks, which
checkpoints, pauses and extensions may have moved on in the meantime.
"""

import heapq
import math
from collections.abc import Awaitable, Callable
from itertools import count

import anyio
from attrs import define

from taskengine.actors.messages import Attempt
from taskengine.actors.settings import Settings
from taskengine.actors.voices import LocalVoice
from taskengine.core.model import FailureKind
from taskengine.ports import Body, Clock
from taskengine.signals import Signals

TIDY = 64
"""Entries from which on it is worth a look how many of them still count."""


@define(eq=False)
class Slot:
    """A place for one body at a time."""

    number: int
    is_lost: bool = False
    """Its body could not be ended and another slot has taken its place."""


@define(eq=False)
class Live:
    """An attempt whose body is at work. Instants are on the monotonic clock."""

    attempt: Attempt
    body: Body
    signals: Signals
    slot: Slot
    voice: LocalVoice | None
    takes_context: bool
    force_at: float | None = None
    """When patience with a stop ends."""
    kill_at: float | None = None
    """When it is given up; set once force is used."""
    pause_until: float | None = None
    """When a pause that was not reached is taken back."""
    looked_at: float | None = None
    """The entry in the overseer's heap that counts; there may be later ones, which are overtaken."""

    @property
    def is_paused(self) -> bool:
        return self.voice is not None and self.voice.is_paused

    def next_at(self) -> float | None:
        """Return the next instant at which something is to be done about it."""
        if self.kill_at is not None:
            return self.kill_at
        timeout = self.voice.next_timeout() if self.voice is not None and self.force_at is None else None
        instants = (self.force_at, self.pause_until, None if timeout is None else timeout[0])
        return min((at for at in instants if at is not None), default=None)


class Overseer:
    """Part of the runner: `run` watches the clocks, the rest is called on the loop and returns at once."""

    def __init__(
        self,
        *,
        clock: Clock,
        settings: Settings,
        give_up: Callable[[Live], Awaitable[None]],
        pause_missed: Callable[[Attempt], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._give_up = give_up
        self._pause_missed = pause_missed
        self._heap: list[tuple[float, int, Live]] = []
        self._numbers = count()
        self._changed = anyio.Event()
        self._tidy_at = TIDY

    # --- asked by the runner ---

    def watch(self, live: Live) -> None:
        """Look at it when its next instant comes. To be called again whenever that may have become an earlier one."""
        at = live.next_at()
        if at is None or (live.looked_at is not None and live.looked_at <= at):
            return
        live.looked_at = at
        is_first = not self._heap or at < self._heap[0][0]
        heapq.heappush(self._heap, (at, next(self._numbers), live))
        if is_first:
            self._changed.set()
        if len(self._heap) >= self._tidy_at:
            self._tidy()

    def _tidy(self) -> None:
        """Drop what has ended or was overtaken: bodies are short, and what they were allowed may be long."""
        self._heap = [entry for entry in self._heap if entry[2].looked_at == entry[0] and not entry[2].attempt.is_ended]
        heapq.heapify(self._heap)
        self._tidy_at = max(TIDY, 2 * len(self._heap))

    def stop(self, live: Live, reason: str | None) -> None:
        """Ask it to end at its next checkpoint; by force after the grace, at once if it cannot see the flag."""
        if not live.takes_context:
            self.force(live, reason)
            return
        if live.force_at is None and live.kill_at is None:
            live.force_at = self._clock.monotonic() + self._settings.stop_grace
            live.pause_until = None
            live.signals.request_stop(reason)
            self.watch(live)

    def force(self, live: Live, reason: str | None) -> None:
        """Begin to end it by force, with a deadline."""
        live.signals.request_stop(reason)
        if live.kill_at is None:
            live.kill_at = self._clock.monotonic() + self._settings.kill_grace
            self.watch(live)
        live.body.interrupt()

    def pause(self, live: Live) -> None:
        """Ask it to wait at its next checkpoint; taken back after the window, at once if it cannot see the flag."""
        if live.force_at is not None or live.kill_at is not None:
            return
        window = self._settings.pause_window if live.takes_context else 0.0
        live.pause_until = self._clock.monotonic() + window
        if live.takes_context:
            live.signals.request_pause()
        self.watch(live)

    def unpause(self, live: Live) -> None:
        """Let it go on."""
        live.pause_until = None
        live.signals.resume()
        self.watch(live)

    # --- the clocks ---

    async def run(self) -> None:
        """Act on what is due until cancelled.

        Cancellation: at once.
        """
        while True:
            self._changed = anyio.Event()
            wait = self._heap[0][0] - self._clock.monotonic() if self._heap else math.inf
            with anyio.move_on_after(max(0.0, wait)):
                await self._changed.wait()
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                at, _, live = heapq.heappop(self._heap)
                if live.looked_at == at and not live.attempt.is_ended:
                    live.looked_at = None
                    await self._act(live, now)

    async def _act(self, live: Live, now: float) -> None:
        at = live.next_at()
        if at is not None and at <= now:
            if live.kill_at is not None:
                await self._give_up(live)
                return
            if live.force_at is not None and live.force_at <= now:
                self.force(live, live.signals.reason)
                return
            if live.pause_until is not None and live.pause_until <= now:
                live.pause_until = None
                if not live.is_paused:
                    await self._pause_missed(live.attempt)
            elif self._times_out(live, now):
                return
        self.watch(live)

    def _times_out(self, live: Live, now: float) -> bool:
        """End it for its timeout, unless a body in a thread has moved its clocks since they were looked at."""
        timeout = live.voice.next_timeout() if live.voice is not None else None
        if timeout is None or timeout[0] > now:
            return False
        if live.attempt.cause not in ("shutdown", "owner_gone"):
            # In place of a request that is not stored (yet): a stored one would have begun to end it.
            live.attempt.cause = timeout[1].value
        self.force(live, TIMEOUTS[timeout[1]])
        return True


TIMEOUTS = {
    FailureKind.TIMEOUT_START: "no body began in time",
    FailureKind.TIMEOUT_ATTEMPT: "the attempt took too long",
    FailureKind.TIMEOUT_IDLE: "no checkpoint was reached in time",
    FailureKind.TIMEOUT_TOTAL: "the task as a whole is out of time",
}
"""In words."""
