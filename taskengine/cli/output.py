"""What goes to stdout and stderr, and in which form.

Names, labels and errors come from anywhere. To people they are shown with their control characters escaped and never
read as markup; in JSON they are what they are.
"""

import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, redirect_stdout
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskengine.core.model import Failure, Hold, Progress, Task, Transition, Wish

if TYPE_CHECKING:
    import anyio
    from anyio.abc import TaskStatus

    from taskengine.cli.tables import Table
    from taskengine.core.timeouts import Timeouts
    from taskengine.ports import Downstream

T = TypeVar("T")


def plain(text: object) -> str:
    """Return text fit for one line of a terminal: what is not printable is escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(text: str = "") -> None:
    """Write a line for people to stdout."""
    click.echo(text)


def note(text: str) -> None:
    """Write a line for people to stderr."""
    click.echo(text, err=True)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout."""
    import msgspec

    click.echo(msgspec.json.encode(value, enc_hook=str).decode())


def show(table: "Table") -> None:
    """Write a table to stdout."""
    if not sys.stdout.isatty():
        say("\n".join(table.lines()))
        return
    from rich.console import Console

    Console(highlight=False).print(table, crop=False)


def run_async(function: Callable[[], Coroutine[Any, Any, T]], backend: str = "asyncio") -> T:
    """Run an async command to its end.

    Raises:
        ClickException: the backend is not installed.
    """
    import anyio

    if backend == "trio":
        try:
            import trio  # noqa: F401
        except ModuleNotFoundError:
            raise click.ClickException("trio is not installed; run: pip install 'taskengine[trio]'") from None
    return anyio.run(function, backend=backend)


@contextmanager
def stdout_as_stderr(wanted: bool) -> Iterator[None]:
    """Send what bodies print to stderr, so that stdout is one JSON document."""
    if not wanted:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


@asynccontextmanager
async def interrupted_by(number: signal.Signals) -> AsyncIterator[None]:
    """Have a signal end the block as Ctrl-C does.

    Raises:
        KeyboardInterrupt: the signal came; what was in the block has been cancelled and has ended.
    """
    import anyio

    came = False

    async def wait(scope: "anyio.CancelScope", *, task_status: "TaskStatus[None]") -> None:
        nonlocal came
        with anyio.open_signal_receiver(number) as signals:
            task_status.started()
            async for _ in signals:
                came = True
                scope.cancel()

    async with anyio.create_task_group() as tg:
        with anyio.CancelScope() as block:
            await tg.start(wait, block)
            yield
        tg.cancel_scope.cancel()
    if came and block.cancelled_caught:
        raise KeyboardInterrupt


@asynccontextmanager
async def closing(downstream: "Downstream") -> AsyncIterator[None]:
    """Close a downstream's idle connections when the block is left, however that happens."""
    import anyio

    try:
        yield
    finally:
        with anyio.move_on_after(1.0, shield=True):
            await downstream.aclose()


# --- values for JSON --------------------------------------------------------------------------------------------


def instant(at: datetime | None) -> str | None:
    """Write an instant in ISO 8601, UTC, always with microseconds so that texts sort as instants do."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def task_as_json(task: Task) -> dict[str, Any]:
    """Lay out a task. Its arguments are left out, since headers among them may hold secrets."""
    return {
        "id": task.id,
        "name": task.name,
        "state": task.state.value,
        "attempt": task.attempt,
        "charged": task.charged,
        "max_attempts": task.max_attempts,
        "priority": task.priority,
        "label": task.label,
        "tags": list(task.tags),
        "metadata": dict(task.metadata),
        "idempotency_key": task.idempotency_key,
        "requeued_from": task.requeued_from,
        "created_at": instant(task.created_at),
        "due_at": instant(task.due_at),
        "started_at": instant(task.started_at),
        "finished_at": instant(task.finished_at),
        "duration_ms": task.duration_ms,
        "total_ms": task.total_ms,
        "deadline_at": instant(task.deadline_at),
        "progress": _progress_as_json(task.progress),
        "held": _hold_as_json(task.held),
        "wish": _wish_as_json(task.wish),
        "timeouts": _timeouts_as_json(task.timeouts),
        "callbacks": dict(task.callbacks),
        "result": task.result,
        "error": task.error,
        "failure": failure_as_json(task.failure),
    }


def _progress_as_json(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
        "message": progress.message,
        "fraction": progress.fraction,
        "at": instant(progress.at),
    }


def _hold_as_json(hold: Hold | None) -> dict[str, Any] | None:
    if hold is None:
        return None
    return {"actor": hold.actor, "reason": hold.reason, "until": instant(hold.until), "by": hold.by}


def _wish_as_json(wish: Wish | None) -> dict[str, Any] | None:
    return None if wish is None else {"kind": wish.kind.value, "actor": wish.actor, "reason": wish.reason}


def _timeouts_as_json(timeouts: "Timeouts | None") -> dict[str, Any] | None:
    if timeouts is None:
        return None
    seconds = {name: getattr(timeouts, name) for name in ("start", "attempt", "idle", "total")}
    return {**seconds, "final": sorted(timeouts.final)}


def failure_as_json(failure: Failure | None) -> dict[str, Any] | None:
    """Lay out a failure, its traceback included."""
    if failure is None:
        return None
    return {
        "kind": failure.kind.value,
        "type": failure.type,
        "message": failure.message,
        "traceback": failure.traceback,
        "retryable": failure.retryable,
        "attempt": failure.attempt,
        "detail": dict(failure.detail) if isinstance(failure.detail, Mapping) else failure.detail,
    }


def transition_as_json(move: Transition) -> dict[str, Any]:
    """Lay out one move of a task's history."""
    return {
        "position": move.position,
        "version": move.version,
        "from": move.source.value,
        "to": move.target.value,
        "at": instant(move.at),
        "trigger": move.trigger.value,
        "actor": move.actor,
        "reason": move.reason,
        "attempt": move.attempt,
        "failure": failure_as_json(move.failure),
    }
