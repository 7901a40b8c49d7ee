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

from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from taskengine import codec, records
from taskengine.actors.batch import Batch, ClaimOrder, Move, Settlement, TickResult
from taskengine.actors.bulletin import Bulletin
from taskengine.actors.messages import (
    Attempt,
    Barrier,
    Began,
    Credit,
    Delete,
    Finished,
    Interrupt,
    OwnerGone,
    Quiesce,
    Recover,
    Register,
    Reply,
    Request,
    Requeue,
    Submit,
    TickReport,
    Wake,
)
from taskengine.actors.settings import Settings
from taskengine.actors.telling import facts_of_move, facts_of_settlement
from taskengine.actors.tick import apply_write, run_tick
from taskengine.core.decide import Decision, Limits, decide_outcome, enact
from taskengine.core.errors import EngineNotRunning, StoreError, StoreFull, StoreGone, StoreUnavailable
from taskengine.core.lifecycle import FINAL, State, Trigger
from taskengine.core.retry import RetryPolicy
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
        alarms: MemoryObjectSendStream[OwnerGone],
    ) -> None:
        self._inbox = inbox
        self._claims = claims
        self._control = control
        self._reports = reports
        self._store = store
        self._host = host
        self._registry = registry
        self._bulletin = bulletin
        self._teller = teller
        self._clock = clock
        self._settings = settings
        self._random = random
        self._alarms = alarms
        self._limits = Limits(retry_after_cap=settings.retry_after_cap)
        self._ageing_step_us = round(settings.ageing_step * 1_000_000)
        self._owner: str | None = None
        self._credit = Credit(0, 0)
        self._live: dict[int, Attempt] = {}
        self._by_id: dict[str, Attempt] = {}
        self._taken: list[Any] = []
        """Messages of the tick under way, so that their senders are not left waiting if it never ends."""
        self._barriers: list[Barrier] = []
        self._quiesce: list[Quiesce] = []
        self._failed_in_a_row = 0
        self.outages = 0
        self.last_outage: str | None = None

    @property
    def held(self) -> int:
        """How many tasks this engine holds."""
        return len(self._live)

    async def run(self) -> None:
        """Serve until the inbox is closed and empty.

        Cancellation: between ticks; a tick under way is finished, but what came of it is not told.
        """
        async for first in self._inbox:
            self._taken.clear()
            batch = Batch(now=self._clock.now(), owner=self._owner, max_pending=self._settings.max_pending)
            self._add(batch, first)
            await self._gather(batch)
            batch.now = self._clock.now()
            await self._tick(batch)
        self._taken.clear()

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
        for stream in (self._inbox, self._claims, self._control, self._reports, self._alarms):
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
            self._note_cause(message)
            batch.requests.append(message)
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

    def _note_cause(self, request: Request) -> None:
        """Keep a body that has not begun from beginning while the request is being stored."""
        attempt = self._by_id.get(request.task_id)
        if attempt is not None and request.trigger in (Trigger.USER_CANCEL, Trigger.USER_STOP):
            attempt.cause = attempt.cause or ("cancel" if request.trigger is Trigger.USER_CANCEL else "stop")

    def _add_outcome(self, batch: Batch, message: Finished) -> None:
        attempt, outcome = message.attempt, message.outcome
        if self._live.get(attempt.row.key) is not attempt:
            return  # Its lease is gone; whoever holds the task now decides about it.
        if attempt.is_announced and attempt.row.state is State.STARTING:
            # The announcement is in this very batch and not stored yet; the outcome brings it along.
            batch.settlements = [settlement for settlement in batch.settlements if settlement.attempt is not attempt]
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
            is_live = self._live.get(attempt.row.key) is attempt
            if not is_live or attempt.is_ended or attempt.row.state is not State.STARTING:
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
            defaults={name: self._defaults_of(name) for name in self._registry.names},
        )

    def _defaults_of(self, name: str) -> tuple[int, str]:
        definition = self._registry.get(name)
        return definition.max_attempts, definition.recover

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
            self._publish(result, was_claiming=batch.claim is not None)
            for registration in batch.register:
                registration.reply.set(None)
            return

    def _note_outage(self, batch: Batch, error: StoreUnavailable) -> None:
        self._failed_in_a_row += 1
        if self._failed_in_a_row == LOCK_IS_OUTAGE:
            logger.warning("the store cannot be used; claiming stops and outcomes are kept: %s", error)
        self.outages += 1
        self.last_outage = str(error)
        now = self._clock.monotonic()
        is_hopeless = isinstance(error, StoreFull | StoreGone)
        for waiting in (batch.submits, batch.requeues, batch.requests, batch.deletes):
            _refuse_overdue(waiting, now, error, is_hopeless)  # type: ignore[arg-type]  # lists of several kinds
        self._report(TickReport(next_due=None, is_outage=True))

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
            *(item.reply for item in batch.deletes),
            *(item.reply for item in batch.register),
        ]
        for reply in replies:
            if reply is not None:
                reply.fail(error)
        for settlement in batch.settlements:
            self._forget(settlement.attempt)
        if batch.item_count() == 0:
            raise error  # Not an item's fault: the claim itself does not work.

    # --- telling ---

    def _publish(self, result: TickResult, *, was_claiming: bool) -> None:
        is_listening = self._teller.is_listening()
        self._publish_answers(result)
        # A tick that could not claim, during an outage, is to be followed by one that does.
        report = TickReport(next_due=result.next_due, has_more_due=result.has_more_due or not was_claiming)
        for settlement in result.settled:
            self._publish_settled(settlement, report)
            if is_listening:
                for fact in facts_of_settlement(settlement):
                    self._teller.tell(fact)
        for settlement in result.fenced:
            self._forget(settlement.attempt)
            logger.warning("task %s: a late outcome was fenced off", settlement.attempt.row.id)
        for move in result.moves:
            self._publish_move(move)
            if is_listening:
                for fact in facts_of_move(move):
                    self._teller.tell(fact)
        for row in result.claimed:
            attempt = Attempt(row)
            self._live[row.key] = attempt
            self._by_id[row.id] = attempt
            self._claims.send_nowait(attempt)
        if result.owner_gone and self._owner is not None:
            self._send_or_drop(self._alarms, OwnerGone(self._owner))
        self._report(report)
        self._host.other_owners = result.other_owners
        self._bulletin.announce_commit()
        if not self._live:
            for quiesce in self._quiesce:
                quiesce.reply.set(None)
            self._quiesce.clear()

    def _publish_answers(self, result: TickResult) -> None:
        for barrier in self._barriers:
            barrier.reply.set(None)
        self._barriers.clear()
        answers: list[tuple[Any, Any]] = [
            *result.submitted,
            *result.requeued,
            *result.recovered,
            *result.deleted,
            *result.answered,
        ]
        for message, answer in answers:
            if message.reply is None:
                continue
            if isinstance(answer, Exception):
                message.reply.fail(answer)
            else:
                message.reply.set(answer)

    def _publish_settled(self, settlement: Settlement, report: TickReport) -> None:
        attempt, write = settlement.attempt, settlement.write
        apply_write(attempt.row, write)
        if not settlement.ends_attempt:
            return
        report.ended += 1
        if attempt.began_at is not None:
            report.busy_seconds += max(0, settlement.history[-1].at - attempt.began_at) / 1_000_000
        self._forget(attempt)
        if write.state in FINAL:
            self._bulletin.announce_end(attempt.row.id, write, attempt.row.attempt)

    def _publish_move(self, move: Move) -> None:
        write = move.write
        if write.state in FINAL:
            self._bulletin.announce_end(move.row.id, write, move.row.attempt)
        attempt = self._live.get(write.key)
        if attempt is None or write.expected_attempt != attempt.row.attempt:
            return
        apply_write(attempt.row, write)
        if write.state is State.STOPPING and move.decision.wish is not None:
            attempt.wish = move.decision.wish
            self._control.send_nowait(Interrupt(attempt, attempt.wish))

    def _forget(self, attempt: Attempt) -> None:
        row = attempt.row
        if self._live.get(row.key) is attempt:
            del self._live[row.key]
            del self._by_id[row.id]

    def _report(self, report: TickReport) -> None:
        self._send_or_drop(self._reports, report)

    def _send_or_drop(self, stream: MemoryObjectSendStream[Any], message: Any) -> None:
        # Both streams carry news that the next tick repeats; a receiver that is behind needs no more of it.
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
            stream.send_nowait(message)


def _refuse_overdue(
    waiting: list[Submit | Requeue | Request | Delete], now: float, error: Exception, is_hopeless: bool
) -> None:
    """Answer those whose patience has ended; nothing of theirs was stored."""
    for message in list(waiting):
        if message.reply is not None and (is_hopeless or message.deadline <= now):
            message.reply.fail(error)
            waiting.remove(message)


_DEFAULT_POLICY = RetryPolicy()
