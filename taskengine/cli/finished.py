"""Commands about tasks that have ended: `requeue`, of one or of all dead letters, and `delete`."""

import click

from taskengine.cli.many import actor_option, given
from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import run_async, say, write_json


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="[ID]", required=False)
@click.option("--dead", "all_dead", is_flag=True, help="All dead letters instead of one task.")
@click.option("--tag", help="Of the dead letters, those with this tag.")
@click.option("--name", help="Of the dead letters, those of this name.")
@click.option("--keep-key", is_flag=True, help="Send the old idempotency key downstream again.")
@actor_option
@click.pass_obj
def requeue(
    shared: Shared,
    task_id: str | None,
    all_dead: bool,
    tag: str | None,
    name: str | None,
    keep_key: bool,
    actor: str,
) -> int:
    """Run a finished task again as a new task, and print the new id; or (--dead) all dead letters, and how many."""
    if (task_id is None) != all_dead:
        raise click.UsageError("say which: an ID, or --dead with or without --tag and --name")
    if task_id is not None:
        if tag is not None or name is not None:
            raise click.UsageError("--tag and --name are for --dead")
        return _requeue_one(shared, task_id, keep_key=keep_key, actor=actor)

    async def ask() -> int:
        async with shared.client() as engine:
            return await engine.requeue_many(keep_key=keep_key, actor=actor, **given(tag=tag, name=name))

    count = run_async(ask)
    if shared.as_json:
        write_json({"requeued": count})
    else:
        say(f"{count:,} requeued")
    return 0


def _requeue_one(shared: Shared, task_id: str, *, keep_key: bool, actor: str) -> int:
    async def ask() -> str:
        async with shared.client() as engine:
            return (await engine.requeue(task_id, keep_key=keep_key, actor=actor)).id

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
    """Delete a finished task with its history, its lines and its artifacts."""

    async def ask() -> None:
        async with shared.client() as engine:
            await engine.delete(task_id)

    run_async(ask)
    if shared.as_json:
        write_json({"id": task_id, "deleted": True})
    else:
        say("deleted")
    return 0
