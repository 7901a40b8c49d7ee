"""`run`: submit one task, run it here, tell how it ended."""

import signal
from typing import Any

import click

from taskengine.cli.calls import given_options, known_tasks, make_call, parse_arguments, submit_options
from taskengine.cli.looking import describe
from taskengine.cli.options import (
    ENDED_OTHERWISE,
    EngineCommand,
    Shared,
    engine_options,
    engine_settings,
    shared_options,
)
from taskengine.cli.output import (
    closing,
    interrupted_by,
    note,
    plain,
    run_async,
    stdout_as_stderr,
    task_as_json,
    write_json,
)
from taskengine.core.lifecycle import State
from taskengine.core.model import Task


@click.command("run", cls=EngineCommand)
@shared_options
@click.argument("name")
@submit_options
@engine_options
@click.pass_obj
def run_command(
    shared: Shared,
    /,
    name: str,
    arguments: tuple[str, ...],
    backend: str,
    allow_hosts: tuple[str, ...],
    durability: str | None,
    stop_grace: float | None,
    default_executor: str | None,
    **given: Any,
) -> int:
    """Submit one task, run it here with its retries, and print how it ended; exit 3 unless it succeeded.

    Other tasks in the database are left to workers. An interrupted run leaves its task queued.
    """
    options = given_options(**given)
    path = shared.path()
    known = known_tasks(shared.modules())
    call = make_call(name, parse_arguments(arguments), known, must_be_known=True)

    async def run_it() -> Task:
        from taskengine.cli.single import SingleTaskStore
        from taskengine.engine import Engine
        from taskengine.ids import new_id
        from taskengine.stores.opening import open_store
        from taskengine.tasks.downstream import HttpxDownstream

        chosen = new_id()
        downstream = HttpxDownstream(allow_hosts=allow_hosts)
        store = SingleTaskStore(open_store(path, durability), task_id=chosen, key=options.get("idempotency_key"))
        engine = Engine(
            store,
            tasks=known.values(),
            concurrency=1,
            prefetch=0,
            # Left early only by Ctrl-C, and then at once.
            shutdown_grace=0.0,
            downstream=downstream,
            **engine_settings(stop_grace=stop_grace, default_executor=default_executor),
        )
        async with interrupted_by(signal.SIGTERM), closing(downstream), engine:
            handle = await engine.submit(call, id=chosen, **options)
            if not handle.created:
                note(f"the key belongs to task {handle.id}, which is not submitted again")
            found = await engine.explain(handle.id)
            if found.code.startswith("held"):
                note(f"it will not begin before that ends: {plain(found.sentence)}")
            await handle.wait()
            return await engine.get(handle.id)

    with stdout_as_stderr(shared.as_json):
        task = run_async(run_it, backend)
    if shared.as_json:
        write_json(task_as_json(task))
    else:
        describe(task)
    return 0 if task.state is State.SUCCEEDED else ENDED_OTHERWISE
