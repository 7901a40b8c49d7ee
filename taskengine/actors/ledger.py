"""The book-keeping of one transaction: keys, ranks, history and counters, saved together at its end."""

from collections import Counter
from collections.abc import Iterable

from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import HistoryRow
from taskengine.ports import Head, Transaction


class Ledger:
    """What one tick has moved so far."""

    def __init__(self, head: Head, now: int, ageing_step_us: int) -> None:
        self.head = head
        self.now = now
        self._ageing_step_us = ageing_step_us
        self.history: list[HistoryRow] = []
        self.states: Counter[tuple[str, State]] = Counter()
        self.triggers: Counter[Trigger] = Counter()

    def next_key(self) -> int:
        """Give the integer key of a new task."""
        key = self.head.next_key
        self.head.next_key += 1
        return key

    def next_rank(self, priority: int) -> int:
        """Give a place in the queue: growing time, shifted by the priority's worth of ageing."""
        self.head.last_rank = max(self.now, self.head.last_rank + 1)
        return self.head.last_rank + priority * self._ageing_step_us

    def record(self, name: str, source: State, target: State, history: Iterable[HistoryRow]) -> None:
        """Note moves that were made."""
        for row in history:
            self.history.append(row)
            self.triggers[row.trigger] += 1
        if source is not State.PENDING:
            self.states[name, source] -= 1
        self.states[name, target] += 1

    def record_deletion(self, name: str, state: State) -> None:
        """Note that a task is gone; the moves it made stay counted."""
        self.states[name, state] -= 1

    def save(self, tx: Transaction) -> None:
        """Append the history and bring the counters up to date."""
        if self.history:
            tx.append(self.history, self.head.next_position)
            self.head.next_position += len(self.history)
        if self.history or self.states:
            tx.tally(self.states, self.triggers)
            tx.save_head(self.head)
