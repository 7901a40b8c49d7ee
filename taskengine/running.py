"""One stay inside `async with Engine`: the store's host, the actors and the views."""

import os
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import anyio
from attrs import define

from taskengine.actors.bulletin import Bulletin
from taskengine.actors.messages import Receipt, Reply, Submit
from taskengine.actors.settings import Settings
from taskengine.actors.supervisor import Identification
from taskengine.actors.wiring import Actors, Parts
from taskengine.artifacts import ArtifactFolders
from taskengine.controls import Controls
from taskengine.core.errors import EngineNotRunning, InvalidOption, QueueFull, StoreError
from taskengine.core.model import TaskRow
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import spawn
from taskengine.executors.event_loop import LoopExecutor
from taskengine.executors.inline import InlineExecutor
from taskengine.executors.thread import ThreadExecutor
from taskengine.filters import check_seconds
from taskengine.identity import is_gone, this_process
from taskengine.ids import new_id
from taskengine.listening import Listener, Listening
from taskengine.observe.logs import LogTeller
from taskengine.ports import Clock, Downstream, Executor, Store
from taskengine.registry import Registry, TaskDefinition
from taskengine.stores.hosts import InlineHost, LeaseTerms, ThreadHost, Watch
from taskengine.submission import Submissions
from taskengine.views import EventStream, Views
from taskengine.watchdog import Watchdog

logger = diagnostics("taskengine")

LAST_WORDS = 2.0
"""Seconds that listeners have to hear of the last commits."""


@define(eq=False, kw_only=True)
class Plan:
    """What an engine was configured with."""

    store: Store
    registry: Registry
    settings: Settings
    clock: Clock
    random: Random
    is_client: bool
    default_executor: str
    downstream: Downstream | None
    artifacts: Path | None


class Running:
    """One stay inside `async with`: what is made on entering and ended on leaving."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        settings = plan.settings
        self.pid = os.getpid()
        self.bulletin = Bulletin()
        self._downstream = plan.downstream
        self._owns_downstream = False
        self._executors: dict[str, Executor] = {
            "loop": LoopExecutor(),
            "thread": ThreadExecutor(),
            "inline": InlineExecutor(),
        }
        self._artifacts = ArtifactFolders(plan.artifacts)
        self._listeners: list[Listening] = []
        self._watchdog = Watchdog()
        watch = Watch(
            foreign_commit=self._foreign_commit,
            beat_committed=lambda monotonic: self.actors.supervisor.beat_committed(monotonic),
            owner_gone=lambda owner: self.actors.alarm(owner),
            loop_blocked=self._watchdog.report,
        )
        terms = LeaseTerms(
            beat=settings.beat,
            max_loop_block=settings.max_loop_block,
            loop_block_warning=settings.loop_block_warning,
        )
        host_class = InlineHost if plan.store.inline else ThreadHost
        self._host: InlineHost | ThreadHost = host_class(plan.store, clock=plan.clock, watch=watch, terms=terms)
        self._foreign = anyio.Event()
        now = plan.clock.now
        self.views = Views(host=self._host, bulletin=self.bulletin, registry=plan.registry, now=now)
        self.controls = Controls(post=self, views=self.views, settings=settings, artifacts=self._artifacts, now=now)
        self.submissions = Submissions(
            registry=plan.registry,
            is_client=plan.is_client,
            now=plan.clock.now,
            new_id=new_id,
            max_value_bytes=settings.max_value_bytes,
        )

    def _make_actors(self) -> Actors:
        plan = self._plan
        return Actors(
            Parts(
                store=plan.store,
                host=self._host,
                registry=plan.registry,
                bulletin=self.bulletin,
                teller=LogTeller(),
                clock=plan.clock,
                settings=plan.settings,
                random=plan.random,
                identification=Identification(me=this_process(), is_gone=is_gone, new_id=new_id),
                executor_for=self._executor_for,
                downstream=self._get_downstream,
                artifacts=self._artifacts,
                new_id=new_id,
            ),
            is_client=plan.is_client,
        )

    def _executor_for(self, definition: TaskDefinition) -> Executor:
        name = definition.executor or ("loop" if definition.is_async else self._plan.default_executor)
        executor = self._executors.get(name)
        return executor if executor is not None else self._make_process_executor(name)

    def _make_process_executor(self, name: str) -> Executor:
        from taskengine.executors.process.executor import ProcessExecutor  # Late: few programs need it.

        settings = self._plan.settings
        executor = self._executors[name] = ProcessExecutor(
            max_tasks_per_child=settings.child_max_tasks,
            memory_limit=settings.child_memory_bytes,
            cpu_limit=settings.child_cpu_seconds,
        )
        return executor

    @property
    def slots_total(self) -> int:
        """Bodies that can run here at once."""
        return 0 if self._plan.is_client else self._plan.settings.concurrency

    def names(self) -> tuple[str, ...]:
        """Names that can run here."""
        return self._plan.registry.names

    def listen(self, listener: Listener, events: EventStream) -> Listening:
        """Start a listener in the engine's task group."""
        listening = Listening(listener, events)
        self._listeners.append(listening)
        spawn(self._tg, listening.run, name="taskengine listener")
        return listening

    def _get_downstream(self) -> Downstream:
        if self._downstream is None:
            from taskengine.tasks.downstream import HttpxDownstream  # Late: it loads httpx.

            self._downstream = HttpxDownstream()
            self._owns_downstream = True
        return self._downstream

    def _foreign_commit(self) -> None:
        self.actors.look_again()
        self._foreign.set()

    # --- life ---

    async def start(self) -> None:
        await self._host.open()
        self._watchdog.watch_this_thread()
        self.actors = self._make_actors()
        self._tg = anyio.create_task_group()
        await self._tg.__aenter__()
        try:
            await self.actors.start(self._tg)
            spawn(self._tg, self._notice_others, name="taskengine notices")
            if isinstance(self._host, InlineHost) and not self._plan.is_client:
                spawn(self._tg, self._host.keep_lease, name="taskengine lease")
        except BaseException as error:
            if not await self.stop(type(error), error, error.__traceback__):
                raise

    async def _notice_others(self) -> None:
        """After other processes' commits, wake those who wait here."""
        while True:
            await self._foreign.wait()
            self._foreign = anyio.Event()
            try:
                await self.views.notice_foreign_ends()
            except StoreError as error:
                logger.warning("what others have committed could not be read yet: %s", error)
                await anyio.sleep(1.0)
                self._foreign.set()
                continue
            self.bulletin.announce_commit()

    async def stop(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        interrupt: KeyboardInterrupt | None = None
        with anyio.CancelScope(shield=True):
            # Beside the host's own task: trio raises the next Ctrl-C where that one waits, and here it does no harm.
            ended = anyio.Event()
            spawn(self._tg, self._stop_actors, ended, name="taskengine stop")
            while not ended.is_set():
                try:
                    await ended.wait()
                except KeyboardInterrupt as another:
                    interrupt = another
                    self.actors.end_bodies()
            self.bulletin.close()
            with anyio.move_on_after(LAST_WORDS):
                for listening in self._listeners:
                    await listening.ended()
        self._tg.cancel_scope.cancel()
        # The host's own exception leaves as it was raised; only a cancellation is the task group's business, since it
        # may be the one by which a crashed actor ended the host's block.
        is_cancellation = isinstance(exc, anyio.get_cancelled_exc_class())
        try:
            if is_cancellation:
                return await self._tg.__aexit__(exc_type, exc, tb)
            await self._tg.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()
        if interrupt is not None and not isinstance(exc, KeyboardInterrupt):
            raise interrupt
        return None

    async def _stop_actors(self, ended: anyio.Event) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.actors.stop()
            except Exception:  # The task group must be left whatever happens; it raises what crashed an actor.
                logger.exception("the engine could not be ended in order")
            finally:
                ended.set()

    async def _close(self) -> None:
        for executor in self._executors.values():
            await executor.aclose()
        await self._artifacts.aclose()
        if self._owns_downstream and self._downstream is not None:
            await self._downstream.aclose()
        with anyio.move_on_after(5.0):
            await self._host.close()

    # --- messages ---

    def deadline(self, patience: float | None = None) -> float:
        """Return the monotonic instant after which an outage of the store is told to the caller."""
        longest = self._plan.settings.store_patience
        return self._plan.clock.monotonic() + min(longest, longest if patience is None else patience)

    async def send(self, message: Any) -> None:
        try:
            await self.actors.inbox.send(message)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            raise EngineNotRunning("it is being left") from None

    async def submit(
        self, rows: list[TaskRow], chosen: frozenset[str], *, on_full: str, full_timeout: float | None
    ) -> list[Receipt]:
        """Hand rows to the persister and wait for the commit; wait for room if asked to."""
        if on_full not in ("raise", "wait"):
            raise InvalidOption("on_full", f"{on_full!r} is neither 'raise' nor 'wait'")
        clock = self._plan.clock
        check_seconds("full_timeout", full_timeout)
        give_up = None if full_timeout is None else clock.monotonic() + full_timeout
        while True:
            commit = self.bulletin.next_commit()
            reply: Reply[list[Receipt]] = Reply()
            await self.send(Submit(rows, reply, chosen_ids=chosen, deadline=self.deadline()))
            try:
                return await reply.wait()
            except QueueFull:
                left = None if give_up is None else give_up - clock.monotonic()
                if on_full == "raise" or (left is not None and left <= 0):
                    raise
                with anyio.move_on_after(left):
                    await commit.wait()
