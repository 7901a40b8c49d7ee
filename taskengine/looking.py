"""The half of an engine's face that reads and waits. It checks, and delegates to `views`."""

import builtins
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio

from taskengine import defaults
from taskengine.core.errors import InvalidOption
from taskengine.core.model import LogLine, Outcome, StandingHold, Stats, Task, TaskFilter, TaskPage, Transition
from taskengine.filters import FilterStates, check_seconds, make_filter
from taskengine.handles import TaskHandle, TaskRef, id_of
from taskengine.registry import TaskDefinition

if TYPE_CHECKING:
    from taskengine.core.explain import Explanation
    from taskengine.engine import Engine
    from taskengine.listening import Listening
    from taskengine.running import Running
    from taskengine.views import EventStream


class Looking:
    """What an engine can tell; a part of `Engine`, never made alone."""

    def _require(self) -> "Running":
        raise NotImplementedError

    # --- looking ---

    async def get(self, task_id: TaskRef) -> Task:
        """Read one task.

        Raises:
            TaskNotFound: no task has this id (TaskExpired: any more).
        """
        return await self._require().views.get(id_of(task_id))

    async def handle(self, task_id: TaskRef) -> TaskHandle[Any]:
        """Return a handle of a task that is known by its id.

        Raises:
            TaskNotFound: no task has this id.
        """
        found = await self.get(task_id)
        return TaskHandle(cast("Engine", self), found.id, False, None)

    async def list(
        self,
        *,
        ids: "Sequence[TaskRef] | None" = None,
        states: FilterStates = None,
        name: str | None = None,
        tag: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        held: bool | None = None,
        requeued: bool | None = None,
        limit: int = defaults.LIST_LIMIT,
        cursor: str | None = None,
        order: Literal["newest", "claim"] = "newest",
    ) -> TaskPage:
        """List tasks, newest first, or (order="claim") the queued ones in the order in which they are claimed.

        Args:
            held: whether the task itself carries a hold.
            requeued: whether another task was made of it by `requeue`.

        Raises:
            InvalidOption: a word that is no state, a limit or a cursor that is of no use.
        """
        where = make_filter(
            ids=None if ids is None else [id_of(each) for each in ids],
            states=states,
            name=name,
            tag=tag,
            created_after=created_after,
            created_before=created_before,
            held=held,
            requeued=requeued,
        )
        return await self._require().views.page(where, limit=limit, cursor=cursor, order=order)

    async def dead_letters(
        self,
        *,
        name: str | None = None,
        tag: str | None = None,
        limit: int = defaults.LIST_LIMIT,
        cursor: str | None = None,
    ) -> TaskPage:
        """List what failed for good or was lost, and was not requeued yet; newest first.

        `requeue` one of them, or `requeue_many` with the same filter.

        Raises:
            InvalidOption: a limit or a cursor that is of no use.
        """
        return await self.list(
            states=("failed", "lost"), requeued=False, name=name, tag=tag, limit=limit, cursor=cursor
        )

    async def history(self, task_id: TaskRef) -> "builtins.list[Transition]":
        """Read one task's moves, oldest first.

        Raises:
            TaskNotFound: no such task.
        """
        return await self._require().views.history(id_of(task_id))

    async def logs(
        self, task_id: TaskRef, *, attempt: int | None = None, limit: int = defaults.MAX_LOG_LINES
    ) -> "builtins.list[LogLine]":
        """Read what the bodies of a task logged with `ctx.log` and its like: the last `limit` lines, oldest first.

        Args:
            attempt: number of one attempt; None: all of them.

        Raises:
            TaskNotFound: no such task.
        """
        if type(limit) is not int or not 1 <= limit <= 1_000_000:
            raise InvalidOption("limit", f"{limit!r} is not a whole number from 1 to 1,000,000")
        return await self._require().views.logs(id_of(task_id), attempt=attempt, limit=limit)

    async def explain(self, task_id: TaskRef) -> "Explanation":
        """Tell in one sentence, and as data, why a task is not running (or that it is).

        Raises:
            TaskNotFound: no such task.
        """
        return await self._require().views.explain(id_of(task_id))

    async def holds(self) -> "builtins.list[StandingHold]":
        """Read the holds of everything, of names and of tags that stand now, oldest first."""
        return await self._require().views.holds()

    def listen(
        self, listener: "Callable[[Transition], Awaitable[None] | None]", *, after: int | None = None
    ) -> "Listening":
        """Have every committed move of every task told to `listener`, in order, until the engine is left.

        The listener runs in an anyio task of its own and reads at its own pace; what it raises is logged and counted,
        and it hears of the next move all the same. A function that is not async runs on the event loop and blocks it.

        Args:
            after: position behind which to begin, as for `events`.

        Returns:
            What ends it (`stop()`) and knows how often it failed (`failures`).
        """
        if not callable(listener):
            raise InvalidOption("listener", f"{listener!r} cannot be called")
        return self._require().listen(listener, self.events(after))

    def events(self, after: int | None = None) -> "EventStream":
        """Iterate over committed moves of all tasks, for ever, reading them from the store as fast as you take them.

        Args:
            after: position behind which to begin (0: from the start); None begins with
                what is committed after the first look.

        Cancellation: ends it; begin again behind the last position seen, and nothing is missed.
        """
        if after is not None and not (type(after) is int and after >= 0):
            raise InvalidOption("after", f"{after!r} is not a position; pass 0, or the position of the last event seen")
        return self._require().views.events(after)

    async def stats(self) -> Stats:
        """Read the counters of the store and of this engine."""
        running = self._require()
        persister = running.actors.persister
        return await running.views.stats(
            slots_used=min(persister.held, running.slots_total),
            slots_total=running.slots_total,
            slots_paused=persister.paused,
            outages=persister.outages,
            last_outage=persister.last_outage,
        )

    # --- waiting ---

    async def _wait(self, task_id: str, definition: TaskDefinition | None) -> Outcome[Any]:
        return await self._require().views.outcome(task_id, definition)

    async def wait_all(
        self,
        ids: "Sequence[TaskRef] | None" = None,
        *,
        name: str | None = None,
        tag: str | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Wait until the given tasks have ended, or all that match; changes nothing.

        Returns:
            True when all have ended, False when the timeout (seconds) came first.

        Raises:
            TaskNotFound: one of the ids is of no task.
        """
        views = self._require().views
        if isinstance(ids, str | TaskHandle):
            raise InvalidOption("ids", "pass a list of ids or handles")
        with anyio.move_on_after(check_seconds("timeout", timeout)) as scope:
            if ids is not None:
                await views.wait_all_ids([id_of(item) for item in ids])
            if ids is None or name is not None or tag is not None:
                await views.wait_all_matching(TaskFilter(name=name, tag=tag))
        return not scope.cancelled_caught

    async def drain(self, *, timeout: float | None = None) -> bool:
        """Wait until no unheld, unfinished task is left whose name is known here; changes nothing.

        Returns:
            True when drained, False when the timeout (seconds) came first.
        """
        running = self._require()
        views = running.views
        with anyio.move_on_after(check_seconds("timeout", timeout)) as scope:
            await views.drained(running.names)
        return not scope.cancelled_caught
