"""What a body sees of its own task."""

import logging
from collections.abc import Mapping
from typing import Any

import anyio.lowlevel

from taskengine.core.errors import TaskStopped, UsageError
from taskengine.ports import Downstream


class StopFlag:
    """The wish to stop one attempt, readable from any thread; set once, by the runner, before anything is cancelled."""

    __slots__ = ("is_set", "reason")

    def __init__(self) -> None:
        self.is_set = False
        self.reason: str | None = None

    def set(self, reason: str | None) -> None:
        self.reason = reason
        self.is_set = True


class TaskContext:
    """Given to a body whose first parameter is annotated with it.

    Usable from the event loop and from threads alike, except `acheckpoint`, which is for async bodies.
    """

    __slots__ = ("_downstream", "_log", "_stop", "attempt", "facts", "idempotency_key", "metadata", "name", "task_id")

    def __init__(
        self,
        *,
        task_id: str,
        name: str,
        attempt: int,
        metadata: Mapping[str, Any],
        idempotency_key: str,
        stop: StopFlag,
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
        self._stop = stop
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

    @property
    def is_stop_requested(self) -> bool:
        """Whether somebody asked this attempt to end."""
        return self._stop.is_set

    def checkpoint(self) -> None:
        """Answer a stop or cancel request.

        Raises:
            TaskStopped: one was made; let it pass.
        """
        if self._stop.is_set:
            raise TaskStopped(self._stop.reason)

    async def acheckpoint(self) -> None:
        """Answer a stop request, and let other anyio tasks run.

        Raises:
            TaskStopped: a stop was requested; let it pass.

        Cancellation: may be cancelled here.
        """
        self.checkpoint()
        await anyio.lowlevel.checkpoint()
        self.checkpoint()

    @property
    def _logger(self) -> logging.Logger:
        if self._log is None:
            # Not from logging.getLogger: that keeps every logger for ever, and there is one for each task id here.
            self._log = logging.Logger(f"taskengine.task.{self.task_id}")
            self._log.parent = logging.getLogger("taskengine.task")
        return self._log

    def log(self, message: str, *args: Any) -> None:
        """Log at INFO on logger `taskengine.task.<id>`, with `task_id` and `attempt` as fields of the record."""
        self._logger.info(message, *args, extra={"task_id": self.task_id, "attempt": self.attempt})

    def warning(self, message: str, *args: Any) -> None:
        """Log at WARNING."""
        self._logger.warning(message, *args, extra={"task_id": self.task_id, "attempt": self.attempt})

    def error(self, message: str, *args: Any) -> None:
        """Log at ERROR."""
        self._logger.error(message, *args, extra={"task_id": self.task_id, "attempt": self.attempt})
