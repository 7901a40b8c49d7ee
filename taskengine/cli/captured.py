"""`logs`: what the bodies of a task said with `ctx.log` and its like."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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
@click.option("--limit", type=click.IntRange(1, LONGEST_LOOK), default=1_000, show_default=True, help="The last N lines.")
@click.option("--attempt", type=click.IntRange(min=1), help="Only those of this attempt.")
@click.pass_obj
def logs(shared: Shared, task_id: str, follow: bool, limit: int, attempt: int | None) -> int:
    """Show what the bodies of a task logged, oldest first.

    With --follow it ends when the task does, or when another attempt than the chosen one has begun; a task that is
    lost or goes on elsewhere is followed across processes.
    """
    with _writing(shared.as_json) as write:

        async def read() -> None:
            async with shared.client() as engine:
                lines = Lines(engine, task_id, attempt)
                for line in await lines.last(limit):
                    write(line)
                while follow and not await lines.is_over():
                    for line in await lines.news():
                        write(line)

        run_async(read)
    return 0
