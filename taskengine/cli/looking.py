"""Commands that read: `ps`, `status`, `history`, `stats`. None of them makes a database."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.options import ENDED_OTHERWISE, EngineCommand, Shared, shared_options
from taskengine.cli.output import (
    instant,
    note,
    plain,
    run_async,
    say,
    show,
    task_as_json,
    transition_as_json,
    write_json,
)
from taskengine.clock import SystemClock
from taskengine.core.lifecycle import UNFINISHED, State
from taskengine.core.model import Stats, Task, Transition, from_micros

if TYPE_CHECKING:
    from taskengine.engine import Engine

PAGE = 1_000


@click.command(cls=EngineCommand)
@shared_options
@click.option("--all", "show_all", is_flag=True, help="Finished tasks as well.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show the newest N.")
@click.option("--state", "states", multiple=True, help="Only tasks in this state; repeatable.")
@click.option("--tag", help="Only tasks with this tag.")
@click.option("--name", help="Only tasks of this name.")
@click.pass_obj
def ps(shared: Shared, show_all: bool, limit: int, states: tuple[str, ...], tag: str | None, name: str | None) -> int:
    """List tasks that are not finished, newest first."""
    wanted: Sequence[State | str] | None = states or (None if show_all else sorted(UNFINISHED))

    async def read() -> tuple[list[Task], bool]:
        async with shared.client() as engine:
            return await _newest(engine, limit, states=wanted, tag=tag, name=name)

    tasks, is_more = run_async(read)
    if shared.as_json:
        write_json([task_as_json(task) for task in tasks])
        return 0
    from taskengine.cli.tables import task_table

    show(task_table(tasks, now=_now()))
    if is_more:
        note(f"only the newest {limit:,} are shown; there are more (--limit N)")
    return 0


async def _newest(engine: "Engine", limit: int, **where: Any) -> tuple[list[Task], bool]:
    tasks: list[Task] = []
    cursor: str | None = None
    while True:
        page = await engine.list(limit=min(PAGE, limit - len(tasks)), cursor=cursor, **where)
        tasks.extend(page)
        cursor = page.next
        if cursor is None or len(tasks) >= limit:
            return tasks, cursor is not None


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.pass_obj
def status(shared: Shared, task_id: str) -> int:
    """Show one task; exit 3 if it has ended otherwise than succeeded."""

    async def read() -> Task:
        async with shared.client() as engine:
            return await engine.get(task_id)

    task = run_async(read)
    if shared.as_json:
        write_json(task_as_json(task))
    else:
        describe(task)
    return ENDED_OTHERWISE if task.is_final and task.state is not State.SUCCEEDED else 0


def describe(task: Task) -> None:
    """Write what is known of a task for people, a line for each thing."""
    from taskengine.cli.tables import elapsed

    fields: dict[str, Any] = {
        "id": task.id,
        "name": task.name,
        "state": task.state.value,
        "attempts": f"{task.charged}/{task.max_attempts or '-'} charged, {task.attempt} begun",
        "label": task.label,
        "tags": " ".join(task.tags),
        "key": task.idempotency_key,
        "requeued from": task.requeued_from,
        "held by": task.held.actor if task.held is not None else None,
        "created": instant(task.created_at),
        "due": instant(task.due_at) if task.started_at is None and not task.is_final else None,
        "started": instant(task.started_at),
        "finished": instant(task.finished_at),
        "elapsed": elapsed(task, _now()),
        "progress": task.progress,
        "failure": task.error,
    }
    if task.state is State.SUCCEEDED:
        fields["result"] = _short_json(task.result)
    for name, value in fields.items():
        if value not in (None, ""):
            say(f"{name + ':':<15}{plain(value)}")


def _short_json(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 2_000 else f"{text[:2_000]}… ({len(text):,} characters; all of them with --json)"


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.pass_obj
def history(shared: Shared, task_id: str) -> int:
    """Show every move of one task, oldest first."""

    async def read() -> list[Transition]:
        async with shared.client() as engine:
            return await engine.history(task_id)

    moves = run_async(read)
    if shared.as_json:
        write_json([transition_as_json(move) for move in moves])
        return 0
    from taskengine.cli.tables import history_table

    show(history_table(moves))
    return 0


@click.command(cls=EngineCommand)
@shared_options
@click.pass_obj
def stats(shared: Shared) -> int:
    """Count tasks by state and by name."""

    async def read() -> Stats:
        async with shared.client() as engine:
            return await engine.stats()

    found = run_async(read)
    counters = {
        name: getattr(found, name) for name in ("submitted", "completed", "failed", "retried", "unfinished", "queued")
    }
    if shared.as_json:
        by_name = {name: dict(numbers) for name, numbers in found.by_name.items()}
        write_json({"by_state": dict(found.by_state), "by_name": by_name, **counters})
        return 0
    from taskengine.cli.tables import stats_table

    show(stats_table(found))
    say("  ".join(f"{name} {number:,}" for name, number in counters.items()))
    return 0


def _now() -> datetime:
    return from_micros(SystemClock().now())
