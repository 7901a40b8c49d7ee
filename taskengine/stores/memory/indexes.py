"""Which tasks are where: kept with every change, so that no tick looks at tasks that it does not move.

What SQLite's partial indexes are for the other store. A task is taken out before it is changed and put in afterwards.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from operator import attrgetter
from typing import Any

import msgspec

from taskengine.core.lifecycle import CLAIMABLE, FINAL, TIMED, WAITING
from taskengine.core.model import TaskRow

COLUMNS = tuple(TaskRow.__annotations__)
values_of = attrgetter(*COLUMNS)

_LAST_KEY = 2**63

Sorted = list[tuple[int, int]]
"""(order or instant, key), ascending."""


def copy_row(row: TaskRow) -> TaskRow:
    """Return a row that the caller may change."""
    return TaskRow(*values_of(row))


class Indexes:
    """Sorted lists and sets of keys, each about one question."""

    def __init__(self) -> None:
        self.owned: dict[str, dict[int, TaskRow]] = defaultdict(dict)
        self.queue: dict[str, Sorted] = defaultdict(list)
        self.due: Sorted = []
        self.time_limits: Sorted = []
        self.held: set[int] = set()
        self.hold_ends: Sorted = []
        self.marked: dict[str, Sorted] = defaultdict(list)
        """Entries are (0, key)."""
        self.tagged: dict[str, set[int]] = defaultdict(set)
        self.requeued: dict[str, set[int]] = defaultdict(set)
        """Id of a task -> those that were made of it."""

    # --- what never changes of a task ---

    def enter(self, row: TaskRow) -> None:
        """Take in a task that is new."""
        for tag in _tags_of(row):
            self.tagged[tag].add(row.key)
        if row.requeued_from is not None:
            self.requeued[row.requeued_from].add(row.key)
        self.add(row)

    def leave(self, row: TaskRow) -> None:
        """Forget a task."""
        for tag in _tags_of(row):
            _discard(self.tagged, tag, row.key)
        if row.requeued_from is not None:
            _discard(self.requeued, row.requeued_from, row.key)
        self.remove(row)

    # --- what changes ---

    def add(self, row: TaskRow) -> None:
        """Put a task where it belongs as it is now."""
        if row.held is not None:
            self._add_hold(row, row.held)
        if (limit := _time_limit_of(row)) is not None:
            _insert(self.time_limits, (limit, row.key))
        if row.state in CLAIMABLE:
            if row.held is None:
                _insert(self.queue[row.name], (row.rank, row.key))
        elif row.state in TIMED:
            _insert(self.due, (row.due_at, row.key))
        elif row.owner is not None:
            self.owned[row.owner][row.key] = row

    def remove(self, row: TaskRow) -> None:
        """Take a task out from where it is."""
        if row.held is not None:
            self._remove_hold(row, row.held)
        if (limit := _time_limit_of(row)) is not None:
            _remove(self.time_limits, (limit, row.key))
        if row.state in CLAIMABLE:
            if row.held is None:
                _remove(self.queue[row.name], (row.rank, row.key))
        elif row.state in TIMED:
            _remove(self.due, (row.due_at, row.key))
        elif row.owner is not None:
            owned = self.owned[row.owner]
            owned.pop(row.key, None)
            if not owned:
                del self.owned[row.owner]

    def _add_hold(self, row: TaskRow, held: str) -> None:
        self.held.add(row.key)
        if row.state not in FINAL:
            until, by = _read_hold(held)
            if until is not None:
                _insert(self.hold_ends, (until, row.key))
            if by is not None:
                _insert(self.marked[by], (0, row.key))

    def _remove_hold(self, row: TaskRow, held: str) -> None:
        self.held.discard(row.key)
        if row.state not in FINAL:
            until, by = _read_hold(held)
            if until is not None:
                _remove(self.hold_ends, (until, row.key))
            if by is not None:
                _remove(self.marked[by], (0, row.key))
                if not self.marked[by]:
                    del self.marked[by]

    # --- questions of the clock ---

    def next_due(self) -> int | None:
        """Return the soonest of all instants."""
        heads = [index[0][0] for index in (self.due, self.time_limits, self.hold_ends) if index]
        return min(heads, default=None)


def until(index: Sorted, now: int, limit: int) -> list[int]:
    """Return the keys of the first entries that are not after `now`, `limit` at most."""
    return [key for _, key in index[: min(bisect_right(index, (now, _LAST_KEY)), limit)]]


def _insert(index: Sorted, entry: tuple[int, int]) -> None:
    # Most entries come in order, and appending is cheaper than searching.
    if not index or index[-1] < entry:
        index.append(entry)
    else:
        insort(index, entry)


def _remove(index: Sorted, entry: tuple[int, int]) -> None:
    at = bisect_left(index, entry)
    if at < len(index) and index[at] == entry:
        del index[at]


def _discard(index: dict[str, set[int]], word: str, key: int) -> None:
    keys = index[word]
    keys.discard(key)
    if not keys:
        del index[word]


def _time_limit_of(row: TaskRow) -> int | None:
    """Return when a task without a body is out of time."""
    limit = row.deadline_at if row.state in WAITING else None
    if row.start_within is not None and row.started_at is None and row.state in CLAIMABLE:
        start_limit = row.due_at + row.start_within
        return start_limit if limit is None else min(limit, start_limit)
    return limit


def _tags_of(row: TaskRow) -> list[str]:
    if row.tags is None:
        return []
    try:
        return msgspec.json.decode(row.tags, type=list[str])
    except (msgspec.MsgspecError, ValueError):
        return []


def _read_hold(text: str) -> tuple[int | None, str | None]:
    """Read a hold's end and what it is a mark of; what is damaged has neither."""
    try:
        record: Any = msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError):
        return None, None
    if type(record) is not dict:
        return None, None
    end, by = record.get("until"), record.get("by")
    return end if type(end) is int else None, by if type(by) is str else None
