"""What a body is asked to do, and how it answers: the two directions between a runner and a body.

`Signals` goes in: stop and pause, set by the runner, read by the body from the loop, from a thread, or from a child
process, which has a copy that follows the original. `Voice` comes out: what a body says of itself. Neither judges.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import anyio

_LOCK = threading.Lock()
"""Guards all of them: it is held for nanoseconds, and making one for each attempt would cost more."""


class Signals:
    """The wishes for one attempt. Set on the runner's loop (in a child: on its reading thread), read anywhere."""

    __slots__ = ("_listeners", "_wakers", "is_pause_requested", "is_stop_requested", "pause_number", "reason")

    def __init__(self) -> None:
        self.is_stop_requested = False
        self.is_pause_requested = False
        self.reason: str | None = None
        """Why it is to stop."""
        self.pause_number = 0
        """Counts the pauses, so that one which has ended is told apart from the next, also where that came at once."""
        self._wakers: tuple[Callable[[], None], ...] = ()
        self._listeners: tuple[Callable[[], None], ...] = ()

    def request_stop(self, reason: str | None) -> None:
        """Ask the body to end; a pause is over with it."""
        self.reason = reason
        self.is_stop_requested = True
        self._changed()

    def request_pause(self, number: int | None = None) -> None:
        """Ask the body to wait at its next checkpoint.

        Args:
            number: that of the original, for a copy that follows it; None: a new pause, if there is none already.
        """
        if number is not None:
            self.pause_number = number
        elif not self.is_pause_requested:
            self.pause_number += 1
        self.is_pause_requested = True
        self._changed()

    def resume(self) -> None:
        """Let the body go on."""
        self.is_pause_requested = False
        self._changed()

    @property
    def must_wait(self) -> bool:
        """Whether a body at a checkpoint is to stay there."""
        return self.is_pause_requested and not self.is_stop_requested

    def _lasts(self, number: int) -> bool:
        return self.must_wait and self.pause_number == number

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change, where the change is made; it must not raise."""
        self._listeners = (*self._listeners, listener)

    def _changed(self) -> None:
        if self._wakers:
            with _LOCK:
                wakers, self._wakers = self._wakers, ()
            for wake in wakers:
                with suppress(RuntimeError):  # a loop that has ended
                    wake()
        for listener in self._listeners:
            listener()

    def wait_in_thread(self, number: int | None = None) -> None:
        """Block this thread for as long as the pause of that number lasts; None: the present one."""
        number = self.pause_number if number is None else number
        while self._lasts(number):
            bell = threading.Event()
            self._wake_by(bell.set, number)
            bell.wait()

    async def wait(self, soon: Callable[[Callable[[], None]], None], number: int | None = None) -> None:
        """Wait for as long as the pause of that number lasts; None: the present one.

        Args:
            soon: has a callback run on the waiter's loop.

        Cancellation: ends the waiting.
        """
        number = self.pause_number if number is None else number
        while self._lasts(number):
            bell = anyio.Event()
            self._wake_by(lambda bell=bell: soon(bell.set), number)  # type: ignore[misc]  # binds this turn's bell
            await bell.wait()

    def _wake_by(self, wake: Callable[[], None], number: int) -> None:
        with _LOCK:
            self._wakers = (*self._wakers, wake)
        if not self._lasts(number):  # It has ended in between, and nobody would ring.
            wake()


class Voice(Protocol):
    """What a body can say. Callable from any thread of the process in which the body runs; never blocks, never raises
    because of the engine's troubles."""

    def begun(self) -> None:
        """It begins now, where more had to be done before (a child has loaded its module): the clocks begin anew."""

    def checkpoint(self) -> None:
        """It lives: the idle clock begins anew."""

    def reached_pause(self) -> None:
        """It has come to a checkpoint with a pause requested, and waits there from now on."""

    def left_pause(self) -> None:
        """It goes on."""

    def heartbeat(self) -> None:
        """It was seen; for people, and no checkpoint."""

    def progress(self, text: str) -> None:
        """Its progress, as JSON text; the newest one counts."""

    def log(self, level: int, message: str) -> None:
        """A line of its log; `level` is one of logging's."""

    def extend(self, *, attempt: float, idle: float, total: float) -> None:
        """Give it this many seconds more."""

    def remaining(self) -> float | None:
        """Seconds until the attempt or the task is out of time; None is no limit."""

    def artifact_dir(self) -> str:
        """Path of the folder of this attempt, which is there after the call."""
