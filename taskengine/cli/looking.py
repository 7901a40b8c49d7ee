"""Commands that read: `status`, `history`, `explain`, `stats`. None of them makes a database."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.listing import now, with_hold
from taskengine.cli.options import ENDED_OTHERWISE, EngineCommand, Shared, shared_options
from taskengine.cli.output import (
    instant,
    plain,
    run_async,
    say,
    show,
    task_as_json,
    transition_as_json,
    write_json,
)
from taskengine.core.lifecycle import TIMED, State
from taskengine.core.model import Hold, Stats, Task, Transition

if TYPE_CHECKING:
    from taskengine.core.explain import Explanation
    from taskengine.core.timeouts import Timeouts

ASKED_ENDS = {State.STOPPED: "stop", State.CANCELLED: "cancel"}
"""Final states that somebody asked for, and the word for asking."""


@click.command(cls=EngineCommand)
@shared_options
@click.argument("task_id", metavar="ID")
@click.pass_obj
def status(shared: Shared, task_id: str) -> int:
    """Show one task; exit 3 if it has ended otherwise than succeeded."""

    async def read() -> tuple[Task, Transition | None]:
        async with shared.client() as engine:
            task = with_hold(await engine.get(task_id), await engine.holds())
            # A task that had no body when it was ended has no wish; its last move knows who asked.
            needs_move = task.state in ASKED_ENDS and task.wish is None
            return task, (await engine.history(task_id))[-1] if needs_move else None

    task, last_move = run_async(read)
    if shared.as_json:
        write_json(task_as_json(task))
    else:
        describe(task, last_move)
    return ENDED_OTHERWISE if task.is_final and task.state is not State.SUCCEEDED else 0


def describe(task: Task, last_move: Transition | None = None) -> None:
    """Write what is known of a task for people, a line for each thing.

    Args:
        last_move: of a task that was ended by somebody while it had no body.
    """
    for name, value in _facts(task, last_move):
        if value not in (None, ""):
            say(f"{name + ':':<15}{plain(value)}")


def _facts(task: Task, last_move: Transition | None) -> Iterator[tuple[str, Any]]:
    from taskengine.cli.tables import elapsed, progress

    yield "id", task.id
    yield "name", task.name
    yield "state", task.state.value
    yield "attempts", f"{task.charged}/{task.max_attempts or '-'} charged, {task.attempt} begun"
    yield "label", task.label
    yield "tags", " ".join(task.tags)
    yield "key", task.idempotency_key
    yield "requeued from", task.requeued_from
    if task.held is not None:
        yield "held by", _describe_hold(task.held)
    yield "asked", _describe_asked(task, last_move)
    yield "created", instant(task.created_at)
    yield "due", instant(task.due_at) if _has_due_time(task) else None
    yield "started", instant(task.started_at)
    yield "finished", instant(task.finished_at)
    yield "elapsed", elapsed(task, now())
    yield "timeouts", None if task.timeouts is None else _describe_timeouts(task.timeouts)
    yield "deadline", instant(task.deadline_at)
    yield "callbacks", ", ".join(f"on {end}: {name}" for end, name in task.callbacks.items())
    yield "progress", progress(task.progress)
    yield "failure", task.error
    if task.state is State.SUCCEEDED:
        yield "result", _short_json(task.result)


def _has_due_time(task: Task) -> bool:
    return task.state in TIMED or (task.started_at is None and not task.is_final)


def _describe_asked(task: Task, last_move: Transition | None) -> str | None:
    """Tell what was asked of the task, by whom and why, while that stands or if it came to be."""
    if task.is_final and task.state not in ASKED_ENDS:
        return None
    if task.wish is not None:
        word, actor, reason = task.wish.kind.value, task.wish.actor, task.wish.reason
    elif last_move is not None:
        word, actor, reason = ASKED_ENDS[task.state], last_move.actor, last_move.reason
    else:
        return None
    return f"{word} by {actor}" + (f": {reason}" if reason else "")


def _describe_hold(hold: Hold) -> str:
    parts = [hold.actor]
    if hold.by is not None:
        parts.append(f"with {hold.by.removesuffix(':')}")
    if hold.until is not None:
        parts.append(f"until {instant(hold.until)}")
    return " ".join(parts) + (f": {hold.reason}" if hold.reason else "")


def _describe_timeouts(timeouts: "Timeouts") -> str:
    parts = []
    for name in ("start", "attempt", "idle", "total"):
        seconds = getattr(timeouts, name)
        if seconds is not None:
            parts.append(f"{name} {seconds:g}s" + (" (final)" if name in timeouts.final else ""))
    return ", ".join(parts) or "none"


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
@click.argument("task_id", metavar="ID")
@click.pass_obj
def explain(shared: Shared, task_id: str) -> int:
    """Tell in one sentence why a task is not running, or that it is."""

    async def read() -> "Explanation":
        async with shared.client() as engine:
            return await engine.explain(task_id)

    found = run_async(read)
    if shared.as_json:
        write_json({"code": found.code, "sentence": found.sentence, "data": dict(found.data)})
    else:
        say(plain(found.sentence))
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
    # Of all processes: this one runs nothing, so its own slots say nothing. A paused body keeps its slot.
    counters["slots_paused"] = found.by_state[State.PAUSED.value]
    if shared.as_json:
        by_name = {name: dict(numbers) for name, numbers in found.by_name.items()}
        write_json({"by_state": dict(found.by_state), "by_name": by_name, **counters})
        return 0
    from taskengine.cli.tables import stats_table

    show(stats_table(found))
    say("  ".join(f"{name} {number:,}" for name, number in counters.items()))
    return 0
