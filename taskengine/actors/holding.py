"""Holds of many within one transaction: what stands, whom it keeps from the claim, and how its marks come off.

A hold of everything or of a name costs the claim one comparison. A hold of a tag is met by the tasks themselves: one
that comes to the head of the queue gets a mark, which takes it out of the claim's index, so that each is met once and
a million of them are no obstacle. When the hold ends, the marks are taken off step by step; until the last one is off,
its row stays, released.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from attrs import evolve

from taskengine.actors.batch import KnownHolds, TickResult
from taskengine.actors.messages import PutHold, ReleaseHold
from taskengine.core.decide import Decision
from taskengine.core.model import Hold, HoldRow, HoldScope, TaskRow, from_micros
from taskengine.ports import Head, Transaction

HOLD_CHUNK = 1_000
"""Tasks whose marks one tick takes off."""


class Tick(Protocol):
    """What holding needs of the transaction under way."""

    tx: Transaction
    head: Head
    now: int
    result: TickResult

    def move(self, rows_and_decisions: Sequence[tuple[TaskRow, Decision, int | None]]) -> Any:
        """Write decisions about rows read in this transaction."""


class Holding:
    """The holds of many, as this transaction sees and changes them."""

    def __init__(self, tick: Tick, known: KnownHolds) -> None:
        self._tick = tick
        self._known = known
        self.answers: list[tuple[PutHold | ReleaseHold, bool | None]] = []
        self.rows: Sequence[HoldRow] = known.rows
        self._version = known.version
        self._read_if_changed()

    def _read_if_changed(self) -> None:
        if self._tick.head.holds_version != self._version:
            self._version = self._tick.head.holds_version
            self.rows = self._tick.tx.holds()

    def news(self) -> KnownHolds | None:
        """Return the holds, if they are others than those that were known before."""
        return None if self._version == self._known.version else KnownHolds(self._version, self.rows)

    # --- changing them ---

    def apply(self, messages: Sequence[PutHold | ReleaseHold]) -> None:
        """Carry the messages out, and free what is held by nothing any more."""
        for message in messages:
            if isinstance(message, PutHold):
                self._put(message.hold)
                self.answers.append((message, None))
            else:
                self.answers.append((message, self._release(message)))
        self._read_if_changed()
        for hold in self.rows:
            if not self._stands(hold):
                self._free_marked(hold)
        self._read_if_changed()

    def _put(self, hold: HoldRow) -> None:
        self._tick.tx.put_hold(hold)
        self._tick.head.holds_version += 1

    def _release(self, message: ReleaseHold) -> bool:
        self._read_if_changed()
        for hold in self.rows:
            if (hold.scope, hold.target) == (message.scope, message.target) and self._stands(hold):
                self._put(evolve(hold, is_released=True))
                return True
        return False

    def _free_marked(self, hold: HoldRow) -> None:
        """Take marks of a hold off that stands no longer, a bounded number of them; forget it after the last."""
        rows = self._tick.tx.marked(hold.mark, HOLD_CHUNK) if hold.scope is HoldScope.TAG else []
        self._tick.move([(row, Decision(releases_hold=True), None) for row in rows])
        if len(rows) < HOLD_CHUNK:
            self._tick.tx.drop_hold(hold.scope, hold.target)
            self._tick.head.holds_version += 1
        else:
            self._tick.result.has_more_due = True

    def _stands(self, hold: HoldRow) -> bool:
        return not hold.is_released and (hold.until is None or hold.until > self._tick.now)

    def next_end(self) -> int | None:
        """Return when the first of them ends by itself."""
        ends = (hold.until for hold in self.rows if hold.until is not None and not hold.is_released)
        return min(ends, default=None)

    # --- keeping tasks from the claim ---

    def free_names(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of the names that may be claimed."""
        if not self.rows:
            return names
        standing = [hold for hold in self.rows if self._stands(hold)]
        if any(hold.scope is HoldScope.ALL for hold in standing):
            return ()
        held = {hold.target for hold in standing if hold.scope is HoldScope.NAME}
        return [name for name in names if name not in held] if held else names

    def without_held(self, rows: Sequence[TaskRow]) -> Sequence[TaskRow]:
        """Mark those of the claimable tasks that have a held tag, and return the others."""
        tags = {hold.target: hold for hold in self.rows if hold.scope is HoldScope.TAG and self._stands(hold)}
        tagged = [row.key for row in rows if row.tags is not None] if tags else []
        found = self._tick.tx.tags_of(tagged, list(tags)) if tagged else {}
        if not found:
            return rows
        self._tick.move([(row, Decision(hold=_mark(tags[found[row.key]])), None) for row in rows if row.key in found])
        self._tick.result.has_more_due = True
        return [row for row in rows if row.key not in found]


def _mark(hold: HoldRow) -> Hold:
    until = None if hold.until is None else from_micros(hold.until)
    return Hold(actor=hold.actor, reason=hold.reason, until=until, by=hold.mark)
