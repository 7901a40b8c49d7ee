"""What a user holds: the engine and the handles of its tasks. A face; everything is done elsewhere.

To follow one task: `submit` here, the row in `submission`, the stream in `actors.wiring`, the claim in
`actors.claimer`, the body in `actors.runner`, the rules in `core.decide`, the write in `actors.persister`.
"""

import builtins
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from random import Random
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import anyio.lowlevel

from taskengine import defaults
from taskengine.actors.settings import Settings
from taskengine.arguments import short_repr
from taskengine.clock import SystemClock
from taskengine.core.errors import EngineNotRunning, InvalidOption, UsageError
from taskengine.core.model import Outcome, Stats, SubmitOptions, Task, TaskFilter, TaskPage, Transition
from taskengine.core.retry import RetryPolicy
from taskengine.filters import FilterStates, check_seconds, make_filter
from taskengine.handles import Submission, TaskHandle, id_of
from taskengine.ports import Clock, Downstream, Store
from taskengine.registry import Registry, TaskCall, TaskDefinition
from taskengine.stores.opening import open_store
from taskengine.submission import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from taskengine.running import Running
    from taskengine.views import EventStream

T = TypeVar("T")

TaskRef = str | TaskHandle[Any]
"""A task, by its id or a handle."""

ROWS_IN_A_ROW = 250
"""Rows that `submit_many` makes without letting others run: about 2 ms."""


class Engine:
    """A durable task engine that lives in this program's event loop, asyncio's or trio's.

    Use it as an async context manager. Leaving it gives everything back: no more is claimed, bodies have
    `shutdown_grace` seconds to finish, the rest is cancelled and released uncharged.

    Args:
        store: path of a SQLite file, or a Store.
        tasks: what may run here: `@task` functions, plain functions, modules. None makes this a client: it submits
            any name, and never claims, recovers or fires schedules.
        concurrency: bodies in flight (default 50); the rest waits in the store.
        default_executor: where sync functions run: "thread" (default) or "inline" (on the loop, for tests).
        durability: of a SQLite path: "full" (default) survives power loss, "fast" only the process.
        downstream: how HTTP tasks reach the outside; default is httpx with the address guard.
        max_pending: limit on tasks that wait (scheduled, blocked, queued, retry_wait); default none.
        settings: every other limit by its name; see docs/settings.md.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        tasks: "Iterable[Callable[..., Any] | TaskDefinition | ModuleType] | None" = None,
        concurrency: int = defaults.CONCURRENCY,
        default_executor: Literal["thread", "inline"] = "thread",
        durability: str | None = None,
        downstream: Downstream | None = None,
        max_pending: int | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        **settings: Any,
    ) -> None:
        unknown = settings.keys() - Settings.__annotations__.keys()
        if unknown:
            raise InvalidOption(sorted(unknown)[0], f"no such setting; there are {', '.join(Settings.__annotations__)}")
        self._settings = Settings(concurrency=concurrency, max_pending=max_pending, **settings)
        self._store = open_store(store, durability)
        self._registry = Registry()
        self._is_client = tasks is None
        self._running: Running | None = None
        if tasks is not None and (callable(tasks) or isinstance(tasks, str | TaskDefinition | ModuleType)):
            raise InvalidOption("tasks", "pass a list of tasks: Engine(..., tasks=[my_task])")
        for item in tasks or ():
            if isinstance(item, ModuleType):
                self.register_module(item)
            else:
                self._registry.add(item)
        if default_executor not in ("thread", "inline"):
            raise InvalidOption("default_executor", f"{default_executor!r} is neither 'thread' nor 'inline'")
        self._default_executor = default_executor
        if downstream is not None and not isinstance(downstream, Downstream):
            raise InvalidOption("downstream", f"{short_repr(downstream)} has no `send` and `aclose`; see Downstream")
        self._given_downstream = downstream
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._random = random if random is not None else Random()

    # --- tasks that may run here ---

    def register(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        """Make a plain function runnable under `name`; options are those of `@task`.

        Raises:
            DuplicateTask: another function has the name.
        """
        self._registry.register(name, function, **options)
        self._is_client = False if self._running is None else self._is_client

    def register_module(self, module: ModuleType) -> None:
        """Take a module's tasks, and call its `register(engine)` hook if it has one."""
        self._registry.register_module(module, self)
        self._is_client = False if self._running is None else self._is_client

    @property
    def definitions(self) -> Mapping[str, TaskDefinition]:
        """What can run here, by name."""
        return {name: self._registry.get(name) for name in self._registry.names}

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names that can run here."""
        return self._registry.names

    # --- life ---

    async def __aenter__(self) -> "Engine":
        """Open the store and start the actors.

        Raises:
            StoreError: the store cannot be opened; nothing is left behind.
        """
        from taskengine.running import Plan, Running  # Late: the actors take a third of the time of an import.

        if self._running is not None:
            raise UsageError("this engine is running already; make one Engine for each `async with`")
        running = Running(
            Plan(
                store=self._store,
                registry=self._registry,
                settings=self._settings,
                clock=self._clock,
                random=self._random,
                is_client=self._is_client,
                default_executor=self._default_executor,
                downstream=self._given_downstream,
            )
        )
        await running.start()
        self._running = running
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        """Give everything back and close; bounded in time whatever bodies do."""
        running = self._require()
        try:
            return await running.stop(exc_type, exc, tb)
        finally:
            self._running = None

    def end_bodies(self) -> None:
        """Cancel every body that runs here now; to cut short the grace of an engine that is being left."""
        self._require().actors.end_bodies()

    def _require(self) -> "Running":
        running = self._running
        if running is None:
            raise EngineNotRunning
        if running.pid != os.getpid():
            raise EngineNotRunning("this process was forked from the one that runs it; make an Engine of its own")
        return running

    # --- submitting ---

    async def submit(
        self,
        call: TaskCall[T],
        *,
        id: str | None = None,
        idempotency_key: str | None = None,
        delay: float | timedelta | None = None,
        due_at: datetime | None = None,
        priority: int = defaults.PRIORITY,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        label: str | None = None,
        max_attempts: int | None = None,
        retry: RetryPolicy | None = None,
        recover: Literal["retry", "lost"] | None = None,
        on_full: Literal["raise", "wait"] = "raise",
        full_timeout: float | None = None,
    ) -> TaskHandle[T]:
        """Store a task durably, and only then return its handle.

        Args:
            call: made with `my_task.bind(...)`.
            id: own id; one that exists follows the idempotency key's rule.
            idempotency_key: same key, same task, running or finished, for as long as that task is kept.
            delay: seconds (or timedelta) until it is due; or `due_at`, an aware datetime.
            priority: lower number first, first come first served among equals.
            tags, metadata, label: for people and queries.
            max_attempts, retry, recover: instead of the task's own.
            on_full: at `max_pending`, raise QueueFull or wait (at most `full_timeout` seconds).

        Raises:
            UnknownTask, InvalidArguments, InvalidOption: nothing was stored.
            IdempotencyConflict: the key belongs to a task with another payload.
            QueueFull: too many wait.
            StoreUnavailable: the store could not be used for `store_patience` seconds.

        Cancellation: the task may exist; a second submit with the same idempotency key returns it.
        """
        options = SubmitOptions(
            id=id,
            idempotency_key=idempotency_key,
            delay=delay,
            due_at=due_at,
            priority=priority,
            tags=tuple(tags) if not isinstance(tags, str) else tags,  # type: ignore[arg-type]  # refused with advice
            metadata=metadata,
            label=label,
            max_attempts=max_attempts,
            retry=retry,
            recover=recover,
        )
        running = self._require()
        row = running.submissions.row(call, options)
        chosen = frozenset((id,)) if id is not None else frozenset[str]()
        receipts = await running.submit([row], chosen, on_full=on_full, full_timeout=full_timeout)
        return TaskHandle(self, receipts[0].id, receipts[0].created, call.definition)

    async def submit_many(
        self,
        calls: "Iterable[TaskCall[T] | Submission[T]]",
        *,
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_full: Literal["raise", "wait"] = "raise",
        full_timeout: float | None = None,
    ) -> list[TaskHandle[T]]:
        """Store many tasks: all or none up to 10,000 of them, in chunks of that size beyond.

        Args:
            calls: calls, or Submissions where one has options of its own.
            options: for the calls that bring none of their own.

        Raises:
            As `submit`; the chunk in which it happens is not stored, those before it are.

        Cancellation: whole chunks may have been stored.
        """
        running = self._require()
        handles: list[TaskHandle[T]] = []
        if isinstance(calls, TaskCall | Submission):
            raise InvalidOption("calls", "pass a list of calls, or use submit for one")
        stream = iter(calls)
        while items := list(islice(stream, defaults.SUBMIT_CHUNK)):
            chunk = [item if isinstance(item, Submission) else Submission(item, options) for item in items]
            rows = []
            for item in chunk:
                rows.append(running.submissions.row(item.call, item.options))
                if len(rows) % ROWS_IN_A_ROW == 0:
                    await anyio.lowlevel.checkpoint()
            chosen = frozenset(item.options.id for item in chunk if item.options.id is not None)
            receipts = await running.submit(rows, chosen, on_full=on_full, full_timeout=full_timeout)
            handles.extend(
                TaskHandle(self, receipt.id, receipt.created, item.call.definition)
                for receipt, item in zip(receipts, chunk, strict=True)
            )
        return handles

    async def requeue(self, task_id: TaskRef, *, keep_key: bool = False, actor: str = "user") -> TaskHandle[Any]:
        """Run a finished task again as a NEW task.

        Args:
            keep_key: send the old task's idempotency key downstream again; default is a new one.

        Raises:
            TaskNotFound: no such task. NotFinished: it has not ended.
        """
        receipt = await self._require().controls.requeue(id_of(task_id), keep_key=keep_key, actor=actor)
        return TaskHandle(self, receipt.id, True, None)

    # --- controlling ---

    async def cancel(
        self, task_id: TaskRef, *, reason: str | None = None, actor: str = "user", timeout: float | None = None
    ) -> Task:
        """Cancel a task, and wait until its body has ended.

        Waiting tasks are cancelled at once. A running async body is cancelled where it awaits, so that its I/O really
        stops; a thread is asked, and is `lost` if it does not listen.

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

    async def run_now(self, task_id: TaskRef, *, actor: str = "user") -> Task:
        """Make a task due that waits for its time or for a retry; a finished one comes back unchanged.

        Raises:
            TaskNotFound: no such task. IllegalTransition: it is unfinished and does not wait for a time.
        """
        return await self._require().controls.run_now(id_of(task_id), actor=actor)

    async def delete(self, task_id: TaskRef) -> None:
        """Delete a finished task with its history; its id stays known as expired.

        Raises:
            TaskNotFound: no such task. NotFinished: it has not ended.
        """
        await self._require().controls.delete(id_of(task_id))

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
        return TaskHandle(self, found.id, False, None)

    async def list(
        self,
        *,
        ids: "Sequence[TaskRef] | None" = None,
        states: FilterStates = None,
        name: str | None = None,
        tag: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = defaults.LIST_LIMIT,
        cursor: str | None = None,
        order: Literal["newest", "claim"] = "newest",
    ) -> TaskPage:
        """List tasks, newest first, or (order="claim") the queued ones in the order in which they are claimed.

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
        )
        return await self._require().views.page(where, limit=limit, cursor=cursor, order=order)

    async def history(self, task_id: TaskRef) -> "builtins.list[Transition]":
        """Read one task's moves, oldest first.

        Raises:
            TaskNotFound: no such task.
        """
        return await self._require().views.history(id_of(task_id))

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
            slots_used=min(persister.held, self._settings.concurrency),
            slots_total=0 if self._is_client else self._settings.concurrency,
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
        views = self._require().views
        with anyio.move_on_after(check_seconds("timeout", timeout)) as scope:
            await views.drained(lambda: self._registry.names)
        return not scope.cancelled_caught
