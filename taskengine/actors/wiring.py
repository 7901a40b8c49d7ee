"""Which streams there are, how long they are, and who closes them.

    engine ──────────────▶ inbox ──▶ persister ──▶ claims ──▶ runner (its slots)
    runner, claimer, supervisor ──▶ inbox    └──▶ control ──▶ runner
    persister ──▶ news ──▶ claimer           └──▶ alarms ──▶ supervisor
    supervisor ──▶ news, control

* `inbox` is bounded by a few thousand messages; a full one makes submitters wait. The runner and the others wait too,
  and that is no deadlock, because the persister waits for nobody.
* `claims` has room for every task that can be claimed, so that the persister's sends never wait. `control` has no bound
  of its own: what is in it are committed requests, and those come through the bounded `inbox`.
* `news` and `alarms` may drop what is overtaken by the next.
* Each actor closes its own ends when it ends. `stop` ends everybody but the persister and closes the engine's end of
  `inbox`; with no sender left, the persister writes what is in it and ends too.
"""

import contextvars
import math
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream
from attrs import define

from taskengine.actors.batch import Batch
from taskengine.actors.bulletin import Bulletin
from taskengine.actors.claimer import Claimer, LookAgain
from taskengine.actors.messages import Attempt, InterruptAll, OwnerGone, Recover, Reply
from taskengine.actors.persister import Persister
from taskengine.actors.runner import Runner
from taskengine.actors.settings import Settings
from taskengine.actors.supervisor import Identification, Supervisor
from taskengine.actors.tick import run_tick
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import spawn
from taskengine.ports import ArtifactStore, Clock, Downstream, Executor, Store, StoreHost, Teller
from taskengine.registry import Registry, TaskDefinition

logger = diagnostics("taskengine")

INBOX = 4_096

LAST_WRITES = 3.0
"""Seconds that the last ticks may take on the way out."""


@define(eq=False, kw_only=True)
class Parts:
    """What the actors are made of."""

    store: Store
    host: StoreHost
    registry: Registry
    bulletin: Bulletin
    teller: Teller
    clock: Clock
    settings: Settings
    random: Random
    identification: Identification
    executor_for: Callable[[TaskDefinition], Executor]
    downstream: Callable[[], Downstream]
    artifacts: ArtifactStore
    new_id: Callable[[], str]


class _Actor(Protocol):
    async def run(self) -> None:
        """Live."""

    def close(self) -> None:
        """Close the stream ends that belong to this actor."""


class Actors:
    """The four actors of one engine, in the task group of its `async with`."""

    def __init__(self, parts: Parts, *, is_client: bool) -> None:
        settings = parts.settings
        holdable = settings.concurrency + settings.prefetch
        self._parts = parts
        self._is_client = is_client
        self.inbox, inbox_end = anyio.create_memory_object_stream[Any](INBOX)
        claims, claims_end = anyio.create_memory_object_stream[Attempt](holdable + 16)
        self._control, control_end = anyio.create_memory_object_stream[Any](math.inf)
        self._news, news_end = anyio.create_memory_object_stream[Any](256)
        self._alarms, alarms_end = anyio.create_memory_object_stream[OwnerGone](4)
        self.persister = Persister(
            inbox=inbox_end,
            claims=claims,
            control=self._control.clone(),
            reports=self._news.clone(),
            alarms=self._alarms.clone(),
            store=parts.store,
            host=parts.host,
            registry=parts.registry,
            bulletin=parts.bulletin,
            teller=parts.teller,
            clock=parts.clock,
            settings=settings,
            random=parts.random,
            new_id=parts.new_id,
        )
        self._claimer = Claimer(news=news_end, persister=self.inbox.clone(), clock=parts.clock, settings=settings)
        self._runner = Runner(
            claims=claims_end,
            control=control_end,
            persister=self.inbox.clone(),
            news=self._news.clone(),
            registry=parts.registry,
            executor_for=parts.executor_for,
            downstream=parts.downstream,
            artifacts=parts.artifacts,
            clock=parts.clock,
            settings=settings,
            context=contextvars.copy_context(),
        )
        self.supervisor = Supervisor(
            persister=self.inbox.clone(),
            control=self._control.clone(),
            news=self._news.clone(),
            alarms=alarms_end,
            host=parts.host,
            names=lambda: parts.registry.names,
            identification=parts.identification,
            clock=parts.clock,
            settings=settings,
        )
        self._by_name: dict[str, _Actor] = {
            "persister": self.persister,
            "runner": self._runner,
            "claimer": self._claimer,
            "supervisor": self.supervisor,
        }
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._ended = {name: anyio.Event() for name in self._by_name}

    async def start(self, tg: TaskGroup) -> None:
        """Start the actors; return when the engine has its identity and dead predecessors are settled."""
        self._launch(tg, "persister")
        if self._is_client:
            return
        await self.supervisor.start()
        for name in ("runner", "claimer", "supervisor"):
            self._launch(tg, name)

    def _launch(self, tg: TaskGroup, name: str) -> None:
        """Start an actor that lives until we end it: a cancelled host first gives back what it holds."""
        scope = self._scopes[name] = anyio.CancelScope(shield=True)
        actor = self._by_name[name]

        async def live() -> None:
            try:
                with scope:
                    await actor.run()
            finally:
                actor.close()
                self._ended[name].set()

        spawn(tg, live, name=f"taskengine {name}")

    def look_again(self) -> None:
        """Hear from the host that another process has committed; on the event loop, must not raise."""
        _send_or_drop(self._news, LookAgain())

    def alarm(self, owner: str) -> None:
        """Hear from the host that an owner's row is gone; on the event loop, must not raise."""
        _send_or_drop(self._alarms, OwnerGone(owner))

    def end_bodies(self) -> None:
        """Have the runner end every body now."""
        _send_or_drop(self._control, InterruptAll("shutdown"))

    async def stop(self) -> None:
        """End the actors in order: give back, end everybody but the persister, write what is left.

        Whatever has crashed, each step is bounded, and what this engine holds is given back.
        """
        is_whole = not any(ended.is_set() for ended in self._ended.values())
        if not self._is_client and is_whole:
            async with anyio.create_task_group() as tg:
                tg.start_soon(self._end_with_persister, tg.cancel_scope)
                await self.supervisor.stop()
                tg.cancel_scope.cancel()
        for name, scope in self._scopes.items():
            if name != "persister":
                scope.cancel()
        for stream in (self.inbox, self._news, self._alarms, self._control):
            stream.close()
        for name, actor in self._by_name.items():
            if name not in self._scopes:
                actor.close()  # It was never launched: a client's, or the start was cut short.
        with anyio.move_on_after(LAST_WRITES):
            for name in self._scopes:
                await self._ended[name].wait()
        for scope in self._scopes.values():
            scope.cancel()
        if self.supervisor.owner is not None:
            await self._release_by_force(self.supervisor.owner)

    async def _release_by_force(self, owner: str) -> None:
        """Settle our own tasks as those of a dead owner, for want of actors that could give them back."""
        parts = self._parts
        parts.host.renew(None)
        runner_ended = "runner" not in self._scopes or self._ended["runner"].is_set()
        recovery = Recover(owner, None, proven_gone=runner_ended, reply=Reply())
        batch = Batch(now=parts.clock.now(), new_id=parts.new_id, recoveries=[recovery])
        ageing_step_us = round(parts.settings.ageing_step * 1_000_000)
        try:
            with anyio.move_on_after(LAST_WRITES):
                await parts.host.write(lambda: run_tick(parts.store, batch, ageing_step_us))
        except Exception as error:  # what crashed the persister may well be met again
            logger.warning("what this engine held could not be given back; the next one recovers it: %s", error)

    async def _end_with_persister(self, scope: anyio.CancelScope) -> None:
        # Nothing can be given back through a persister that has crashed.
        await self._ended["persister"].wait()
        scope.cancel()


def _send_or_drop(stream: MemoryObjectSendStream[Any], message: Any) -> None:
    with suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
        stream.send_nowait(message)
