"""The persister: the only actor that writes.

Each tick drains the inbox, decides what follows from every message, and applies all of it in one transaction (group
commit). Only after the commit are answers given, claimed attempts handed to the runner, interrupts sent and facts
told, so that nothing anybody hears of can be undone by a crash.

A store that cannot be used for now is an outage and no crash: claiming stops, outcomes are kept, the same batch is
tried again with growing pauses, and submitters hear of it when their patience ends. An item that the store refuses
fails alone: the batch is replayed by halves.

The persister never waits for the runner (the stream of claims has room for all that can be claimed), so the two cannot
block each other.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from taskengine import codec, records
from taskengine.actors.batch import Batch, ClaimOrder, KnownHolds, Said, Settlement, TaskDefaults, TickResult
from taskengine.actors.bulletin import Bulletin
from taskengine.actors.messages import (
    Attempt,
    Barrier,
    Began,
    Credit,
    Delete,
    Finished,
    OwnerGone,
    PauseAnswer,
    PutHold,
    Quiesce,
    Recover,
    Register,
    ReleaseHold,
    Reply,
    Request,
    Requeue,
    Submit,
    TickReport,
    Wake,
)
from taskengine.actors.messages import Said as SaidMessage
from taskengine.actors.publisher import LiveAttempts, Publisher, send_or_drop
from taskengine.actors.settings import Settings
from taskengine.actors.tick import as_request, run_tick
from taskengine.core.decide import Decision, Limits, decide_outcome, decide_pause_answer, enact
from taskengine.core.errors import EngineNotRunning, StoreError, StoreFull, StoreGone, StoreUnavailable
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import LogRow, SideRow
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import NO_TIMEOUTS
from taskengine.diagnostics import diagnostics
from taskengine.ports import Clock, Store, StoreHost, Teller
from taskengine.registry import Registry

logger = diagnostics("taskengine")

MAX_BATCH = 2_000
"""Messages in one tick; a bound on how long it holds the write lock."""

GATHERING_PASSES = 6

LOCK_IS_OUTAGE = 3
"""Tries in a row that fail before it is worth a word; another writer's transaction is no outage."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between tries while the store cannot be used."""


class Persister:
    """The actor. `run` is its life; everything else comes in as messages."""

    def __init__(
        self,
        *,
        inbox: MemoryObjectReceiveStream[Any],
        claims: MemoryObjectSendStream[Attempt],
        control: MemoryObjectSendStream[Any],
        reports: MemoryObjectSendStream[Any],
        store: Store,
        host: StoreHost,
        registry: Registry,
        bulletin: Bulletin,
        teller: Teller,
        clock: Clock,
        settings: Settings,
        random: Random,
        new_id: Callable[[], str],
        alarms: MemoryObjectSendStream[OwnerGone],
    ) -> None:
        self._inbox = inbox
        self._store = store
        self._host = host
        self._registry = registry
        self._clock = clock
        self._settings = settings
        self._random = random
        self._new_id = new_id
        self._alarms = alarms
        self._limits = Limits(retry_after_cap=settings.retry_after_cap)
        self._ageing_step_us = round(settings.ageing_step * 1_000_000)
        self._owner: str | None = None
        self._credit = Credit(0, 0)
        self._live = LiveAttempts()
        self._publisher = Publisher(
            live=self._live,
            claims=claims,
            control=control,
            reports=reports,
            bulletin=bulletin,
            teller=teller,
            clock=clock,
        )
        self._taken: list[Any] = []
        """Messages of the tick under way, so that their senders are not left waiting if it never ends."""
        self._barriers: list[Barrier] = []
        self._quiesce: list[Quiesce] = []
        self._holds = KnownHolds()
        self._commands: deque[Request] = deque()
        """What other processes ask, read in one tick and carried out in the next."""
        self._defaults: tuple[tuple[str, ...], dict[str, TaskDefaults]] = ((), {})
        self._failed_in_a_row = 0
        self.outages = 0
        self.last_outage: str | None = None

    @property
    def held(self) -> int:
        """How many tasks this engine holds."""
        return len(self._live)

    @property
    def paused(self) -> int:
        """How many slots paused bodies keep."""
        return sum(attempt.row.state is State.PAUSED for attempt in self._live)

    async def run(self) -> None:
        """Serve until the inbox is closed and empty.

        Cancellation: between ticks; a tick under way is finished, but what came of it is not told.
        """
        async for first in self._inbox:
            self._taken.clear()
            batch = self._new_batch()
            while self._commands:
                self._add(batch, self._commands.popleft())
            self._add(batch, first)
            await self._gather(batch)
            batch.now = self._clock.now()
            await self._tick(batch)
        self._taken.clear()

    def _new_batch(self) -> Batch:
        return Batch(
            now=self._clock.now(),
            new_id=self._new_id,
            owner=self._owner,
            max_pending=self._settings.max_pending,
            keep_lines=self._settings.max_log_lines,
            known_holds=self._holds,
            defaults=self._task_defaults(),
        )

    def close(self) -> None:
        """Close the stream ends that belong to this actor, and answer those whom it owes an answer."""
        with suppress(anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                self._taken.append(self._inbox.receive_nowait())
        for message in self._taken:
            reply = getattr(message, "reply", None)
            if reply is not None and not reply.is_set:
                reply.fail(EngineNotRunning("it ended before this was stored"))
        self._taken.clear()
        self._publisher.close()
        for stream in (self._inbox, self._alarms):
            stream.close()

    # --- collecting ---

    async def _gather(self, batch: Batch) -> None:
        """Take what is there, and what the next few passes of the loop bring, as long as each brings something.

        When the loop is busy, whoever was answered by the last tick is about to send again; a tick that sets off with
        the first of them costs as much as one that carries them all. When it is idle, this costs one pass.
        """
        self._drain_into(batch)
        for _ in range(GATHERING_PASSES):
            seen = len(self._taken)
            await anyio.lowlevel.checkpoint()
            self._drain_into(batch)
            if len(self._taken) == seen:
                break

    def _drain_into(self, batch: Batch) -> None:
        try:
            for _ in range(MAX_BATCH):
                self._add(batch, self._inbox.receive_nowait())
        except (anyio.WouldBlock, anyio.EndOfStream):
            pass

    def _add(self, batch: Batch, message: Any) -> None:
        self._taken.append(message)
        if isinstance(message, Finished):
            self._add_outcome(batch, message)
        elif isinstance(message, Submit):
            batch.submits.append(message)
        elif isinstance(message, Began):
            self._add_begun(batch, message.attempts)
        elif isinstance(message, Credit):
            self._credit = message
        elif isinstance(message, Request):
            self._note_cause(batch, message)
            batch.requests.append(message)
        elif isinstance(message, SaidMessage):
            for attempt in message.attempts:
                self._add_said(batch, attempt)
        elif isinstance(message, PauseAnswer):
            self._add_pause_answer(batch, message)
        elif isinstance(message, PutHold | ReleaseHold):
            batch.holds.append(message)
        elif isinstance(message, Requeue):
            batch.requeues.append(message)
        elif isinstance(message, Delete):
            batch.deletes.append(message)
        elif isinstance(message, Recover):
            batch.recoveries.append(message)
        elif isinstance(message, Register):
            batch.register.append(message)
            self._owner = batch.owner = message.owner.id
        elif isinstance(message, Barrier):
            self._barriers.append(message)
        elif isinstance(message, Quiesce):
            if self._live:
                self._quiesce.append(message)
            else:
                message.reply.set(None)  # Needs no commit, and during an outage there is none.
        else:
            assert isinstance(message, Wake), f"nobody sends {message!r} to the persister"

    def _note_cause(self, batch: Batch, request: Request) -> None:
        """Keep a body that has not begun from beginning while the request is being stored."""
        attempt = self._live.of_task(request.task_id)
        if attempt is None or request.trigger not in _CAUSES:
            return
        if request.trigger is not Trigger.USER_PAUSE or attempt.began_at is None:
            attempt.cause = attempt.cause or _CAUSES[request.trigger]
        else:
            self._add_begun(batch, [attempt])  # Only a body that is known to run can be asked to pause.

    def _add_said(self, batch: Batch, attempt: Attempt) -> None:
        saying = attempt.sayings.fetch() if attempt.sayings is not None else None
        if saying is None:
            return
        key, number = attempt.row.key, attempt.row.attempt
        side = None if saying.seen_at is None else SideRow(key, number, saying.seen_at, saying.progress)
        if saying.deadline_at is not None:
            attempt.row.deadline_at = saying.deadline_at
        batch.said.append(
            Said(
                side=side,
                lines=[LogRow(key, number, *line) for line in saying.lines],
                deadline=None if saying.deadline_at is None else (key, number, saying.deadline_at),
            )
        )

    def _add_pause_answer(self, batch: Batch, answer: PauseAnswer) -> None:
        attempt = answer.attempt
        is_decided = any(settlement.attempt is attempt for settlement in batch.settlements)
        if attempt not in self._live or attempt.is_ended or is_decided:
            return
        decision = decide_pause_answer(attempt.row, is_reached=answer.is_reached, now=answer.at)
        if decision is not None:
            batch.settlements.append(self._settlement(attempt, decision, ends_attempt=False))

    def _add_outcome(self, batch: Batch, message: Finished) -> None:
        attempt, outcome = message.attempt, message.outcome
        if attempt not in self._live:
            return  # Its lease is gone; whoever holds the task now decides about it.
        if attempt.row.state is State.PAUSING or (attempt.is_announced and attempt.row.state is State.STARTING):
            # What the body did just before is in this very batch and not stored yet; the end takes its place.
            batch.settlements = [settlement for settlement in batch.settlements if settlement.attempt is not attempt]
        self._add_said(batch, attempt)
        row = attempt.row
        decision = decide_outcome(
            row,
            outcome,
            policy=self._policy_of(attempt),
            wish=attempt.wish,
            draw=self._random.random(),
            limits=self._limits,
        )
        batch.settlements.append(self._settlement(attempt, decision, ends_attempt=True))

    def _add_begun(self, batch: Batch, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            if (
                attempt not in self._live
                or attempt.is_ended
                or attempt.is_announced
                or attempt.row.state is not State.STARTING
            ):
                continue
            assert attempt.began_at is not None, "only bodies that began are announced"
            attempt.is_announced = True
            decision = Decision(triggers=[(Trigger.EXECUTOR_LAUNCHED, attempt.began_at)], began_at=attempt.began_at)
            batch.settlements.append(self._settlement(attempt, decision, ends_attempt=False))

    def _settlement(self, attempt: Attempt, decision: Decision, *, ends_attempt: bool) -> Settlement:
        write, history = enact(
            attempt.row,
            decision,
            failure=records.dump_failure(decision.failure) if decision.failure is not None else None,
            hold=records.dump_hold(decision.hold) if decision.hold is not None else None,
        )
        return Settlement(attempt, write, history, decision, ends_attempt)

    def _policy_of(self, attempt: Attempt) -> RetryPolicy:
        if attempt.row.retry is not None:
            try:
                return records.load_policy(attempt.row.retry)
            except codec.NotJson:
                logger.warning(
                    "the stored retry policy of task %s cannot be read; the task's own is used", attempt.row.id
                )
        return self._registry.get(attempt.row.name).retry or _DEFAULT_POLICY

    def _order(self, batch: Batch) -> ClaimOrder | None:
        if self._owner is None:
            return None
        ending = sum(settlement.ends_attempt for settlement in batch.settlements)
        held = len(self._live) - ending
        return ClaimOrder(
            names=self._registry.names,
            free=max(0, self._credit.slots - held),
            total=max(0, self._credit.slots + self._credit.prefetch - held) if self._credit.slots else 0,
        )

    def _task_defaults(self) -> dict[str, TaskDefaults]:
        """What the definitions say; tasks may be registered while the engine runs."""
        names, known = self._defaults
        if names is not self._registry.names:
            known = {}
            for name in self._registry.names:
                definition = self._registry.get(name)
                timeouts = definition.timeouts or NO_TIMEOUTS
                known[name] = TaskDefaults(definition.max_attempts, definition.recover, timeouts)
            self._defaults = (self._registry.names, known)
        return known

    # --- committing ---

    async def _tick(self, batch: Batch) -> None:
        batch.claim = self._order(batch)
        pause = FIRST_PAUSE
        while True:
            try:
                result = await self._host.write(lambda: run_tick(self._store, batch, self._ageing_step_us))
            except StoreUnavailable as error:
                self._note_outage(batch, error)
                await anyio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                self._drain_into(batch)
                batch.now, batch.claim = self._clock.now(), None
                continue
            except StoreError as error:
                await self._replay(batch, error)
                return
            if self._failed_in_a_row >= LOCK_IS_OUTAGE:
                logger.warning("the store can be used again")
            self._failed_in_a_row = 0
            self._note(result)
            self._publisher.publish(result, was_claiming=batch.claim is not None)
            self._answer_waiting()
            for registration in batch.register:
                registration.reply.set(None)
            return

    def _note(self, result: TickResult) -> None:
        if result.holds is not None:
            self._holds = result.holds
        if result.owner_gone and self._owner is not None:
            send_or_drop(self._alarms, OwnerGone(self._owner))
        self._host.other_owners = result.other_owners
        self._commands.extend(as_request(command) for command in result.commands)

    def _answer_waiting(self) -> None:
        for barrier in self._barriers:
            barrier.reply.set(None)
        self._barriers.clear()
        if not self._live:
            for quiesce in self._quiesce:
                quiesce.reply.set(None)
            self._quiesce.clear()

    def _note_outage(self, batch: Batch, error: StoreUnavailable) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row == LOCK_IS_OUTAGE:
            logger.warning("the store cannot be used; claiming stops and outcomes are kept: %s", error)
        self.outages += 1
        self.last_outage = str(error)
        now = self._clock.monotonic()
        is_hopeless = isinstance(error, StoreFull | StoreGone)
        for waiting in (batch.submits, batch.requeues, batch.requests, batch.holds, batch.deletes):
            _refuse_overdue(waiting, now, error, is_hopeless)  # type: ignore[arg-type]  # lists of several kinds
        self._publisher.report(TickReport(next_due=None, is_outage=True))

    async def _replay(self, batch: Batch, error: StoreError) -> None:
        """Find the item that the store refuses, by halves, so that its neighbours do not fail with it."""
        if batch.item_count() > 1:
            for half in batch.halves():
                await self._tick(half)
            return
        logger.error("the store refused a write: %s", error)
        replies: list[Reply[Any] | None] = [
            *(item.reply for item in batch.submits),
            *(item.reply for item in batch.requeues),
            *(item.reply for item in batch.recoveries),
            *(item.reply for item in batch.requests),
            *(item.reply for item in batch.holds),
            *(item.reply for item in batch.deletes),
            *(item.reply for item in batch.register),
        ]
        for reply in replies:
            if reply is not None:
                reply.fail(error)
        for settlement in batch.settlements:
            self._live.forget(settlement.attempt)
        if batch.item_count() == 0:
            raise error  # Not an item's fault: the claim itself does not work.


def _refuse_overdue(
    waiting: list[Submit | Requeue | Request | PutHold | ReleaseHold | Delete],
    now: float,
    error: Exception,
    is_hopeless: bool,
) -> None:
    """Answer those whose patience has ended; nothing of theirs was stored."""
    for message in list(waiting):
        if message.reply is not None and (is_hopeless or message.deadline <= now):
            message.reply.fail(error)
            waiting.remove(message)


_DEFAULT_POLICY = RetryPolicy()

_CAUSES = {Trigger.USER_CANCEL: "cancel", Trigger.USER_STOP: "stop", Trigger.USER_PAUSE: "held"}
