"""Commands that change one task: `cancel`, `requeue`, `delete`."""

import click

from taskengine.cli.options import ENDED_OTHERWISE, EngineCommand, Shared, shared_options
from taskengine.cli.output import run_async, say, task_as_json, write_json
from taskengine.core.lifecycle import State
from taskengine.core.model import Task

ACTOR = "cli"


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.option("--reason", help="Kept in the task's history.")
@click.option("--wait", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds to wait for it.")
@click.pass_obj
def cancel(shared: Shared, task_id: str, reason: str | None, wait: float) -> int:
    """Cancel a task, and wait for its end.

    A task that another process runs is ended by that process; if it has not done so in time, the request stands, this
    prints `requested`, and the exit code is 0. Exit 3: the task has ended otherwise than cancelled.
    """

    async def ask() -> Task:
        async with shared.client() as engine:
            return await engine.cancel(task_id, reason=reason, actor=ACTOR, timeout=wait)

    task = run_async(ask)
    answer = task.state.value if task.is_final else "requested"
    if shared.as_json:
        write_json({**task_as_json(task), "answer": answer})
    else:
        say(answer)
    return 0 if not task.is_final or task.state is State.CANCELLED else ENDED_OTHERWISE


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.option("--keep-key", is_flag=True, help="Send the old idempotency key downstream again.")
@click.pass_obj
def requeue(shared: Shared, task_id: str, keep_key: bool) -> int:
    """Run a finished task again as a new task, and print the new id."""

    async def ask() -> str:
        async with shared.client() as engine:
            return (await engine.requeue(task_id, keep_key=keep_key, actor=ACTOR)).id

    new_id = run_async(ask)
    if shared.as_json:
        write_json({"id": new_id, "requeued_from": task_id})
    else:
        say(new_id)
    return 0


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.pass_obj
def delete(shared: Shared, task_id: str) -> int:
    """Delete a finished task with its history."""

    async def ask() -> None:
        async with shared.client() as engine:
            await engine.delete(task_id)

    run_async(ask)
    if shared.as_json:
        write_json({"id": task_id, "deleted": True})
    else:
        say("deleted")
    return 0
