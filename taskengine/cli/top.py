"""`top`: a live look at a database: counters, slots, holds and what is at work. It reads, and changes nothing."""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from taskengine.cli.listing import now
from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import instant, plain, run_async, say, task_as_json, write_json
from taskengine.core.errors import StoreError
from taskengine.core.lifecycle import LEASED, State
from taskengine.core.model import StandingHold, Stats, Task

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

    from taskengine.engine import Engine

MOST_ROWS = 1_000
"""Tasks at work that are read for one frame."""


@click.command(cls=EngineCommand)
@shared_options
@click.option("--once", is_flag=True, help="Print one frame and end; also when stdout is no terminal.")
@click.option("--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds.")
@click.pass_obj
def top(shared: Shared, once: bool, interval: float) -> int:
    """Watch what is at work, until Ctrl-C: tasks by state, slots, holds, running tasks with their progress.

    With --json it prints one frame.
    """
    if shared.as_json or once or not sys.stdout.isatty():

        async def look() -> Frame:
            async with shared.client() as engine:
                return await read_frame(engine)

        frame = run_async(look)
        if shared.as_json:
            write_json(frame_as_json(frame))
        else:
            say("\n".join(frame.lines()))
        return 0
    run_async(lambda: _watch(shared, interval))
    return 0


@frozen(kw_only=True)
class Frame:
    """What one look saw."""

    at: datetime
    stats: Stats
    holds: Sequence[StandingHold]
    running: Sequence[Task]
    """With a claimed or working body, newest first; `MOST_ROWS` at most."""

    @property
    def slots_used(self) -> int:
        """Tasks that some process has claimed, whichever it is."""
        return sum(self.stats.by_state[state.value] for state in LEASED)

    def lines(
        self, width: int | None = None, height: int | None = None, *, failure: str | None = None
    ) -> Iterator[str]:
        """Lay it out for people.

        Args:
            width, height: of the terminal, in cells and lines; None: nothing is cut.
            failure: what kept a later look from seeing anything.
        """
        head = [*self._head(failure), ""]
        yield from head
        room = None if height is None else max(1, height - len(head) - 2)
        yield from self._table(width, room)

    def _head(self, failure: str | None) -> Iterator[str]:
        numbers = [f"{state} {number:,}" for state, number in self.stats.by_state.items() if number]
        yield f"{instant(self.at)}  {'  '.join(numbers) or 'no tasks'}"
        paused = self.stats.by_state[State.PAUSED.value]
        yield f"slots    {self.slots_used:,} in use, in all processes; {paused:,} of them by paused bodies"
        yield f"holds    {_describe_holds(self.holds)}"
        failure = failure or self.stats.store_last_error
        yield f"store    {'no failure' if failure is None else 'last failure: ' + plain(failure)}"

    def _table(self, width: int | None, room: int | None) -> Iterator[str]:
        from taskengine.cli.tables import task_table

        if not self.running:
            yield "nothing is at work"
            return
        shown = self.running if room is None else self.running[:room]
        yield from task_table(shown, now=self.at).lines(width)
        more = self.slots_used - len(shown)
        if more > 0:
            yield f"… and {more:,} more"


def _describe_holds(holds: Sequence[StandingHold]) -> str:
    words = []
    for hold in holds:
        what = "everything" if hold.scope == "all" else f"{hold.scope} {plain(hold.target)}"
        until = f" until {instant(hold.until)}" if hold.until is not None else ""
        words.append(f"{what} by {plain(hold.actor)}{until}" + (f": {plain(hold.reason)}" if hold.reason else ""))
    return "; ".join(words) or "none"


async def read_frame(engine: "Engine") -> Frame:
    """Look once.

    Raises:
        StoreError: nothing could be read.
    """
    stats = await engine.stats()
    running = await engine.list(states=sorted(LEASED), limit=MOST_ROWS)
    return Frame(at=now(), stats=stats, holds=await engine.holds(), running=running.tasks)


def frame_as_json(frame: Frame) -> dict[str, Any]:
    """Lay out a frame."""
    from taskengine.cli.holding import hold_as_json

    return {
        "at": instant(frame.at),
        "by_state": dict(frame.stats.by_state),
        "slots_used": frame.slots_used,
        "slots_paused": frame.stats.by_state[State.PAUSED.value],
        "holds": [hold_as_json(hold) for hold in frame.holds],
        "running": [task_as_json(task) for task in frame.running],
        "store_failures": frame.stats.store_failures,
        "store_last_error": frame.stats.store_last_error,
    }


# --- on a terminal ----------------------------------------------------------------------------------------------


async def _watch(shared: Shared, interval: float) -> None:
    """Show frames until SIGINT or SIGTERM."""
    import anyio

    async with anyio.create_task_group() as tg:
        await tg.start(_end_at_signal, tg.cancel_scope)
        async with shared.client() as engine:
            with _screen() as draw:
                await _draw_frames(engine, draw, interval)


async def _draw_frames(engine: "Engine", draw: "Callable[[Frame, str | None], None]", interval: float) -> None:
    import anyio

    frame = await read_frame(engine)
    failure = None
    while True:
        draw(frame, failure)
        await anyio.sleep(interval)
        try:
            frame = await read_frame(engine)
        except StoreError as error:
            # The last frame stays, and says with its time how old it is.
            failure = str(error)


async def _end_at_signal(scope: "anyio.CancelScope", *, task_status: "TaskStatus[None]") -> None:
    import anyio

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


@contextmanager
def _screen() -> "Iterator[Callable[[Frame, str | None], None]]":
    """Take the terminal's other screen, and give it back when the block is left."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw(frame: Frame, failure: str | None) -> None:
            lines = frame.lines(console.width, console.height, failure=failure)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield draw
