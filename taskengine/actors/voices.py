"""What a body says, and the clocks that run while it is at work.

A `LocalVoice` is spoken to from the event loop and from threads, and is listened to on the loop: the persister fetches
what is to be kept, the runner asks whether time is over. Nothing here waits; what is said too fast is said again later
(progress) or dropped from the old end (lines).
"""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from taskengine.actors.messages import Saying
from taskengine.actors.settings import Settings
from taskengine.context import task_logger
from taskengine.core.errortext import storable
from taskengine.core.model import FailureKind, TaskRow
from taskengine.core.timeouts import Timeouts
from taskengine.ports import Clock

LOADING = 60.0
"""Seconds that another process may take to load a body before the clocks of the attempt run against it."""

_LOCK = threading.Lock()
"""Guards all of them: it is held for microseconds, and making one for each attempt would cost more."""


class LocalVoice:
    """The voice of one attempt; the contracts are `signals.Voice` and `messages.Sayings`."""

    __slots__ = (
        "_attempt_limit",
        "_began",
        "_checkpoint",
        "_clock",
        "_count",
        "_deadline_at",
        "_has_news",
        "_heard",
        "_idle_bonus",
        "_idle_limit",
        "_idle_paused_for",
        "_lines",
        "_make_artifact_dir",
        "_paused_for",
        "_paused_since",
        "_saying",
        "_settings",
        "_total_end",
        "has_artifacts",
        "has_pause_news",
    )

    def __init__(
        self,
        row: TaskRow,
        timeouts: Timeouts,
        *,
        clock: Clock,
        settings: Settings,
        heard: Callable[[], None],
        make_artifact_dir: Callable[[], str],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._heard = heard
        """Called, on any thread, when there is something to listen to."""
        self._make_artifact_dir = make_artifact_dir
        self._saying: Saying | None = None
        self._lines: deque[tuple[int, int, int, str]] | None = None
        self._count = 0
        self._has_news = False
        now = clock.monotonic()
        self._began = now
        self._checkpoint = now
        self._paused_since: float | None = None
        self._paused_for = 0.0
        """Seconds spent paused since the body began."""
        self._idle_paused_for = 0.0
        """The same since the last checkpoint."""
        self._attempt_limit = timeouts.attempt
        self._idle_limit = timeouts.idle
        self._idle_bonus = 0.0
        self._deadline_at = row.deadline_at
        # Wall clocks jump; from here on the rest of the time is measured on one that does not.
        self._total_end = None if row.deadline_at is None else now + (row.deadline_at - clock.now()) / 1_000_000
        self.has_artifacts = False
        self.has_pause_news = False

    # --- speaking; on any thread ---

    def begun(self) -> None:
        """See `Voice.begun`."""
        self._began = self._checkpoint = self._clock.monotonic()
        self._heard()

    def checkpoint(self) -> None:
        """See `Voice.checkpoint`."""
        self._checkpoint = self._clock.monotonic()
        self._idle_paused_for = self._idle_bonus = 0.0

    def reached_pause(self) -> None:
        """See `Voice.reached_pause`."""
        self._paused_since = self._clock.monotonic()
        self.has_pause_news = True
        self._heard()

    def left_pause(self) -> None:
        """See `Voice.left_pause`."""
        since = self._paused_since
        if since is not None:
            # Added before it is cleared: whoever looks in between counts it twice, which ends nobody too early.
            paused = self._clock.monotonic() - since
            self._paused_for += paused
            self._idle_paused_for += paused
            self._paused_since = None
        self._heard()  # Its clocks run again.

    def heartbeat(self) -> None:
        """See `Voice.heartbeat`."""
        self._say(None)

    def progress(self, text: str) -> None:
        """See `Voice.progress`."""
        self._say(text)

    def _say(self, progress: str | None) -> None:
        with _LOCK:
            saying = self._open_saying()
            saying.seen_at = self._clock.now()
            if progress is not None:
                saying.progress = progress
        self._tell()

    def _open_saying(self) -> Saying:
        if self._saying is None:
            self._saying = Saying()
        return self._saying

    def log(self, level: int, message: str) -> None:
        """See `Voice.log`."""
        if not self._settings.max_log_lines:
            return
        with _LOCK:
            if self._lines is None:
                self._lines = deque(maxlen=self._settings.max_log_lines)
            self._count += 1
            text = storable(message, limit=self._settings.max_log_bytes)
            self._lines.append((self._count, self._clock.now(), level, text))
        self._tell()

    def extend(self, *, attempt: float, idle: float, total: float) -> None:
        """See `Voice.extend`."""
        with _LOCK:
            if self._attempt_limit is not None:
                self._attempt_limit += attempt
            self._idle_bonus += idle
            if self._total_end is not None and self._deadline_at is not None and total:
                self._total_end += total
                self._deadline_at += round(total * 1_000_000)
                self._open_saying().deadline_at = self._deadline_at
        self._tell()

    def remaining(self) -> float | None:
        """See `Voice.remaining`."""
        ends = [end for end in (self._attempt_end(), self._total_end) if end is not None]
        return max(0.0, min(ends) - self._clock.monotonic()) if ends else None

    def artifact_dir(self) -> str:
        """See `Voice.artifact_dir`."""
        self.has_artifacts = True
        return self._make_artifact_dir()

    def _tell(self) -> None:
        if not self._has_news:
            self._has_news = True
            self._heard()

    # --- listening; on the loop ---

    @property
    def has_news(self) -> bool:
        """Whether something waits to be stored."""
        return self._has_news

    @property
    def is_paused(self) -> bool:
        """Whether the body waits at a checkpoint."""
        return self._paused_since is not None

    def fetch(self) -> Saying | None:
        """See `Sayings.fetch`."""
        if not self._has_news:
            return None
        with _LOCK:
            self._has_news = False
            saying = self._open_saying()
            self._saying = None
            if self._lines is not None:
                saying.lines = tuple(self._lines)
                self._lines = None
        return saying

    # --- time ---

    def _attempt_end(self) -> float | None:
        if self._attempt_limit is None:
            return None
        since = self._paused_since
        now_paused = 0.0 if since is None else self._clock.monotonic() - since
        return self._began + self._attempt_limit + self._paused_for + now_paused

    def _idle_end(self) -> float | None:
        if self._idle_limit is None:
            return None
        return self._checkpoint + self._idle_limit + self._idle_bonus + self._idle_paused_for

    def next_timeout(self) -> tuple[float, FailureKind] | None:
        """Return when, on the monotonic clock, the body is out of time, and which timeout it is.

        While it is paused only the total's clock runs.
        """
        ends: list[tuple[float, FailureKind]] = []
        if self._total_end is not None:
            ends.append((self._total_end, FailureKind.TIMEOUT_TOTAL))
        if self._paused_since is None:
            attempt, idle = self._attempt_end(), self._idle_end()
            if attempt is not None:
                ends.append((attempt, FailureKind.TIMEOUT_ATTEMPT))
            if idle is not None:
                ends.append((idle, FailureKind.TIMEOUT_IDLE))
        return min(ends, key=lambda end: end[0]) if ends else None


class EchoingVoice(LocalVoice):
    """The voice of a body in another process: its lines are logged here as well, where logging is configured."""

    __slots__ = ("_extra", "_logger")

    def __init__(self, row: TaskRow, timeouts: Timeouts, **parts: Any) -> None:
        super().__init__(row, timeouts, **parts)
        self._began += LOADING
        self._checkpoint += LOADING
        self._logger = task_logger(row.id)
        self._extra = {"task_id": row.id, "attempt": row.attempt}

    def log(self, level: int, message: str) -> None:
        """See `Voice.log`."""
        with suppress(Exception):  # A handler that raises is the handler's trouble and not the body's.
            self._logger.log(level, "%s", message, extra=self._extra)
        super().log(level, message)
