"""A TaskContext without an engine: to call a body directly in a test, and to see what it said."""

import logging
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from taskengine.context import TaskContext
from taskengine.ports import Downstream
from taskengine.signals import Signals


class RecordingVoice:
    """Keeps what a body says."""

    def __init__(self, *, remaining: float | None = None) -> None:
        self.checkpoints = 0
        self.heartbeats = 0
        self.progress_texts: list[str] = []
        """JSON, as the engine would store it."""
        self.lines: list[tuple[str, str]] = []
        """(level, message)"""
        self.extensions: list[dict[str, float]] = []
        self.at_pause = threading.Event()
        """Set while the body waits at a checkpoint."""
        self._remaining = remaining
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def begun(self) -> None:
        """Take no notice."""

    def checkpoint(self) -> None:
        """Count it."""
        self.checkpoints += 1

    def reached_pause(self) -> None:
        """Note that the body waits."""
        self.at_pause.set()

    def left_pause(self) -> None:
        """Note that the body goes on."""
        self.at_pause.clear()

    def heartbeat(self) -> None:
        """Count it."""
        self.heartbeats += 1

    def progress(self, text: str) -> None:
        """Keep it."""
        self.progress_texts.append(text)

    def log(self, level: int, message: str) -> None:
        """Keep it."""
        self.lines.append((logging.getLevelName(level), message))

    def extend(self, *, attempt: float, idle: float, total: float) -> None:
        """Keep it."""
        self.extensions.append({"attempt": attempt, "idle": idle, "total": total})

    def remaining(self) -> float | None:
        """Return what the test has said."""
        return self._remaining

    def artifact_dir(self) -> str:
        """Return a temporary folder, which goes with this object."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="taskengine-test-", ignore_cleanup_errors=True)
        return self._folder.name

    def close(self) -> None:
        """Remove the temporary folder."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def make_context(
    *,
    task_id: str = "task-1",
    name: str = "task",
    attempt: int = 1,
    metadata: Mapping[str, Any] | None = None,
    idempotency_key: str = "key-1",
    signals: Signals | None = None,
    voice: RecordingVoice | None = None,
    downstream: Downstream | None = None,
) -> TaskContext:
    """Make the context that a body would get from an engine.

    Args:
        signals: call `request_stop`, `request_pause` and `resume` of it to play the engine's part.
        voice: keeps what the body says; pass your own to look at it.
    """
    return TaskContext(
        task_id=task_id,
        name=name,
        attempt=attempt,
        metadata=metadata or {},
        idempotency_key=idempotency_key,
        signals=signals or Signals(),
        voice=voice or RecordingVoice(),
        downstream=downstream,
    )
