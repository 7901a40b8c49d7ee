"""What is done after a commit, and only then: answers, interrupts, claimed attempts, facts, wake-ups.

Part of the persister. Nothing here waits or writes.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from taskengine import records
from taskengine.actors.batch import KnownHolds, Move, Settlement, TickResult
from taskengine.actors.bulletin import Bulletin
from taskengine.actors.messages import Attempt, GiveBack, Interrupt, Pause, TickReport, Unpause
from taskengine.actors.telling import facts_of_move, facts_of_settlement
from taskengine.actors.tick import apply_write
from taskengine.core.explain import covers
from taskengine.core.lifecycle import FINAL, State, Trigger
from taskengine.core.model import HoldRow
from taskengine.diagnostics import diagnostics
from taskengine.ports import Clock, Teller

logger = diagnostics("taskengine")


class LiveAttempts:
    """The attempts that this engine holds, by their task's key and id."""

    def __init__(self) -> None:
        self._by_key: dict[int, Attempt] = {}
        self._by_id: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._by_key.values())

    def __contains__(self, attempt: Attempt) -> bool:
        """Whether it still is the one that holds its task."""
        return self._by_key.get(attempt.row.key) is attempt

    def get(self, key: int) -> Attempt | None:
        return self._by_key.get(key)

    def of_task(self, task_id: str) -> Attempt | None:
        return self._by_id.get(task_id)

    def add(self, attempt: Attempt) -> None:
        self._by_key[attempt.row.key] = self._by_id[attempt.row.id] = attempt

    def forget(self, attempt: Attempt) -> None:
        """Drop it, unless another has taken its place."""
        if attempt in self:
            del self._by_key[attempt.row.key]
            del self._by_id[attempt.row.id]


class Publisher:
    """Makes a commit known."""

    def __init__(
        self,
        *,
        live: LiveAttempts,
        claims: MemoryObjectSendStream[Attempt],
        control: MemoryObjectSendStream[Any],
        reports: MemoryObjectSendStream[Any],
        bulletin: Bulletin,
        teller: Teller,
        clock: Clock,
    ) -> None:
        self._live = live
        self._claims = claims
        self._control = control
        self._reports = reports
        self._bulletin = bulletin
        self._teller = teller
        self._clock = clock

    def close(self) -> None:
        """Close the stream ends that it sends on."""
        for stream in (self._claims, self._control, self._reports):
            stream.close()

    def publish(self, result: TickResult, *, was_claiming: bool) -> None:
        """Tell everybody; in this order: whom it must keep from beginning, who waits for an answer, the rest."""
        is_listening = self._teller.is_listening()
        if result.holds is not None:
            self._publish_holds(result.holds)
        self._publish_answers(result)
        # A tick that could not claim, during an outage, is to be followed by one that does; one that read commands, by
        # one that carries them out.
        has_more = result.has_more_due or not was_claiming or bool(result.commands)
        report = TickReport(next_due=result.next_due, has_more_due=has_more)
        for settlement in result.settled:
            self._publish_settled(settlement, report)
            if is_listening:
                for fact in facts_of_settlement(settlement):
                    self._teller.tell(fact)
        for settlement in result.fenced:
            self._live.forget(settlement.attempt)
            logger.warning("task %s: a late outcome was fenced off", settlement.attempt.row.id)
        for move in result.moves:
            self._publish_move(move)
            if is_listening:
                for fact in facts_of_move(move):
                    self._teller.tell(fact)
        for row in result.claimed:
            attempt = Attempt(row)
            self._live.add(attempt)
            self._claims.send_nowait(attempt)
        self.report(report)
        self._bulletin.announce_commit()

    def _publish_answers(self, result: TickResult) -> None:
        answers: list[tuple[Any, Any]] = [
            *result.submitted,
            *result.requeued,
            *result.recovered,
            *result.deleted,
            *result.answered,
            *result.held,
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
            if settlement.history[-1].trigger is Trigger.RUNTIME_PAUSE_MISSED:
                attempt.wish = None
                self._control.send_nowait(Unpause(attempt))
            return
        report.ended += 1
        if attempt.began_at is not None:
            report.busy_seconds += max(0, settlement.history[-1].at - attempt.began_at) / 1_000_000
        self._live.forget(attempt)
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
        if move.decision.wish is not None:
            attempt.wish = move.decision.wish
        if write.state is State.STOPPING and attempt.wish is not None:
            self._control.send_nowait(Interrupt(attempt, attempt.wish))
        elif write.state is State.PAUSING:
            self._control.send_nowait(Pause(attempt))
        elif write.state is State.RUNNING:
            attempt.wish = None
            self._control.send_nowait(Unpause(attempt))
        elif write.state is State.STARTING and write.held is not None:
            self._give_back(attempt)

    def _publish_holds(self, holds: KnownHolds) -> None:
        """Give back what is claimed here and held now, before anybody is told that it is held."""
        now = self._clock.now()
        standing = [hold for hold in holds.rows if not hold.is_released and (hold.until is None or hold.until > now)]
        if standing:
            for attempt in self._live:
                if attempt.began_at is None and _is_covered(attempt, standing):
                    self._give_back(attempt)

    def _give_back(self, attempt: Attempt) -> None:
        if attempt.began_at is None and attempt.cause in (None, "held"):
            attempt.cause = "held"
            self._control.send_nowait(GiveBack(attempt))

    def report(self, report: TickReport) -> None:
        """Tell the claimer."""
        send_or_drop(self._reports, report)


def send_or_drop(stream: MemoryObjectSendStream[Any], message: Any) -> None:
    """Send what the next tick repeats; a receiver that is behind needs no more of it."""
    with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
        stream.send_nowait(message)


def _is_covered(attempt: Attempt, holds: Sequence[HoldRow]) -> bool:
    tags = records.tags_of(attempt.row)
    return any(covers(hold, attempt.row, tags) for hold in holds)
