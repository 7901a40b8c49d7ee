"""The supervisor: identity, recovery, and an orderly end.

It registers this engine as an owner before anything is claimed, settles what dead owners have left (at start, and
again and again, since one look can fail), takes a new identity when somebody has taken this one's lease, and on the
way out gives everything back: stop claiming, grace, end the bodies, release, drop the owner's row. Each of those steps
has a deadline.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define

from taskengine.actors.claimer import StopClaiming
from taskengine.actors.messages import InterruptAll, OwnerGone, Quiesce, Recover, Register, Reply, StopTaking
from taskengine.actors.settings import Settings
from taskengine.core.errors import EngineNotRunning, StoreError
from taskengine.core.leases import LeaseWatch, ProcessIdentity, process_of
from taskengine.core.model import OwnerRow
from taskengine.diagnostics import diagnostics
from taskengine.ports import Clock, StoreHost

logger = diagnostics("taskengine")

LOOK_EVERY = 1.0
"""Seconds between looks for dead owners."""

MARGIN = 2.0
"""Seconds that a step of the shutdown may take beyond what it has to wait for."""


@define(eq=False)
class Identification:
    """How this process tells who it is and who else is alive; injected, since it asks the operating system."""

    me: ProcessIdentity
    is_gone: Callable[[ProcessIdentity], bool]
    """Whether a process that is comparable with `me` is known to be gone."""
    new_id: Callable[[], str]


class Supervisor:
    """The actor. `start` before the others run, `run` beside them, `stop` at the end."""

    def __init__(
        self,
        *,
        persister: MemoryObjectSendStream[Any],
        control: MemoryObjectSendStream[Any],
        news: MemoryObjectSendStream[Any],
        host: StoreHost,
        names: Callable[[], tuple[str, ...]],
        identification: Identification,
        clock: Clock,
        settings: Settings,
        alarms: MemoryObjectReceiveStream[OwnerGone],
    ) -> None:
        self._persister = persister
        self._control = control
        self._news = news
        self._host = host
        self._names = names
        self._identification = identification
        self._clock = clock
        self._settings = settings
        self._alarms = alarms
        self._watch = LeaseWatch(lease=settings.lease)
        self.owner: str | None = None

    def beat_committed(self, monotonic: float) -> None:
        """Hear from the host that the lease was renewed."""
        self._watch.own_beat_committed(monotonic)

    # --- life ---

    async def start(self) -> None:
        """Take an identity and settle what dead processes of this host have left."""
        await self._register()
        await self._recover_once()

    async def run(self) -> None:
        """Look after leases until cancelled.

        Cancellation: at once.
        """
        while True:
            with anyio.move_on_after(LOOK_EVERY):
                alarm = await self._alarms.receive()
                if alarm.owner == self.owner:
                    await self._begin_anew()
                continue
            await self._recover_once()

    async def _register(self) -> None:
        me = self._identification.me
        self.owner = self._identification.new_id()
        row = OwnerRow(
            id=self.owner,
            boot_id=me.boot_id,
            pid_namespace=me.pid_namespace,
            pid=me.pid,
            process_started=me.started,
            beat=0,
            started_at=self._clock.now(),
            names=self._names(),
        )
        reply: Reply[None] = Reply()
        await self._persister.send(Register(row, reply))
        await reply.wait()
        self._host.renew(self.owner)

    async def _begin_anew(self) -> None:
        """Somebody took our lease: what runs here is theirs now, so end it, and go on under a new identity."""
        with anyio.CancelScope(shield=True):  # half an identity is worse than waiting for the rest
            logger.error("this engine's lease was taken by another; its bodies are ended and it begins anew")
            self._host.renew(None)
            await self._control.send(InterruptAll("owner_gone", self.owner))
            await self._register()

    def close(self) -> None:
        """Close the stream ends that belong to this actor."""
        self._persister.close()
        self._control.close()
        self._news.close()
        self._alarms.close()

    # --- recovery ---

    async def _recover_once(self) -> None:
        """Look at all owners and have the dead ones' tasks settled; errors are for the next look."""
        try:
            owners = await self._host.read(lambda reader: reader.owners())
            ownerless = await self._host.read(lambda reader: reader.ownerless())
        except StoreError as error:
            logger.warning("owners could not be read: %s", error)
            return
        self._watch.forget_all_but({owner.id for owner in owners})
        for owner in owners:
            if owner.id != self.owner:
                await self._judge(owner)
        for owner_id in ownerless:
            if owner_id != self.owner:
                await self._recover(owner_id, None, proven_gone=False)

    async def _judge(self, owner: OwnerRow) -> None:
        them = process_of(owner)
        identification = self._identification
        if identification.me.is_comparable(them) and identification.is_gone(them):
            await self._recover(owner.id, None, proven_gone=True)
        elif self._watch.is_expired(owner.id, owner.beat):
            await self._recover(owner.id, owner.beat, proven_gone=False)

    async def _recover(self, owner: str, beat: int | None, *, proven_gone: bool) -> None:
        reply: Reply[int] = Reply()
        await self._persister.send(Recover(owner, beat, proven_gone, reply))
        try:
            count = await reply.wait()
        except StoreError as error:
            logger.warning("the tasks of dead owner %s could not be settled yet: %s", owner, error)
            return
        if count:
            logger.warning("settled %d tasks of dead owner %s", count, owner)

    # --- the end ---

    async def stop(self) -> None:
        """Give everything back, within bounds.

        Cancellation: shielded by the engine; its length is bounded by the graces.
        """
        await self._news.send(StopClaiming())
        await self._control.send(StopTaking())
        if not await self._quiesce(self._settings.shutdown_grace):
            await self._control.send(InterruptAll("shutdown"))
            if not await self._quiesce(self._settings.kill_grace + MARGIN):
                logger.error("some tasks could not be given back; the next engine recovers them")
        self._host.renew(None)
        if self.owner is not None:
            with anyio.move_on_after(MARGIN), suppress(EngineNotRunning, StoreError, anyio.BrokenResourceError):
                reply: Reply[int] = Reply()
                await self._persister.send(Recover(self.owner, None, proven_gone=False, reply=reply))
                await reply.wait()
                self.owner = None

    async def _quiesce(self, seconds: float) -> bool:
        reply: Reply[None] = Reply()
        with anyio.move_on_after(seconds), suppress(EngineNotRunning, anyio.BrokenResourceError):
            await self._persister.send(Quiesce(reply))
            await reply.wait()
            return True
        return False
