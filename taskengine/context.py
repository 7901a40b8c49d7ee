"""What a body sees of its own task."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn

import anyio.lowlevel

from taskengine.core.errors import InvalidOption, TaskDiscarded, TaskSnoozed, TaskStopped, UsageError
from taskengine.eventloop import is_on_loop, run_soon
from taskengine.ports import Downstream
from taskengine.signals import Signals, Voice

MAX_MESSAGE = 500
"""Characters of a progress message and of its unit."""

LONGEST = 1e10
"""Seconds; 300 years, which still is an instant that a datetime can name."""


class TaskContext:
    """Given to a body whose first parameter is annotated with it.

    Usable from the event loop, from threads and in child processes alike, except `acheckpoint`, which is for async
    bodies.
    """

    __slots__ = (
        "_downstream",
        "_log",
        "_signals",
        "_voice",
        "attempt",
        "facts",
        "idempotency_key",
        "metadata",
        "name",
        "task_id",
    )

    def __init__(
        self,
        *,
        task_id: str,
        name: str,
        attempt: int,
        metadata: Mapping[str, Any],
        idempotency_key: str,
        signals: Signals,
        voice: Voice,
        downstream: Downstream | None = None,
    ) -> None:
        self.task_id = task_id
        self.name = name
        self.attempt = attempt
        """Number of this attempt; rises with every claim and is the fence."""
        self.metadata = metadata
        self.idempotency_key = idempotency_key
        """What to send to other systems as the idempotency key: the same on every attempt."""
        self.facts: dict[str, Any] = {}
        """Extra fields for this attempt's log records, such as `url`."""
        self._signals = signals
        self._voice = voice
        self._downstream = downstream
        self._log: logging.Logger | None = None

    @property
    def downstream(self) -> Downstream:
        """The engine's way to the outside over HTTP.

        Raises:
            UsageError: this engine has none.
        """
        if self._downstream is None:
            raise UsageError("this engine has no downstream; pass Engine(..., downstream=HttpxDownstream())")
        return self._downstream

    # --- answering ---

    @property
    def is_stop_requested(self) -> bool:
        """Whether somebody asked this attempt to end."""
        return self._signals.is_stop_requested

    @property
    def is_pause_requested(self) -> bool:
        """Whether somebody asked this attempt to wait at its next checkpoint."""
        return self._signals.is_pause_requested

    def checkpoint(self) -> None:
        """Answer a stop, a cancel or a pause, and begin the idle clock anew.

        In a thread or a child process a requested pause is kept here: the call returns when the task is resumed. On the
        event loop it cannot wait; use `acheckpoint` there.

        Raises:
            TaskStopped: the attempt is to end; let it pass.
        """
        signals = self._signals
        if signals.is_stop_requested:
            raise TaskStopped(signals.reason)
        self._voice.checkpoint()
        if not signals.is_pause_requested or is_on_loop():
            return
        while signals.must_wait:  # Again, where the next pause has come as soon as this one was over.
            number = signals.pause_number  # Before the report, so that it is the pause that is reported.
            self._voice.reached_pause()
            signals.wait_in_thread(number)
            self._voice.left_pause()
        if signals.is_stop_requested:
            raise TaskStopped(signals.reason)

    async def acheckpoint(self) -> None:
        """Answer a stop or a pause, begin the idle clock anew, and let other anyio tasks run.

        A requested pause is kept here: the call returns when the task is resumed.

        Raises:
            TaskStopped: the attempt is to end; let it pass.

        Cancellation: may be cancelled here, also while paused.
        """
        signals = self._signals
        if signals.is_stop_requested:
            raise TaskStopped(signals.reason)
        self._voice.checkpoint()
        if not signals.is_pause_requested:
            await anyio.lowlevel.checkpoint()
        while signals.must_wait:  # Again, where the next pause has come as soon as this one was over.
            number = signals.pause_number
            self._voice.reached_pause()
            try:
                await signals.wait(run_soon(), number)
            finally:
                self._voice.left_pause()
        if signals.is_stop_requested:
            raise TaskStopped(signals.reason)

    def snooze(self, delay: float, reason: str | None = None) -> NoReturn:
        """End this attempt and run the task again after `delay` seconds; no attempt is charged for it.

        Raises:
            TaskSnoozed: always; let it pass.
            InvalidOption: the delay is no number of seconds.
        """
        if not _is_seconds(delay):
            raise InvalidOption("delay", f"{delay!r} is not a number of seconds, 0 or more")
        raise TaskSnoozed(float(delay), reason)

    def discard(self, reason: str) -> NoReturn:
        """End the task as failed, kind `discarded`, without a retry: its work has become pointless.

        Raises:
            TaskDiscarded: always; let it pass.
        """
        raise TaskDiscarded(str(reason))

    # --- time ---

    def remaining(self) -> float | None:
        """Return the seconds until this attempt or the task is out of time; None without such a timeout."""
        return self._voice.remaining()

    def extend(self, *, attempt: float = 0.0, idle: float = 0.0, total: float = 0.0) -> None:
        """Give this attempt, its current idle time, or the task as a whole that many seconds more.

        Without such a timeout it has no effect.

        Raises:
            InvalidOption: a value is no number of seconds.
        """
        for option, seconds in (("attempt", attempt), ("idle", idle), ("total", total)):
            if not _is_seconds(seconds):
                raise InvalidOption(option, f"{seconds!r} is not a number of seconds, 0 or more")
        self._voice.extend(attempt=float(attempt), idle=float(idle), total=float(total))

    # --- telling ---

    def heartbeat(self) -> None:
        """Note that the body was seen just now; for people. It does not reset the idle clock, a checkpoint does."""
        self._voice.heartbeat()

    def progress(
        self,
        done: float | None = None,
        total: float | None = None,
        *,
        unit: str | None = None,
        message: str | None = None,
    ) -> None:
        """Tell how far the body is. The newest report counts; it may be stored a little later.

        Raises:
            InvalidOption: a number is none, or is not finite.
        """
        for option, number in (("done", done), ("total", total)):
            if number is not None and not _is_finite(number):
                raise InvalidOption(option, f"{number!r} is not a finite number")
        said = {"done": done, "total": total, "unit": _text(unit), "message": _text(message)}
        # ASCII with escapes: whatever the text holds, it can be stored.
        self._voice.progress(json.dumps({name: value for name, value in said.items() if value is not None}))

    def artifact_dir(self) -> str:
        """Return the path of a folder of this attempt's own, which exists. The engine's settings say if it is kept.

        Raises:
            OSError: it cannot be made.
        """
        return self._voice.artifact_dir()

    @property
    def _logger(self) -> logging.Logger:
        if self._log is None:
            self._log = task_logger(self.task_id)
        return self._log

    def log(self, message: str, *args: Any) -> None:
        """Log at INFO on logger `taskengine.task.<id>`, with `task_id` and `attempt` as fields of the record.

        The line is also kept with the task (`Engine.logs`), within the limits `max_log_lines` and `max_log_bytes`.
        """
        self._say(logging.INFO, message, args)

    def warning(self, message: str, *args: Any) -> None:
        """Log at WARNING."""
        self._say(logging.WARNING, message, args)

    def error(self, message: str, *args: Any) -> None:
        """Log at ERROR."""
        self._say(logging.ERROR, message, args)

    def _say(self, level: int, message: str, args: tuple[Any, ...]) -> None:
        extra = {"task_id": self.task_id, "attempt": self.attempt}
        with suppress(Exception):  # A handler that raises is the handler's trouble and not the body's.
            self._logger.log(level, message, *args, extra=extra, stacklevel=3)
        values: Any = args
        if len(args) == 1 and isinstance(args[0], Mapping) and args[0]:
            values = args[0]  # As logging has it: `%(name)s` with one mapping.
        try:
            text = str(message) % values if args else str(message)
        except Exception:  # as logging has it: a line that cannot be formatted harms nobody
            text = f"{type(message).__name__} that cannot be formatted"
        self._voice.log(level, text)


def task_logger(task_id: str) -> logging.Logger:
    """Return the logger `taskengine.task.<id>`."""
    # Not from logging.getLogger: that keeps every logger for ever, and there is one for each task id here.
    logger = logging.Logger(f"taskengine.task.{task_id}")
    logger.parent = logging.getLogger("taskengine.task")
    return logger


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST


def _is_finite(number: object) -> bool:
    try:
        return isinstance(number, int | float) and not isinstance(number, bool) and isfinite(number)
    except OverflowError:  # an int beyond every float
        return False


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:MAX_MESSAGE]
