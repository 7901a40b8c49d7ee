"""What is told to the outside after a commit: one value for each thing that a log line can be about."""

from typing import Any

from attrs import define

from taskengine.core.lifecycle import State
from taskengine.core.model import Failure, TaskRow


@define(eq=False)
class Fact:
    """A committed fact about one task."""

    event: str
    """`task_start`, `task_retry`, `task_snooze`, `task_done` or `task_interrupted`."""
    row: TaskRow
    """The task; id, name, attempt, charged and label are right, other values may be older."""
    state: State
    retry: int
    """Charged attempts."""
    duration_ms: int | None = None
    """Of this attempt."""
    delay_s: float | None = None
    """Until the next attempt."""
    reason: str | None = None
    failure: Failure | None = None
    facts: dict[str, Any] | None = None
    """What the body said of itself, such as `url` and `http_status`."""
