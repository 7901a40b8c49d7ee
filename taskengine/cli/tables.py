"""Tables of tasks, of a task's history and of counters: for a terminal through rich, elsewhere as lines of text."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from attrs import frozen
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from taskengine.cli.output import plain
from taskengine.core.lifecycle import LEASED, State
from taskengine.core.model import Progress, StandingHold, Stats, Task, Transition

NOTHING = "-"

TASK_COLUMNS = ("TASK_ID", "NAME", "BUCKET", "STATUS", "ATTEMPT", "ELAPSED", "PROGRESS", "FAILURE")
HISTORY_COLUMNS = ("VER", "FROM", "TO", "AT", "TRIGGER", "ACTOR", "REASON")
HOLD_COLUMNS = ("SCOPE", "TARGET", "ACTOR", "SINCE", "UNTIL", "REASON")

_MAX_CELL = 200
"""Characters; a stored error can be long."""

_SHRINKING = frozenset({"NAME", "PROGRESS", "FAILURE", "REASON"})
"""Columns that give way where the terminal is narrow; ids must stay fit to be copied."""
_NARROWEST = 8
_GAP = "  "


@frozen
class Table:
    """Cells of text without control characters, `-` where there is nothing."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Lay it out as lines of text, the columns' names first.

        Not by rich's tables: they take 2 ms a row, and shrink ids before failures.

        Args:
            width: of the terminal, in cells; None for a file or a pipe, where nothing is cut.
        """
        everything = (self.columns, *self.rows)
        widths = [max(map(cell_len, column)) for column in zip(*everything, strict=True)]
        if width is not None:
            self._shrink(widths, width)
        for row in everything:
            cells = (_fit(cell, size) for cell, size in zip(row, widths, strict=True))
            yield _GAP.join(cells).rstrip()

    def _shrink(self, widths: list[int], width: int) -> None:
        """Take what is too much from the widest of the columns that may give way."""
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        shrinking = [at for at, column in enumerate(self.columns) if column in _SHRINKING]
        while excess > 0 and shrinking:
            widest = max(shrinking, key=widths.__getitem__)
            if widths[widest] <= _NARROWEST:
                return
            widths[widest] -= 1
            excess -= 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for a terminal."""
        for number, line in enumerate(self.lines(options.max_width)):
            yield Text(line, style="" if number else "bold", no_wrap=True, overflow="ignore")


def task_table(tasks: Iterable[Task], *, now: datetime) -> Table:
    """Lay out tasks, one a row.

    Args:
        now: up to when the time of a body that is at work is counted.
    """
    rows = []
    for task in tasks:
        status = task.state.value + (" (held)" if task.held is not None else "")
        attempts = f"{task.charged}/{task.max_attempts if task.max_attempts is not None else NOTHING}"
        # Buckets do not exist yet; their column is there, so that scripts may count on its place.
        how_far = progress(task.progress)
        rows.append(_row(task.id, task.name, NOTHING, status, attempts, elapsed(task, now), how_far, task.error))
    return Table(TASK_COLUMNS, tuple(rows))


def history_table(moves: Iterable[Transition]) -> Table:
    """Lay out the moves of one task, one a row."""
    rows = []
    for move in moves:
        moved = (move.source.value, move.target.value, _instant(move.at))
        rows.append(_row(move.version, *moved, move.trigger.value, move.actor, move.reason))
    return Table(HISTORY_COLUMNS, tuple(rows))


def hold_table(holds: Iterable[StandingHold]) -> Table:
    """Lay out holds of many, one a row."""
    rows = []
    for hold in holds:
        rows.append(
            _row(hold.scope, hold.target, hold.actor, _instant(hold.created_at), _instant(hold.until), hold.reason)
        )
    return Table(HOLD_COLUMNS, tuple(rows))


def stats_table(stats: Stats) -> Table:
    """Lay out how many tasks of each name are in each state; states that nobody is in are left out."""
    states = [state for state, number in stats.by_state.items() if number]
    rows = [_row(name, *(numbers.get(state, 0) for state in states)) for name, numbers in sorted(stats.by_name.items())]
    rows.append(_row("all", *(stats.by_state[state] for state in states)))
    return Table(("NAME", *(state.upper() for state in states)), tuple(rows))


def elapsed(task: Task, now: datetime) -> str:
    """Tell how long the body has been at work, or of an ended task, from the latest body's beginning to the end.

    `-` of a task that waits, and of one that never began.
    """
    # A claimed task still carries the beginning of the attempt before.
    is_at_work = task.state in LEASED and task.state is not State.STARTING
    if task.started_at is None or not (is_at_work or task.is_final):
        return NOTHING
    return duration(((task.finished_at or now) - task.started_at).total_seconds())


def progress(said: Progress | None) -> str:
    """Write what a body said of how far it is: `40%`, `3/10 files`, `17 rows`, and its message."""
    if said is None:
        return ""
    parts = [_how_far(said), said.message]
    return " ".join(part for part in parts if part)


def _how_far(said: Progress) -> str:
    unit = f" {said.unit}" if said.unit else ""
    if said.done is None:
        return ""
    if said.fraction is None:
        return _number(said.done) + unit
    # Rounded down, so that 100% is said of what is done.
    return f"{_number(said.done)}/{_number(said.total or 0)}{unit}" if unit else f"{int(said.fraction * 100 + 1e-9)}%"


def _number(value: float) -> str:
    if abs(value) >= 1e15:
        return f"{value:g}"
    return f"{int(value):,}" if value == int(value) else f"{value:,.2f}"


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


def _instant(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def _fit(cell: str, width: int) -> str:
    return set_cell_size(cell, width) if cell_len(cell) <= width else set_cell_size(cell, width - 1) + "…"


def _row(*cells: Any) -> tuple[str, ...]:
    return tuple(map(_cell, cells))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    text = plain(value)
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"
