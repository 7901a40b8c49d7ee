"""The half of an engine's face that asks for something to be done with stored tasks. It checks, and delegates to
`controls`."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, cast

from taskengine.codec import check_text
from taskengine.core.errors import InvalidOption
from taskengine.core.lifecycle import Trigger
from taskengine.core.model import HoldScope, Task, TaskFilter, to_micros
from taskengine.filters import FilterStates, check_seconds, make_filter
from taskengine.handles import TaskHandle, TaskRef, id_of

if TYPE_CHECKING:
    from typing import Unpack

    from taskengine.engine import Engine
    from taskengine.running import Running


class ManyFilter(TypedDict, total=False):
    """Which tasks a request for many is about; what is given is combined with *and*, and something must be given."""

    ids: Sequence[TaskRef]
    states: FilterStates
    name: str
    tag: str
    created_after: datetime
    created_before: datetime
    held: bool


class Asking:
    """What can be asked of an engine; a part of `Engine`, never made alone."""

    def _require(self) -> "Running":
        raise NotImplementedError

    # --- ending ---

    async def cancel(
        self, task_id: TaskRef, *, reason: str | None = None, actor: str = "user", timeout: float | None = None
    ) -> Task:
        """Cancel a task, and wait until its body has ended.

        Waiting tasks are cancelled at once. A running async body is cancelled where it awaits, so that its I/O really
        stops; a child process is terminated and then killed; a thread is asked, and is `lost` if it does not listen.

        Args:
            timeout: seconds to wait for the end; default is the setting `cancel_wait` (10).

        Returns:
            The committed state. A finished task comes back unchanged; one whose end is still awaited is `stopping`, or
            as it was if another process runs it.

        Raises:
            TaskNotFound: no such task.

        Cancellation: the request may have been made; the task may end.
        """
        return await self._require().controls.cancel(
            id_of(task_id), reason=reason, actor=actor, timeout=check_seconds("timeout", timeout)
        )

    async def stop(
        self, task_id: TaskRef, *, reason: str | None = None, actor: str = "user", timeout: float | None = None
    ) -> Task:
        """Stop a task: its body may come to its next checkpoint first, for `stop_grace` seconds (10); then force.

        A body that takes no TaskContext cannot see the request, and is ended by force at once. Waiting tasks are
        `stopped` at once.

        Args:
            timeout: seconds to wait for the end; default is the grace and what force takes.

        Returns:
            The committed state, as `cancel` does.

        Raises:
            TaskNotFound: no such task.

        Cancellation: the request may have been made; the task may end.
        """
        return await self._require().controls.stop(
            id_of(task_id), reason=reason, actor=actor, timeout=check_seconds("timeout", timeout)
        )

    async def cancel_many(
        self, *, reason: str | None = None, actor: str = "user", **where: "Unpack[ManyFilter]"
    ) -> int:
        """Ask to cancel every unfinished task that matches; `wait_all` waits for their ends.

        Returns:
            How many were asked: neither ended nor being cancelled already.

        Raises:
            InvalidOption: the filter is empty, or says something that cannot be.

        Cancellation: some of the tasks may have been asked.
        """
        return await self._ask_many(where, Trigger.USER_CANCEL, reason, actor)

    async def stop_many(self, *, reason: str | None = None, actor: str = "user", **where: "Unpack[ManyFilter]") -> int:
        """Ask to stop every unfinished task that matches; as `cancel_many`."""
        return await self._ask_many(where, Trigger.USER_STOP, reason, actor)

    # --- pausing and holding ---

    async def pause(self, task_id: TaskRef, *, reason: str | None = None, actor: str = "user") -> bool:
        """Pause a task at its next checkpoint; a task without a body is held instead, and stays where it is.

        A paused body keeps its slot.

        Returns:
            True when it is paused or held. False when it had ended or was ending, when its body came to no checkpoint
            within `pause_window` seconds (10; the pause is taken back then), or when another process has not answered.

        Raises:
            TaskNotFound: no such task.

        Cancellation: the request may have been made.
        """
        return await self._require().controls.pause(id_of(task_id), reason=reason, actor=actor)

    async def resume(self, task_id: TaskRef, *, reason: str | None = None, actor: str = "user") -> bool:
        """Let a paused body go on, or take the hold off a task that is held by itself.

        Returns:
            True when nothing of it pauses or holds the task any more. False when it had ended or was ending, or is held
            with others: `release` those.

        Raises:
            TaskNotFound: no such task.

        Cancellation: the request may have been made.
        """
        return await self._require().controls.resume(id_of(task_id), reason=reason, actor=actor)

    async def pause_many(self, *, reason: str | None = None, actor: str = "user", **where: "Unpack[ManyFilter]") -> int:
        """Ask every unfinished task that matches to pause; as `cancel_many`. Pauses that are missed are taken back."""
        return await self._ask_many(where, Trigger.USER_PAUSE, reason, actor)

    async def resume_many(
        self, *, reason: str | None = None, actor: str = "user", **where: "Unpack[ManyFilter]"
    ) -> int:
        """Let every task that matches go on; as `cancel_many`."""
        return await self._ask_many(where, Trigger.USER_RESUME, reason, actor)

    async def _ask_many(self, where: ManyFilter, trigger: Trigger, reason: str | None, actor: str) -> int:
        found = _read_filter(where)
        return await self._require().controls.ask_many(found, trigger, reason=reason, actor=actor)

    async def hold(
        self,
        *,
        name: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        actor: str = "user",
        until: datetime | None = None,
    ) -> None:
        """Hold everything, or all tasks of a name or with a tag: none of them is claimed by any process.

        When it returns, nothing that is held begins here any more; what other processes have claimed but not begun
        they give back at their next look. Bodies at work go on. The hold is stored and survives restarts; a second one
        of the same tasks takes the place of the first.

        Args:
            until: aware datetime at which it ends by itself; None: `release` ends it.

        Raises:
            InvalidOption: both a name and a tag, or an `until` without a time zone.

        Cancellation: the hold may stand.
        """
        scope, target = _scope(name, tag)
        controls = self._require().controls
        await controls.hold(scope, target, reason=reason, actor=actor, until=_read_until(until))

    async def release(self, *, name: str | None = None, tag: str | None = None) -> bool:
        """End the hold of everything, of a name or of a tag; tasks go on unless another hold covers them.

        Returns:
            Whether there was one.

        Cancellation: the hold may have ended.
        """
        scope, target = _scope(name, tag)
        return await self._require().controls.release(scope, target)

    async def run_now(self, task_id: TaskRef, *, actor: str = "user") -> Task:
        """Make a task due that waits for its time or for a retry; a finished one comes back unchanged.

        Raises:
            TaskNotFound: no such task. IllegalTransition: it is unfinished and does not wait for a time.
        """
        return await self._require().controls.run_now(id_of(task_id), actor=actor)

    # --- finished tasks ---

    async def requeue(self, task_id: TaskRef, *, keep_key: bool = False, actor: str = "user") -> TaskHandle[Any]:
        """Run a finished task again as a NEW task.

        Args:
            keep_key: send the old task's idempotency key downstream again; default is a new one.

        Raises:
            TaskNotFound: no such task. NotFinished: it has not ended.
        """
        receipt = await self._require().controls.requeue(id_of(task_id), keep_key=keep_key, actor=actor)
        return TaskHandle(cast("Engine", self), receipt.id, True, None)

    async def requeue_many(self, *, keep_key: bool = False, actor: str = "user", **where: "Unpack[ManyFilter]") -> int:
        """Requeue every dead letter that matches: what failed or was lost and was not requeued yet.

        With `states` given, those final states are meant instead.

        Returns:
            How many new tasks were made.

        Raises:
            InvalidOption: the filter says something that cannot be.

        Cancellation: some of them may have been requeued; the same call again takes the rest.
        """
        found = _read_filter(where, requeued=False, may_be_empty=True)
        return await self._require().controls.requeue_many(found, keep_key=keep_key, actor=actor)

    async def delete(self, task_id: TaskRef) -> None:
        """Delete a finished task with its history, lines and artifacts; its id stays known as expired.

        Raises:
            TaskNotFound: no such task. NotFinished: it has not ended.
        """
        await self._require().controls.delete(id_of(task_id))


def _read_filter(where: ManyFilter, *, requeued: bool | None = None, may_be_empty: bool = False) -> TaskFilter:
    unknown = where.keys() - ManyFilter.__annotations__.keys()
    if unknown:
        there_are = ", ".join(ManyFilter.__annotations__)
        raise InvalidOption(min(unknown), f"no such filter; there are {there_are}")
    if not may_be_empty and all(value is None for value in where.values()):
        raise InvalidOption(
            "filter", "say which tasks are meant: ids, states, name, tag, created_after, created_before or held"
        )
    ids = where.get("ids")
    return make_filter(
        ids=None if ids is None else [id_of(each) for each in ids],
        states=where.get("states"),
        name=where.get("name"),
        tag=where.get("tag"),
        created_after=where.get("created_after"),
        created_before=where.get("created_before"),
        held=where.get("held"),
        requeued=requeued,
    )


def _scope(name: str | None, tag: str | None) -> tuple[HoldScope, str]:
    if name is not None and tag is not None:
        raise InvalidOption("tag", "hold a name or a tag, and both in two calls")
    if name is not None:
        return HoldScope.NAME, check_text("name", name, limit=500)
    return (HoldScope.ALL, "") if tag is None else (HoldScope.TAG, check_text("tag", tag, limit=500))


def _read_until(until: datetime | None) -> int | None:
    if until is None:
        return None
    if not isinstance(until, datetime):
        raise InvalidOption("until", f"{until!r} is not a datetime")
    try:
        instant = to_micros(until)
    except ValueError as error:
        raise InvalidOption("until", str(error)) from error
    return instant
