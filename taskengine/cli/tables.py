"""Tables of tasks, of a task's history and of counters, as rich renderables; for anybody's console."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text

from taskengine.cli.output import plain
from taskengine.core.model import Stats, Task, Transition

NOTHING = "-"

TASK_COLUMNS = ("TASK_ID", "NAME", "BUCKET", "STATUS", "ATTEMPT", "ELAPSED", "PROGRESS", "FAILURE")
HISTORY_COLUMNS = ("VER", "FROM", "TO", "AT", "TRIGGER", "ACTOR", "REASON")

_MAX_CELL = 200
"""Characters; a stored error can be long."""


def task_table(tasks: Iterable[Task], *, now: datetime) -> Table:
    """Lay out tasks, one a row.

    Args:
        now: up to when the time of a body that is at work is counted.
    """
    table = _table(TASK_COLUMNS, whole=("TASK_ID", "STATUS", "ATTEMPT", "ELAPSED"))
    for task in tasks:
        status = task.state.value + (" (held)" if task.held is not None else "")
        attempts = f"{task.charged}/{task.max_attempts if task.max_attempts is not None else NOTHING}"
        # Buckets do not exist yet; their column is there, so that scripts may count on its place.
        _add(table, task.id, task.name, NOTHING, status, attempts, elapsed(task, now), task.progress, task.error)
    return table


def history_table(moves: Iterable[Transition]) -> Table:
    """Lay out the moves of one task, one a row."""
    table = _table(HISTORY_COLUMNS, whole=("VER", "FROM", "TO", "AT", "TRIGGER"))
    for move in moves:
        at = move.at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
        _add(table, move.version, move.source.value, move.target.value, at, move.trigger.value, move.actor, move.reason)
    return table


def stats_table(stats: Stats) -> Table:
    """Lay out how many tasks of each name are in each state; states that nobody is in are left out."""
    states = [state for state, number in stats.by_state.items() if number]
    table = _table(("NAME", *(state.upper() for state in states)), whole=())
    for name, numbers in sorted(stats.by_name.items()):
        _add(table, name, *(numbers.get(state, 0) for state in states))
    _add(table, "all", *(stats.by_state[state] for state in states))
    return table


def elapsed(task: Task, now: datetime) -> str:
    """Tell how long the latest body took or has been at work; `-` until one has begun."""
    if task.started_at is None:
        return NOTHING
    return duration(((task.finished_at or now) - task.started_at).total_seconds())


def duration(seconds: float) -> str:
    """Write a number of seconds for people: `0.3s`, `12.0s`, `3m05s`, `2h07m`, `4d03h`."""
    seconds = max(0.0, seconds)
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for size, small, big_unit, small_unit in ((3600, 1, "m", "s"), (86_400, 60, "h", "m")):
        if whole < size:
            return f"{whole // (small * 60)}{big_unit}{whole // small % 60:02}{small_unit}"
    return f"{whole // 86_400}d{whole // 3600 % 24:02}h"


def _table(columns: Iterable[str], *, whole: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    kept = set(whole)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis", min_width=36 if column == "TASK_ID" else None)
        if column in kept and column != "TASK_ID":
            table.columns[-1].min_width = len(column)
    return table


def _add(table: Table, *cells: Any) -> None:
    table.add_row(*(Text(_cell(cell)) for cell in cells))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, Mapping):
        value = " ".join(f"{key}={item}" for key, item in value.items())
    text = plain(value)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"
