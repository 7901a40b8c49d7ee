"""The runner: a fixed pool of slots in which bodies run.

A claimed attempt comes in on a stream, a free slot takes it, an executor runs its body, and the outcome goes to the
persister. The slot is what is bounded by `concurrency`. It is also what a bad body can cost: one that leaks a scope or
that cannot be ended spoils its slot, which is replaced; neighbours and the engine go on.

Why a body is being ended is decided here, before anything is cancelled, and kept in the attempt (`cause`): from an
exception alone a cancel, a timeout and a body that raises CancelledError for reasons of its own look alike.
"""

import contextvars
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define

from taskengine.actors.attempts import describe_end, describe_error, prepare
from taskengine.actors.messages import Attempt, Began, Finished, Interrupt, InterruptAll, SlotsLeft, StopTaking
from taskengine.actors.settings import Settings
from taskengine.context import StopFlag, TaskContext
from taskengine.core.decide import AttemptOutcome, OutcomeKind
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import spawn
from taskengine.ports import Body, Call, Clock, Downstream, Executor
from taskengine.registry import Registry, TaskDefinition

logger = diagnostics("taskengine")

ANNOUNCE_AFTER = 0.02
"""Seconds after which `running` is stored on its own; a shorter body's is stored with its outcome."""


IN_A_ROW = 8
"""Attempts that a slot takes without letting others run in between, where the bodies themselves never wait. Each pass
through the loop costs about as much as a short body."""


@define(eq=False)
class _Live:
    """An attempt whose body is at work."""

    attempt: Attempt
    body: Body
    stop: StopFlag
    slot: "_Slot"
    kill_at: float | None = None


@define(eq=False)
class _Slot:
    """A place for one body at a time."""

    number: int
    is_lost: bool = False
    """Its body could not be ended and another slot has taken its place."""


class Runner:
    """The actor. `run` is its life; everything else comes in as messages."""

    def __init__(
        self,
        *,
        claims: MemoryObjectReceiveStream[Attempt],
        control: "MemoryObjectReceiveStream[Interrupt | InterruptAll | StopTaking]",
        persister: MemoryObjectSendStream[Any],
        news: MemoryObjectSendStream[Any],
        registry: Registry,
        executor_for: Callable[[TaskDefinition], Executor],
        downstream: Callable[[], Downstream],
        clock: Clock,
        settings: Settings,
        context: contextvars.Context,
    ) -> None:
        self._claims = claims
        self._control = control
        self._persister = persister
        self._news = news
        self._registry = registry
        self._executor_for = executor_for
        self._downstream = downstream
        self._clock = clock
        self._settings = settings
        self._context = context
        self._live: dict[int, _Live] = {}
        self._begun: deque[Attempt] = deque()
        self._has_begun = anyio.Event()
        self._doomed = anyio.Event()
        self._is_taking = True
        self._cause: str | None = None
        self._lost_slots = 0
        self._slots_left = settings.concurrency

    async def run(self) -> None:
        """Serve until the stream of claims is closed and the bodies have ended.

        Cancellation: ends the bodies without a report; only for an engine that is going down.
        """
        async with anyio.create_task_group() as tg:
            self._tasks = tg
            async with anyio.create_task_group() as slots:
                self._slots = slots
                for number in range(self._settings.concurrency):
                    spawn(slots, self._keep_slot, _Slot(number), name=f"taskengine slot {number}")
                # With every slot lost there is nobody to run a body, but bodies to end and claims to give back.
                spawn(slots, anyio.sleep_forever, name="taskengine slots")
                spawn(tg, self._obey, name="taskengine runner control")
                spawn(tg, self._announce, name="taskengine announcer")
                spawn(tg, self._reap, name="taskengine reaper")
            tg.cancel_scope.cancel()

    def close(self) -> None:
        """Close the stream ends that belong to this actor."""
        for stream in (self._claims, self._control, self._persister, self._news):
            stream.close()

    # --- slots ---

    async def _keep_slot(self, slot: _Slot) -> None:
        """Serve in a task of its own, and again in a new one when a body has spoiled it."""
        is_done = False

        async def serve() -> None:
            nonlocal is_done
            is_done = await self._serve(slot)

        while not is_done:
            try:
                async with anyio.create_task_group() as tg:
                    spawn(tg, serve, name=f"taskengine slot {slot.number}")
            except Exception as error:
                # On trio a task group that a body left open comes to light when its task ends.
                logger.warning("a body left scopes or task groups open; its slot was replaced")
                logger.debug("what came of the scopes that were left open", exc_info=error)

    async def _serve(self, slot: _Slot) -> bool:
        """Take attempts until the stream ends (True) or this task must not go on (False)."""
        in_a_row = 0
        while True:
            try:
                attempt = self._claims.receive_nowait() if in_a_row < IN_A_ROW else await self._claims.receive()
            except anyio.WouldBlock:
                in_a_row = IN_A_ROW
                continue
            except anyio.EndOfStream:
                return True
            in_a_row = 0 if in_a_row == IN_A_ROW else in_a_row + 1
            if attempt.is_ended:
                continue
            try:
                is_spoiled = await self._attempt(attempt, slot)
            except Exception as error:  # trouble of ours, or an exception that cannot even be looked at
                is_spoiled = True
                await self._report_trouble(attempt, error)
            if slot.is_lost:
                return True
            if is_spoiled:
                return False

    async def _attempt(self, attempt: Attempt, slot: _Slot) -> bool:
        """Run one attempt to its report; tell whether the slot is spoiled."""
        if attempt.cause is not None or not self._is_taking:
            await self._report(attempt, AttemptOutcome(OutcomeKind.UNBEGUN, self._clock.now()))
            return False
        definition = self._registry.get(attempt.row.name)
        prepared = prepare(definition, attempt.row, self._settings.max_error_bytes, self._clock.now())
        if isinstance(prepared, AttemptOutcome):
            await self._report(attempt, prepared)
            return False
        stop = StopFlag()
        args, kwargs = prepared.args, prepared.kwargs
        if definition.takes_context:
            args = (self._context_for(attempt, prepared.metadata, stop), *args)
        call = Call(function=definition.function, args=args, kwargs=kwargs, context=self._context.copy())
        body = self._executor_for(definition).start(call)
        live = _Live(attempt, body, stop, slot)
        self._live[attempt.row.key] = live
        attempt.began_at = self._clock.now()
        attempt.began_monotonic = self._clock.monotonic()
        if not self._begun:
            self._has_begun.set()
        self._begun.append(attempt)
        end = await body.run()
        if attempt.is_ended:
            return True  # The reaper gave it up and has told so.
        self._live.pop(attempt.row.key, None)
        outcome = describe_end(end, attempt, definition, self._clock.now(), self._settings)
        end.error = None  # Its traceback holds the frame that holds `end`: a cycle with all the body's locals.
        await self._report(attempt, outcome)
        return end.is_slot_spoiled

    def _context_for(self, attempt: Attempt, metadata: dict[str, Any], stop: StopFlag) -> TaskContext:
        row = attempt.row
        context = TaskContext(
            task_id=row.id,
            name=row.name,
            attempt=row.attempt,
            metadata=metadata,
            idempotency_key=row.send_key or row.id,
            stop=stop,
            downstream=self._downstream(),
        )
        attempt.facts = context.facts
        return context

    async def _report_trouble(self, attempt: Attempt, error: Exception) -> None:
        self._live.pop(attempt.row.key, None)
        if attempt.is_ended:
            return
        number, limit = attempt.row.attempt, self._settings.max_error_bytes
        await self._report(attempt, describe_error(error, number, self._clock.now(), attempt.began_at, limit))

    async def _report(self, attempt: Attempt, outcome: AttemptOutcome) -> None:
        attempt.is_ended = True
        message = Finished(attempt, outcome)
        try:
            self._persister.send_nowait(message)
        except anyio.WouldBlock:
            with anyio.CancelScope(shield=True):
                await self._persister.send(message)

    # --- ending bodies ---

    async def _obey(self) -> None:
        async for message in self._control:
            if isinstance(message, Interrupt):
                message.attempt.cause = message.wish.kind.value
                await self._end(message.attempt, message.wish.reason)
            elif isinstance(message, StopTaking):
                self._is_taking = False
                spawn(self._tasks, self._give_back, name="taskengine give back")
            else:
                await self._end_all(message.cause)

    async def _give_back(self) -> None:
        """Report every claim that comes in from now on, beside the slots, which may all be busy."""
        async for attempt in self._claims:
            if not attempt.is_ended:
                await self._report(attempt, AttemptOutcome(OutcomeKind.UNBEGUN, self._clock.now()))

    async def _end_all(self, cause: str) -> None:
        for live in list(self._live.values()):
            # A cancel that is asked but not stored yet is overtaken; one that is stored is carried out.
            if live.attempt.wish is None:
                live.attempt.cause = cause
            await self._end(live.attempt, cause)

    async def _end(self, attempt: Attempt, reason: str | None) -> None:
        """Begin to end an attempt: at once if its body has not begun, else by force and with a deadline."""
        if attempt.is_ended:
            return
        live = self._live.get(attempt.row.key)
        if live is None or live.attempt is not attempt:
            await self._report(attempt, AttemptOutcome(OutcomeKind.UNBEGUN, self._clock.now()))
            return
        live.stop.set(reason)
        if live.kill_at is None:
            live.kill_at = self._clock.monotonic() + self._settings.kill_grace
            self._doomed.set()
        live.body.interrupt()

    async def _reap(self) -> None:
        """Give up on bodies that have not ended `kill_grace` after they were told to."""
        while True:
            await self._doomed.wait()
            doomed = [live for live in self._live.values() if live.kill_at is not None]
            if not doomed:
                self._doomed = anyio.Event()
                continue
            now = self._clock.monotonic()
            for live in doomed:
                assert live.kill_at is not None, "only doomed ones were chosen"
                if live.kill_at <= now:
                    await self._abandon(live)
            await anyio.sleep(min(0.05, self._settings.kill_grace / 4 or 0.05))

    async def _abandon(self, live: _Live) -> None:
        attempt = live.attempt
        place = live.body.where()
        del self._live[attempt.row.key]
        outcome = AttemptOutcome(
            OutcomeKind.ABANDONED,
            self._clock.now(),
            began_at=attempt.began_at,
        )
        await self._report(attempt, outcome)
        live.slot.is_lost = True
        live.body.abandon()
        self._lost_slots += 1
        logger.error(
            "the body of task %s (%s) did not end within %.1f s and was abandoned at %s; %d slots were replaced so far",
            attempt.row.id,
            attempt.row.name,
            self._settings.kill_grace,
            place,
            self._lost_slots,
        )
        if self._lost_slots > self._settings.max_spare_slots:
            await self._do_without(live.slot)
        elif self._is_taking:
            spawn(self._slots, self._keep_slot, _Slot(live.slot.number), name=f"taskengine slot {live.slot.number}")

    async def _do_without(self, slot: _Slot) -> None:
        """Go on with one slot less; with none left, give back what is claimed."""
        self._slots_left -= 1
        logger.error("slot %d is not replaced any more; %d are left", slot.number, self._slots_left)
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
            self._news.send_nowait(SlotsLeft(self._slots_left))
        if self._slots_left == 0:
            spawn(self._tasks, self._give_back, name="taskengine give back")

    # --- telling of bodies that last ---

    async def _announce(self) -> None:
        """Send `Began` for bodies that have been at work for a while."""
        while True:
            if not self._begun:
                self._has_begun = anyio.Event()
                await self._has_begun.wait()
            wait = self._begun[0].began_monotonic + ANNOUNCE_AFTER - self._clock.monotonic()
            if wait > 0:
                await anyio.sleep(wait)
            horizon = self._clock.monotonic() - ANNOUNCE_AFTER
            lasting = []
            while self._begun and self._begun[0].began_monotonic <= horizon:
                attempt = self._begun.popleft()
                if not attempt.is_ended:
                    lasting.append(attempt)
            if lasting:
                await self._persister.send(Began(lasting))
