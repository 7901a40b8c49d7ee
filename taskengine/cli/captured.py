"""`logs`: what the bodies of a task said with `ctx.log` and its like."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import instant, plain, run_async, say

if TYPE_CHECKING:
    from taskengine.core.model import LogLine
    from taskengine.engine import Engine

FOLLOW_EVERY = 0.25
"""Seconds between two looks of --follow."""

FIRST_LOOK, LONGEST_LOOK = 100, 1_000_000
"""Lines that a look of --follow asks for at first, and at most."""


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the task has ended.")
@click.option("--limit", type=click.IntRange(1, LONGEST_LOOK), default=1_000, show_default=True, help="The last N.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only lines of this attempt.")
@click.pass_obj
def logs(shared: Shared, task_id: str, follow: bool, limit: int, attempt: int | None) -> int:
    """Show what the bodies of a task logged, oldest first.

    --follow goes on until the task has ended, or, with --attempt, until a later attempt has begun. With --json it
    writes the one array line by line.
    """

    async def read() -> None:
        import anyio

        async with shared.client() as engine:
            lines = _Lines(engine, task_id, attempt)
            for line in await lines.last(limit):
                write(line)
            is_over = not follow
            while not is_over:
                await anyio.sleep(FOLLOW_EVERY)
                # Asked before the look, which then sees whatever was said before the end.
                is_over = await lines.are_complete()
                for line in await lines.news():
                    write(line)

    with _JsonArray() if shared.as_json else _Text() as write:
        run_async(read)
    return 0


class _Lines:
    """The lines of one task, from a place that moves on."""

    def __init__(self, engine: "Engine", task_id: str, attempt: int | None) -> None:
        self._engine = engine
        self._task_id = task_id
        self._attempt = attempt
        self._seen = (0, 0)

    async def last(self, limit: int) -> "list[LogLine]":
        lines = await self._engine.logs(self._task_id, attempt=self._attempt, limit=limit)
        self._note(lines)
        return lines

    async def news(self) -> "list[LogLine]":
        limit = FIRST_LOOK
        while True:
            lines = await self._engine.logs(self._task_id, attempt=self._attempt, limit=limit)
            fresh = [line for line in lines if (line.attempt, line.number) > self._seen]
            if len(fresh) < limit or limit == LONGEST_LOOK:
                self._note(fresh)
                return fresh
            limit = min(limit * 10, LONGEST_LOOK)  # More was said than we asked for.

    def _note(self, lines: "list[LogLine]") -> None:
        if lines:
            self._seen = (lines[-1].attempt, lines[-1].number)

    async def are_complete(self) -> bool:
        task = await self._engine.get(self._task_id)
        return task.is_final or (self._attempt is not None and task.attempt > self._attempt)


class _Text:
    """Writes lines for people."""

    def __enter__(self) -> "_Text":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def __call__(self, line: "LogLine") -> None:
        first, *more = line.message.splitlines() or [""]
        say(f"{instant(line.at)}  {line.attempt}  {line.level.lower():<7}  {plain(first)}")
        for part in more:
            say(f"    {plain(part)}")


class _JsonArray:
    """Writes one JSON array, an item a line and each as soon as it is there.

    Nothing is written when the block fails before the first item; one that fails later is a whole document still.
    """

    def __init__(self) -> None:
        self._count = 0

    def __enter__(self) -> "_JsonArray":
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if kind is None and not self._count:
            say("[]")
        elif self._count:
            say("]")

    def __call__(self, line: "LogLine") -> None:
        import msgspec

        say(("," if self._count else "[") + msgspec.json.encode(log_line_as_json(line)).decode())
        self._count += 1


def log_line_as_json(line: "LogLine") -> dict[str, Any]:
    """Lay out a captured line."""
    return {
        "attempt": line.attempt,
        "number": line.number,
        "at": instant(line.at),
        "level": line.level,
        "message": line.message,
    }
