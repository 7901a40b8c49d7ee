"""What a submitter holds: a call with its options before, and a handle of the task after."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from attrs import field, frozen

from taskengine.arguments import short_repr
from taskengine.codec import check_text
from taskengine.core.errors import InvalidOption
from taskengine.core.model import LogLine, Outcome, SubmitOptions, Task, Transition
from taskengine.filters import check_seconds
from taskengine.registry import TaskCall, TaskDefinition

if TYPE_CHECKING:
    from taskengine.core.explain import Explanation
    from taskengine.engine import Engine

T = TypeVar("T")


@frozen
class Submission(Generic[T]):
    """A call with options of its own, for `submit_many`."""

    call: TaskCall[T]
    options: SubmitOptions = field(factory=SubmitOptions)


class TaskHandle(Generic[T]):
    """One stored task, as its submitter holds it. `T` is what the task returns."""

    __slots__ = ("_definition", "_engine", "created", "id")

    def __init__(self, engine: "Engine", task_id: str, created: bool, definition: TaskDefinition | None) -> None:
        self._engine = engine
        self._definition = definition
        self.id = task_id
        self.created = created
        """False: the key (or id) was there already, and this is the task that has it."""

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r}, created={self.created})"

    async def wait(self, *, timeout: float | None = None) -> Outcome[T]:
        """Wait for the task's end; changes nothing.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            TimeoutError: it had not ended by then.
            TaskNotFound: no task has this id (TaskExpired: any more).

        Cancellation: gives up waiting; the task goes on.
        """
        with anyio.fail_after(check_seconds("timeout", timeout)):
            return await self._engine._wait(self.id, self._definition)

    async def task(self) -> Task:
        """Read the task as it is now."""
        return await self._engine.get(self.id)

    async def cancel(self, *, reason: str | None = None, timeout: float | None = None) -> Task:
        """Cancel it; see `Engine.cancel`."""
        return await self._engine.cancel(self.id, reason=reason, timeout=timeout)

    async def stop(self, *, reason: str | None = None, timeout: float | None = None) -> Task:
        """Stop it, cooperatively first; see `Engine.stop`."""
        return await self._engine.stop(self.id, reason=reason, timeout=timeout)

    async def pause(self, *, reason: str | None = None) -> bool:
        """Pause it at its next checkpoint, or hold it; see `Engine.pause`."""
        return await self._engine.pause(self.id, reason=reason)

    async def resume(self, *, reason: str | None = None) -> bool:
        """Let it go on; see `Engine.resume`."""
        return await self._engine.resume(self.id, reason=reason)

    async def explain(self) -> "Explanation":
        """Tell why it is not running; see `Engine.explain`."""
        return await self._engine.explain(self.id)

    async def logs(self, *, attempt: int | None = None) -> list[LogLine]:
        """Read what its bodies logged; see `Engine.logs`."""
        return await self._engine.logs(self.id, attempt=attempt)

    async def history(self) -> list[Transition]:
        """Read its moves, oldest first."""
        return await self._engine.history(self.id)


TaskRef = str | TaskHandle[Any] | Task
"""A task, by its id, a handle, or as it was read."""


def id_of(task: TaskRef) -> str:
    """Return the id of a task.

    Raises:
        InvalidOption: it is none of these.
    """
    if isinstance(task, TaskHandle | Task):
        return task.id
    if not isinstance(task, str):
        raise InvalidOption("task_id", f"{short_repr(task)} is neither an id nor a handle, nor a Task")
    return check_text("task_id", task, limit=500)
