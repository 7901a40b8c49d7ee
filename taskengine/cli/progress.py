"""How a worker shows people what it does, on stderr: a bar on a terminal, a line every few seconds elsewhere."""

import logging
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio

from taskengine.cli.output import note
from taskengine.core.lifecycle import FINAL, State
from taskengine.core.model import Stats

if TYPE_CHECKING:
    from taskengine.engine import Engine

BAR_EVERY, LINE_EVERY = 0.25, 5.0
"""Seconds."""


class EndCounter(logging.Handler):
    """Counts the tasks that this process has brought to an end, by state.

    It listens to the engine's own log records, because they tell exactly that: committed facts, `task_done` once for
    every final state, of this engine and of no other process on the same file.
    """

    _LOGGER = logging.getLogger("taskengine.tasks")

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.ends: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one record."""
        fields = getattr(record, "taskengine", None)
        if isinstance(fields, dict) and fields.get("event") == "task_done":
            self.ends[str(fields["state"])] += 1

    @property
    def total(self) -> int:
        """How many have ended."""
        return self.ends.total()

    @property
    def unsuccessful(self) -> int:
        """How many of them have not succeeded."""
        return self.total - self.ends[State.SUCCEEDED.value]

    def __enter__(self) -> "EndCounter":
        self._level_before = self._LOGGER.level
        # What goes to stderr is decided by that handler's own level.
        self._LOGGER.setLevel(min(logging.INFO, self._LOGGER.getEffectiveLevel()))
        self._LOGGER.addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self._LOGGER.removeHandler(self)
        self._LOGGER.setLevel(self._level_before)

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {state}" for state, number in sorted(self.ends.items())) or "nothing ended"


async def show_progress(engine: "Engine", counter: EndCounter) -> None:
    """Show progress until cancelled.

    Cancellation: takes the bar away.
    """
    with ExitStack() as stack:
        if sys.stderr.isatty():
            update = _bar(stack, counter)
            every = BAR_EVERY
        else:
            update = _lines(counter)
            every = LINE_EVERY
        while True:
            update(unfinished_here(await engine.stats(), engine.task_names))
            await anyio.sleep(every)


def unfinished_here(stats: Stats, names: tuple[str, ...]) -> int:
    """Count the unfinished tasks of the names that can run here."""
    return sum(
        number for name in names for state, number in stats.by_name.get(name, {}).items() if State(state) not in FINAL
    )


def _bar(stack: ExitStack, counter: EndCounter) -> Callable[[int], None]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = stack.enter_context(
        Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,
            transient=True,
        )
    )
    row = progress.add_task("working", total=None)

    def update(left: int) -> None:
        progress.update(row, completed=counter.total, total=counter.total + left, description=str(counter))

    return update


def _lines(counter: EndCounter) -> Callable[[int], None]:
    last: tuple[int, int] | None = None

    def update(left: int) -> None:
        nonlocal last
        now = (counter.total, left)
        if now != last:
            note(f"{counter}; {left:,} left")
        last = now

    return update
