"""What an event loop is doing that does not answer: told from another thread, while it still does it."""

import sys
import threading
import traceback
from types import FrameType

from taskengine.diagnostics import diagnostics
from taskengine.executors import event_loop, inline
from taskengine.ports import Call

logger = diagnostics("taskengine")

FRAMES = 12
"""Innermost frames that are shown."""


class Watchdog:
    """Watches the thread of one event loop."""

    def __init__(self) -> None:
        self._thread: int | None = None

    def watch_this_thread(self) -> None:
        """Take the calling thread for that of the loop."""
        self._thread = threading.get_ident()

    def report(self, seconds: float) -> None:
        """Log which task blocks the loop, and where; called on another thread, must not raise."""
        frame = sys._current_frames().get(self._thread or 0)
        if frame is None:
            return
        call = _call_of(frame)
        what = "no task of this engine" if call is None else f"task {call.task_id} ({call.name})"
        stack = "".join(traceback.format_list(traceback.extract_stack(frame)[-FRAMES:]))
        logger.warning(
            "the event loop has not answered for %.1f s; %s is running on it:\n%s", seconds, what, stack.rstrip()
        )


def _call_of(frame: FrameType | None) -> Call | None:
    while frame is not None:
        call = event_loop.call_in_frame(frame) or inline.call_in_frame(frame)
        if call is not None:
            return call
        frame = frame.f_back
    return None
