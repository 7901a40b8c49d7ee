"""The runner: a fixed pool of slots in which bodies run.

A claimed attempt comes in on a stream, a free slot takes it, an executor runs its body, and the outcome goes to the
persister. The slot is what is bounded by `concurrency`. It is also what a bad body can cost: one that leaks a scope or
that cannot be ended spoils its slot, which is replaced; neighbours and the engine go on.

Why a body is being ended is decided here, before anything is cancelled, and kept in the attempt (`cause`): from an
exception alone a cancel, a timeout and a body that raises CancelledError for reasons of its own look alike.
"""

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from taskengine.actors.attempts import describe_abandoned, describe_end, describe_error, out_of_time, prepare
from taskengine.actors.messages import (
    Attempt,
    Began,
    Finished,
    GiveBack,
    Interrupt,
    Pause,
    PauseAnswer,
    Said,
    SlotsLeft,
    StopTaking,
    Unpause,
)
from taskengine.actors.overseer import Live, Overseer, Slot
from taskengine.actors.settings import Settings
from taskengine.actors.voices import EchoingVoice, LocalVoice
from taskengine.codec import NotJson
from taskengine.context import TaskContext
from taskengine.core.decide import AttemptOutcome, OutcomeKind
from taskengine.core.model import TaskRow, WishKind
from taskengine.core.timeouts import NO_TIMEOUTS, Timeouts
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import run_soon, spawn
from taskengine.ports import ArtifactStore, Call, CallFacts, Clock, Downstream, Executor
from taskengine.records import load_timeouts
from taskengine.registry import Registry, TaskDefinition
from taskengine.signals import Signals

logger = diagnostics("taskengine")

ANNOUNCE_AFTER = 0.02
"""Seconds after which `running` is stored on its own; a shorter body's is stored with its outcome."""

KEEP_EVERY = 0.1
"""Seconds between writes of what bodies say; said faster, the newest progress counts and lines come together."""


IN_A_ROW = 8
"""Attempts that a slot takes without letting others run in between, where the bodies themselves never wait. Each pass
through the loop costs about as much as a short body."""


class Runner:
    """The actor. `run` is its life; everything else comes in as messages."""

    def __init__(
        self,
        *,
        claims: MemoryObjectReceiveStream[Attempt],
        control: MemoryObjectReceiveStream[Any],
        persister: MemoryObjectSendStream[Any],
        news: MemoryObjectSendStream[Any],
        registry: Registry,
        executor_for: Callable[[TaskDefinition], Executor],
        downstream: Callable[[], Downstream],
        artifacts: ArtifactStore,
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
        self._artifacts = artifacts
        self._clock = clock
        self._settings = settings
        self._context = context
        self._live: dict[int, Live] = {}
        self._begun: deque[Attempt] = deque()
        self._has_begun = anyio.Event()
        self._speakers: deque[Live] = deque()
        self._was_spoken = anyio.Event()
        self._overseer = Overseer(
            clock=clock, settings=settings, give_up=self._abandon, pause_missed=self._tell_of_missed_pause
        )
        self._is_taking = True
        self._disowned: str | None = None
        """The identity whose lease was taken: whoever has it now has what was claimed under it as well."""
        self._lost_slots = 0
        self._slots_left = settings.concurrency

    async def run(self) -> None:
        """Serve until the stream of claims is closed and the bodies have ended.

        Cancellation: ends the bodies without a report; only for an engine that is going down.
        """
        self._soon = run_soon()
        self._thread = threading.get_ident()
        async with anyio.create_task_group() as tg:
            self._tasks = tg
            async with anyio.create_task_group() as slots:
                self._slots = slots
                for number in range(self._settings.concurrency):
                    spawn(slots, self._keep_slot, Slot(number), name=f"taskengine slot {number}")
                # With every slot lost there is nobody to run a body, but bodies to end and claims to give back.
                spawn(slots, anyio.sleep_forever, name="taskengine slots")
                spawn(tg, self._obey, name="taskengine runner control")
                spawn(tg, self._announce, name="taskengine announcer")
                spawn(tg, self._listen, name="taskengine listener")
                spawn(tg, self._overseer.run, name="taskengine overseer")
            tg.cancel_scope.cancel()

    def close(self) -> None:
        """Close the stream ends that belong to this actor."""
        for stream in (self._claims, self._control, self._persister, self._news):
            stream.close()

    # --- slots ---

    async def _keep_slot(self, slot: Slot) -> None:
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

    async def _serve(self, slot: Slot) -> bool:
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

    async def _attempt(self, attempt: Attempt, slot: Slot) -> bool:
        """Run one attempt to its report; tell whether the slot is spoiled."""
        is_disowned = self._disowned is not None and attempt.row.owner == self._disowned
        if attempt.cause is not None or is_disowned or not self._is_taking:
            await self._report(attempt, self._unbegun(attempt))
            return False
        row, now = attempt.row, self._clock.now()
        definition = self._registry.get(row.name)
        prepared = out_of_time(row, now) or prepare(definition, row, self._settings.max_error_bytes, now)
        if isinstance(prepared, AttemptOutcome):
            await self._report(attempt, prepared)
            return False
        live = self._launch(attempt, slot, definition, prepared.args, prepared.kwargs, prepared.metadata)
        self._live[row.key] = live
        attempt.began_at = self._clock.now()
        attempt.began_monotonic = self._clock.monotonic()
        if not self._begun:
            self._has_begun.set()
        self._begun.append(attempt)
        if live.voice is not None:
            self._overseer.watch(live)
        end = await live.body.run()
        if attempt.is_ended:
            return True  # It was given up, which has been told.
        self._live.pop(row.key, None)
        timeouts = _timeouts_of(row, definition)
        outcome = describe_end(end, attempt, definition, timeouts, self._clock.now(), self._settings)
        end.error = None  # Its traceback holds the frame that holds `end`: a cycle with all the body's locals.
        await self._report(attempt, outcome)
        if live.voice is not None and live.voice.has_artifacts:
            self._clean_up(attempt, definition, outcome)
        return end.is_slot_spoiled

    def _launch(
        self,
        attempt: Attempt,
        slot: Slot,
        definition: TaskDefinition,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metadata: dict[str, Any],
    ) -> Live:
        """Make the body; nothing of it runs yet."""
        row = attempt.row
        executor = self._executor_for(definition)
        signals = Signals()
        timeouts = _timeouts_of(row, definition)
        has_clocks = timeouts is not NO_TIMEOUTS or row.deadline_at is not None
        live: Live
        voice = None
        if definition.takes_context or has_clocks or executor.wants_facts:
            voice = (EchoingVoice if executor.wants_facts else LocalVoice)(
                row,
                timeouts,
                clock=self._clock,
                settings=self._settings,
                heard=lambda: self._hear(live),
                make_artifact_dir=partial(self._artifacts.make, row.id, row.attempt),
            )
            attempt.sayings = voice
            if definition.takes_context:
                context = self._context_for(attempt, metadata, signals, voice)
                args = (context, *args)
        call = Call(
            task_id=row.id,
            name=row.name,
            function=definition.function,
            args=args,
            kwargs=kwargs,
            context=self._context.copy(),
            signals=signals,
        )
        if executor.wants_facts and voice is not None:
            call.facts = self._facts_for(row, definition, metadata, voice)
        live = Live(attempt, executor.start(call), signals, slot, voice, definition.takes_context)
        return live

    def _context_for(
        self, attempt: Attempt, metadata: dict[str, Any], signals: Signals, voice: LocalVoice
    ) -> TaskContext:
        row = attempt.row
        context = TaskContext(
            task_id=row.id,
            name=row.name,
            attempt=row.attempt,
            metadata=metadata,
            idempotency_key=row.send_key or row.id,
            signals=signals,
            voice=voice,
            downstream=self._downstream(),
        )
        attempt.facts = context.facts
        return context

    def _facts_for(
        self, row: TaskRow, definition: TaskDefinition, metadata: dict[str, Any], voice: LocalVoice
    ) -> CallFacts:
        return CallFacts(
            task_id=row.id,
            name=row.name,
            attempt=row.attempt,
            takes_context=definition.takes_context,
            arguments=row.args,
            metadata=metadata,
            idempotency_key=row.send_key or row.id,
            voice=voice,
            max_value_bytes=self._settings.max_value_bytes,
            max_error_bytes=self._settings.max_error_bytes,
            kill_grace=self._settings.kill_grace,
        )

    def _clean_up(self, attempt: Attempt, definition: TaskDefinition, outcome: AttemptOutcome) -> None:
        kept = definition.keep_artifacts or self._settings.keep_artifacts
        if kept == "never" or (kept == "failed" and outcome.kind is OutcomeKind.RETURNED):
            spawn(self._tasks, self._artifacts.clean, attempt.row.id, attempt.row.attempt, name="taskengine cleaner")

    def _unbegun(self, attempt: Attempt) -> AttemptOutcome:
        reason = attempt.cause if attempt.cause == "held" else None
        return AttemptOutcome(OutcomeKind.UNBEGUN, self._clock.now(), reason=reason)

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

    # --- what bodies say ---

    def _hear(self, live: Live) -> None:
        """Note that a body has said something; on any thread."""
        self._speakers.append(live)
        if threading.get_ident() == self._thread:
            self._was_spoken.set()
        else:
            with suppress(RuntimeError):  # The loop has ended under a thread that goes on.
                self._soon(self._ring)

    def _ring(self) -> None:
        self._was_spoken.set()

    async def _listen(self) -> None:
        """Tell the persister what bodies say: pauses at once, the rest as it comes together."""
        waiting: dict[int, Live] = {}
        flush_at: float | None = None
        while True:
            wait = None if flush_at is None else max(0.0, flush_at - self._clock.monotonic())
            with anyio.move_on_after(wait):
                await self._was_spoken.wait()
            self._was_spoken = anyio.Event()
            while self._speakers:
                live = self._speakers.popleft()
                assert live.voice is not None, "only a voice is heard"
                if live.voice.has_pause_news:
                    live.voice.has_pause_news = False
                    await self._persister.send(PauseAnswer(live.attempt, is_reached=True, at=self._clock.now()))
                    if not self._is_taking:
                        self._end_paused(live)
                if live.voice.has_news:
                    waiting[live.attempt.row.key] = live
                self._overseer.watch(live)
            if waiting and flush_at is None:
                flush_at = self._clock.monotonic() + KEEP_EVERY
            elif flush_at is not None and flush_at <= self._clock.monotonic():
                await self._persister.send(Said([live.attempt for live in waiting.values()]))
                waiting.clear()
                flush_at = None

    async def _tell_of_missed_pause(self, attempt: Attempt) -> None:
        await self._persister.send(PauseAnswer(attempt, is_reached=False, at=self._clock.now()))

    # --- ending bodies ---

    async def _obey(self) -> None:
        async for message in self._control:
            if isinstance(message, Interrupt):
                await self._interrupt(message)
            elif isinstance(message, GiveBack):
                if not message.attempt.is_ended and message.attempt.began_at is None:
                    await self._report(message.attempt, self._unbegun(message.attempt))
            elif isinstance(message, Pause | Unpause):
                live = self._live_of(message.attempt)
                if live is not None:
                    (self._overseer.pause if isinstance(message, Pause) else self._overseer.unpause)(live)
            elif isinstance(message, StopTaking):
                self._stop_taking()
            else:
                self._disowned = message.owner or self._disowned
                await self._end_all(message.cause)

    def _live_of(self, attempt: Attempt) -> Live | None:
        live = self._live.get(attempt.row.key)
        return live if live is not None and live.attempt is attempt else None

    async def _interrupt(self, message: Interrupt) -> None:
        attempt, wish = message.attempt, message.wish
        attempt.cause = wish.kind.value
        live = self._live_of(attempt)
        if live is None:
            if not attempt.is_ended:
                await self._report(attempt, self._unbegun(attempt))
        elif wish.kind is WishKind.STOP:
            self._overseer.stop(live, wish.reason)
        else:
            self._overseer.force(live, wish.reason)

    def _stop_taking(self) -> None:
        self._is_taking = False
        spawn(self._tasks, self._give_back, name="taskengine give back")
        for live in list(self._live.values()):
            if live.is_paused:
                self._end_paused(live)

    def _end_paused(self, live: Live) -> None:
        """End a paused body at a shutdown: it would only wait for the grace to end."""
        live.attempt.cause = live.attempt.cause or "shutdown"
        self._overseer.force(live, "shutdown")

    async def _give_back(self) -> None:
        """Report every claim that comes in from now on, beside the slots, which may all be busy."""
        async for attempt in self._claims:
            if not attempt.is_ended:
                await self._report(attempt, AttemptOutcome(OutcomeKind.UNBEGUN, self._clock.now()))

    async def _end_all(self, cause: str) -> None:
        for live in list(self._live.values()):
            # A cancel that is asked but not stored yet is overtaken; one that is stored is carried out.
            if live.attempt.wish is None or live.attempt.wish.kind is WishKind.PAUSE:
                live.attempt.cause = cause
            self._overseer.force(live, cause)

    async def _abandon(self, live: Live) -> None:
        attempt = live.attempt
        place = live.body.where()
        del self._live[attempt.row.key]
        await self._report(attempt, describe_abandoned(attempt, place, self._clock.now()))
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
            spawn(self._slots, self._keep_slot, Slot(live.slot.number), name=f"taskengine slot {live.slot.number}")

    async def _do_without(self, slot: Slot) -> None:
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


def _timeouts_of(row: TaskRow, definition: TaskDefinition) -> Timeouts:
    """Return what holds for this task; a text that cannot be read means what the definition says."""
    if row.timeouts is not None:
        with suppress(NotJson):
            return _read_timeouts(row.timeouts)
    return definition.timeouts or NO_TIMEOUTS


_read_timeouts = lru_cache(256)(load_timeouts)
"""Most tasks have the timeouts of their definition, in the same words."""
