"""What a user holds: the engine and the handles of its tasks. A face; everything is done elsewhere.

To follow one task: `submit` here, the row in `submission`, the stream in `actors.wiring`, the claim in
`actors.claimer`, the body in `actors.runner`, the rules in `core.decide`, the write in `actors.persister`.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio.lowlevel

from taskengine import defaults
from taskengine.actors.settings import Settings
from taskengine.arguments import short_repr
from taskengine.asking import Asking
from taskengine.clock import SystemClock
from taskengine.core.errors import EngineNotRunning, InvalidOption, UsageError
from taskengine.core.model import SubmitOptions
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts
from taskengine.eventloop import protect
from taskengine.handles import Submission, TaskHandle
from taskengine.importable import refuse_unfit
from taskengine.looking import Looking
from taskengine.ports import Clock, Downstream, Store
from taskengine.registry import Registry, TaskCall, TaskDefinition, TaskFunction
from taskengine.stores.opening import default_artifacts, open_store
from taskengine.submission import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from taskengine.running import Running

T = TypeVar("T")

ROWS_IN_A_ROW = 250
"""Rows that `submit_many` makes without letting others run: about 2 ms."""


class Engine(Asking, Looking):
    """A durable task engine that lives in this program's event loop, asyncio's or trio's.

    Use it as an async context manager. Leaving it gives everything back: no more is claimed, bodies have
    `shutdown_grace` seconds to finish, the rest is cancelled and released uncharged.

    Args:
        store: path of a SQLite file, or a Store.
        tasks: what may run here: `@task` functions, plain functions, modules. None makes this a client: it submits
            any name, and never claims, recovers or fires schedules.
        concurrency: bodies in flight (default 50); the rest waits in the store.
        default_executor: where sync functions run that name no executor: "thread" (default), "process" (child
            processes) or "inline" (on the loop, for tests).
        durability: of a SQLite path: "full" (default) survives power loss, "fast" only the process.
        downstream: how HTTP tasks reach the outside; default is httpx with the address guard.
        max_pending: limit on tasks that wait (scheduled, blocked, queued, retry_wait); default none.
        artifacts: folder for what bodies leave in `ctx.artifact_dir()`; default is one beside a SQLite file, named
            after it, and for other stores a temporary one.
        settings: every other limit by its name; see docs/settings.md.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        tasks: "Iterable[Callable[..., Any] | TaskDefinition | ModuleType] | None" = None,
        concurrency: int = defaults.CONCURRENCY,
        default_executor: Literal["thread", "process", "inline"] = "thread",
        durability: str | None = None,
        downstream: Downstream | None = None,
        max_pending: int | None = None,
        artifacts: str | os.PathLike[str] | None = None,
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
        if default_executor not in ("thread", "process", "inline"):
            problem = f"{default_executor!r} is neither 'thread' nor 'process' nor 'inline'"
            raise InvalidOption("default_executor", problem)
        self._default_executor = default_executor
        if downstream is not None and not isinstance(downstream, Downstream):
            raise InvalidOption("downstream", f"{short_repr(downstream)} has no `send` and `aclose`; see Downstream")
        self._given_downstream = downstream
        self._artifacts = Path(artifacts) if artifacts is not None else default_artifacts(self._store)
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
        if self._default_executor == "process":
            for definition in self.definitions.values():
                if definition.executor is None and not definition.is_async:
                    refuse_unfit(definition.function)
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
                artifacts=self._artifacts,
            )
        )
        await running.start()
        protect(Engine.__aexit__)
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
        timeout: float | Timeouts | None = None,
        on_success: "str | TaskFunction[..., Any, ..., Any] | None" = None,
        on_failure: "str | TaskFunction[..., Any, ..., Any] | None" = None,
        on_settled: "str | TaskFunction[..., Any, ..., Any] | None" = None,
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
            max_attempts, retry, recover, timeout: instead of the task's own; a number as `timeout` is the seconds of
                each attempt.
            on_success, on_failure, on_settled: tasks, or their names, that are submitted in the transaction that ends
                this one, with a `TaskEnd` as their argument; instead of the task's own.
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
            timeout=timeout,
            on_success=on_success,
            on_failure=on_failure,
            on_settled=on_settled,
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
