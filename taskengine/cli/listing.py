"""Commands that list tasks: `ps` and `dead`. Neither makes a database."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import note, run_async, show, task_as_json, write_json
from taskengine.clock import SystemClock
from taskengine.core.lifecycle import UNFINISHED, WAITING, State
from taskengine.core.model import Hold, StandingHold, Task, TaskPage, from_micros

if TYPE_CHECKING:
    from taskengine.engine import Engine

PAGE = 1_000


@click.command(cls=EngineCommand)
@shared_options
@click.option("--held", is_flag=True, help="Only tasks that are held, by themselves or with others.")
@click.option("--all", "show_all", is_flag=True, help="Finished tasks as well.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show the newest N.")
@click.option("--state", "states", multiple=True, help="Only tasks in this state; repeatable.")
@click.option("--tag", help="Only tasks with this tag.")
@click.option("--name", help="Only tasks of this name.")
@click.pass_obj
def ps(shared: Shared, /, held: bool, show_all: bool, limit: int, states: tuple[str, ...], **where: Any) -> int:
    """List tasks that are not finished, newest first."""
    if held and (show_all or states):
        raise click.UsageError("--held tasks are those that wait; no --all or --state with it")
    wanted: Sequence[State | str] | None = states or (None if show_all else sorted(UNFINISHED))

    async def read() -> tuple[list[Task], bool]:
        async with shared.client() as engine:
            holds = await engine.holds()
            if held:
                found = await _newest_held(engine, limit, holds, where)
            else:
                found = await newest(engine.list, limit, states=wanted, **where)
            return [with_hold(task, holds) for task in found[0]], found[1]

    return _show(shared, limit, *run_async(read))


@click.command(cls=EngineCommand)
@shared_options
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show the newest N.")
@click.option("--tag", help="Only tasks with this tag.")
@click.option("--name", help="Only tasks of this name.")
@click.pass_obj
def dead(shared: Shared, /, limit: int, **where: Any) -> int:
    """List dead letters, newest first: what failed for good or was lost, and was not requeued yet."""

    async def read() -> tuple[list[Task], bool]:
        async with shared.client() as engine:
            return await newest(engine.dead_letters, limit, **where)

    return _show(shared, limit, *run_async(read))


def _show(shared: Shared, limit: int, tasks: Sequence[Task], is_more: bool) -> int:
    if shared.as_json:
        write_json([task_as_json(task) for task in tasks])
        return 0
    from taskengine.cli.tables import task_table

    show(task_table(tasks, now=now()))
    if is_more:
        note(f"only the newest {limit:,} are shown; there are more (--limit N)")
    return 0


async def newest(read_page: "Callable[..., Awaitable[TaskPage]]", limit: int, **where: Any) -> tuple[list[Task], bool]:
    """Read the newest tasks of a listing, `limit` at most, and whether there are more."""
    tasks: list[Task] = []
    cursor: str | None = None
    while True:
        page = await read_page(limit=min(PAGE, limit - len(tasks)), cursor=cursor, **where)
        tasks.extend(page)
        cursor = page.next
        if cursor is None or len(tasks) >= limit:
            return tasks, cursor is not None


# --- holds ------------------------------------------------------------------------------------------------------


async def _newest_held(
    engine: "Engine", limit: int, holds: Sequence[StandingHold], where: dict[str, Any]
) -> tuple[list[Task], bool]:
    """Read the tasks that carry a hold, and those that wait and are covered by a hold of many."""
    queries = [where | {"held": True}]
    for hold in holds:
        about = {} if hold.scope == "all" else {hold.scope: hold.target}
        if any(where[key] not in (None, target) for key, target in about.items() if key == "name"):
            continue
        queries.append(where | about | {"states": sorted(WAITING)})
    found: dict[str, Task] = {}
    is_more = False
    for query in queries:
        tasks, is_cut = await newest(engine.list, limit, **query)
        # A hold of a tag, where another tag is asked for: the store looks for one of them only.
        found |= {task.id: task for task in tasks if where["tag"] is None or where["tag"] in task.tags}
        is_more = is_more or is_cut
    ordered = sorted(found.values(), key=lambda task: task.created_at, reverse=True)
    return ordered[:limit], is_more or len(ordered) > limit


def with_hold(task: Task, holds: Sequence[StandingHold]) -> Task:
    """Return a task with the hold that keeps it from being claimed, be it its own or one of many."""
    if task.held is not None or task.state not in WAITING:
        return task
    for hold in holds:
        covers = {"all": True, "name": hold.target == task.name, "tag": hold.target in task.tags}[hold.scope]
        if covers:
            by = f"{hold.scope}:{hold.target or ''}"
            return evolve(task, held=Hold(actor=hold.actor, reason=hold.reason, until=hold.until, by=by))
    return task


def now() -> datetime:
    """Read the clock."""
    return from_micros(SystemClock().now())
