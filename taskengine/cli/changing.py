"""Commands that ask something of tasks that have not ended: `cancel`, `stop`, `pause`, `resume`; of one or of many."""

import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.listing import with_hold
from taskengine.cli.many import Selection, actor_option, ask_many, reason_option, selection_options
from taskengine.cli.options import ENDED_OTHERWISE, EngineCommand, Shared, shared_options
from taskengine.cli.output import plain, run_async, say, task_as_json, write_json
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import Task

if TYPE_CHECKING:
    from taskengine.engine import Engine

_SECONDS = click.FloatRange(min=0)


# --- ending -----------------------------------------------------------------------------------------------------


@click.command(cls=EngineCommand)
@shared_options
@selection_options
@reason_option
@actor_option
@click.option("--timeout", "--wait", "timeout", type=_SECONDS, help="Seconds to wait for the end.  [default: 10]")
@click.pass_obj
def cancel(shared: Shared, /, reason: str | None, actor: str, timeout: float | None, **which: Any) -> int:
    """Cancel a task at once, and wait for its end; or many, without waiting.

    A task that another process runs is ended by that process; if it has not done so in time, the request stands, this
    prints `requested`, and the exit code is 0. Exit 3: the task has ended otherwise than cancelled.
    """
    chosen = _selection(which, timeout)
    if chosen.task_id is None:
        return ask_many(shared, lambda engine: engine.cancel_many, reason=reason, actor=actor, **chosen.where)
    task_id = chosen.task_id
    return _end(
        shared,
        State.CANCELLED,
        lambda engine: engine.cancel(task_id, reason=reason, actor=actor, timeout=timeout),
    )


@click.command(cls=EngineCommand)
@shared_options
@selection_options
@reason_option
@actor_option
@click.option("--timeout", type=_SECONDS, help="Seconds to wait for the end.  [default: 14]")
@click.pass_obj
def stop(shared: Shared, /, reason: str | None, actor: str, timeout: float | None, **which: Any) -> int:
    """Stop a task at its next checkpoint, and wait for its end; or many, without waiting.

    A body that comes to no checkpoint within the worker's --stop-grace is ended by force. If nothing has come of it in
    time, the request stands, this prints `requested`, and the exit code is 0. Exit 3: the task has ended otherwise
    than stopped.
    """
    chosen = _selection(which, timeout)
    if chosen.task_id is None:
        return ask_many(shared, lambda engine: engine.stop_many, reason=reason, actor=actor, **chosen.where)
    task_id = chosen.task_id
    return _end(
        shared,
        State.STOPPED,
        lambda engine: engine.stop(task_id, reason=reason, actor=actor, timeout=timeout),
    )


def _selection(which: dict[str, Any], timeout: float | None = None) -> Selection:
    chosen = Selection(**which)
    if chosen.task_id is None and timeout is not None:
        raise click.UsageError("--timeout is for one task; the ends of many are not waited for")
    return chosen


def _end(shared: Shared, wished: State, ask: "Callable[[Engine], Awaitable[Task]]") -> int:
    async def request() -> Task:
        async with shared.client() as engine:
            return await ask(engine)

    task = run_async(request)
    _answer(shared, task, task.state.value if task.is_final else "requested")
    return 0 if not task.is_final or task.state is wished else ENDED_OTHERWISE


# --- pausing ----------------------------------------------------------------------------------------------------


@click.command(cls=EngineCommand)
@shared_options
@selection_options
@reason_option
@actor_option
@click.pass_obj
def pause(shared: Shared, /, reason: str | None, actor: str, **which: Any) -> int:
    """Pause a task at its next checkpoint, or hold it if it has no body; or many, without waiting.

    Prints `paused` or `held`. A body that comes to no checkpoint in time goes on, and the exit code is 1.
    """
    chosen = _selection(which)
    if chosen.task_id is None:
        return ask_many(shared, lambda engine: engine.pause_many, reason=reason, actor=actor, **chosen.where)
    task_id = chosen.task_id
    begun = datetime.now(UTC)

    async def request() -> tuple[Task, str | None]:
        async with shared.client() as engine:
            is_paused = await engine.pause(task_id, reason=reason, actor=actor)
            task = await engine.get(task_id)
            return task, None if is_paused else await _why_not_paused(engine, task, begun)

    task, problem = run_async(request)
    if problem is not None:
        raise click.ClickException(f"not paused: {problem}")
    _answer(shared, task, "paused" if task.state is State.PAUSED else "held")
    return 0


async def _why_not_paused(engine: "Engine", task: Task, since: datetime) -> str:
    """Tell why, from what has happened since the request was made."""
    if task.is_final or task.state is State.STOPPING:
        return _ending(task)
    moves = [move for move in await engine.history(task.id) if move.at >= since]
    if not moves:
        return "the process that runs it has not answered; the request may still be carried out"
    if moves[-1].trigger is Trigger.RUNTIME_PAUSE_MISSED:
        return "its body came to no checkpoint (a body that takes no context never does); the pause was taken back"
    if moves[-1].trigger is Trigger.USER_RESUME:
        return f"{moves[-1].actor} has resumed it in the meantime"
    return "the process that runs it has not answered; the request may still be carried out"


@click.command(cls=EngineCommand)
@shared_options
@selection_options
@reason_option
@actor_option
@click.pass_obj
def resume(shared: Shared, /, reason: str | None, actor: str, **which: Any) -> int:
    """Let a paused or held task go on; or many, without waiting.

    Prints `resumed`. A task that is held with others by `hold` needs a `release`; the exit code is 1 then.
    """
    chosen = _selection(which)
    if chosen.task_id is None:
        return ask_many(shared, lambda engine: engine.resume_many, reason=reason, actor=actor, **chosen.where)
    task_id = chosen.task_id

    async def request() -> tuple[Task, bool]:
        async with shared.client() as engine:
            is_resumed = await engine.resume(task_id, reason=reason, actor=actor)
            # With the hold of many that may still cover it; only some of them leave a mark on the task itself.
            task = with_hold(await engine.get(task_id), await engine.holds())
            return task, is_resumed and task.held is None

    task, is_resumed = run_async(request)
    if not is_resumed:
        raise click.ClickException(f"not resumed: {_why_not_resumed(task)}")
    _answer(shared, task, "resumed")
    return 0


def _why_not_resumed(task: Task) -> str:
    if task.is_final or task.state is State.STOPPING:
        return _ending(task)
    if task.held is not None and task.held.by is not None:
        scope, _, target = task.held.by.partition(":")
        words = f" --{scope} {plain(shlex.quote(target))}" if target else ""
        return f"it is held with others by {plain(task.held.actor)}; `taskengine release{words}` ends that"
    return "the process that runs it has not answered; the request may still be carried out"


def _ending(task: Task) -> str:
    return f"it has ended ({task.state.value})" if task.is_final else "it is being ended"


def _answer(shared: Shared, task: Task, answer: str) -> None:
    if shared.as_json:
        write_json({**task_as_json(task), "answer": answer})
    else:
        say(answer)
