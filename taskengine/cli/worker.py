"""`worker`: run what is in the database, until told to stop or until nothing is left."""

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.options import (
    ENDED_OTHERWISE,
    EngineCommand,
    Shared,
    engine_options,
    engine_settings,
    shared_options,
)
from taskengine.cli.output import closing, note, plain, run_async, stdout_as_stderr, write_json
from taskengine.core.errors import EngineNotRunning
from taskengine.core.lifecycle import FINAL, State

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from taskengine.cli.progress import EndCounter
    from taskengine.engine import Engine


@click.command(cls=EngineCommand)
@shared_options
@click.option("--drain", is_flag=True, help="End when nothing is left that can run here.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Bodies at once.")
@click.option("--grace", type=click.FloatRange(min=0), default=25.0, show_default=True, help="Seconds, at a signal.")
@engine_options
@click.pass_obj
def worker(
    shared: Shared,
    /,
    drain: bool,
    concurrency: int,
    grace: float,
    backend: str,
    allow_hosts: tuple[str, ...],
    durability: str | None,
    **settings: Any,
) -> int:
    """Run tasks: http_post, and those of the modules named by --tasks.

    SIGINT or SIGTERM: no more is begun, bodies have the grace to end, the rest goes back to the queue uncharged. A
    second signal cancels the bodies at once, a third ends the process on the spot. With --drain, exit 3 if a task that
    ended here did not succeed.
    """
    from taskengine.cli.progress import EndCounter
    from taskengine.engine import Engine
    from taskengine.tasks.downstream import HttpxDownstream
    from taskengine.tasks.http import http_post

    path = shared.path()
    downstream = HttpxDownstream(allow_hosts=allow_hosts)
    engine = Engine(
        path,
        tasks=[http_post, *shared.modules()],
        concurrency=concurrency,
        durability=durability,
        shutdown_grace=grace,
        downstream=downstream,
        **engine_settings(**settings),
    )

    async def work() -> list[dict[str, Any]]:
        shift = Shift(engine, counter, drain=drain)
        async with closing(downstream):
            await shift.run()
        async with Engine(path) as client:
            return shift.describe_left((await client.stats()).by_name)

    with EndCounter() as counter:
        with stdout_as_stderr(shared.as_json):
            left = run_async(work, backend)
    if shared.as_json:
        write_json({"ended": counter.total, "by_state": dict(counter.ends), "left": left})
    note(f"{counter}{_describe_left(left)}")
    return ENDED_OTHERWISE if drain and counter.unsuccessful else 0


def _describe_left(left: list[dict[str, Any]]) -> str:
    if not left:
        return "; nothing is left"
    return "; left: " + ", ".join(f"{item['unfinished']:,} {plain(item['name'])} ({item['why']})" for item in left)


class Shift:
    """One stay of a worker in its database."""

    def __init__(self, engine: "Engine", counter: "EndCounter", *, drain: bool) -> None:
        self._engine = engine
        self._counter = counter
        self._drain = drain
        self._is_interrupted = False

    async def run(self) -> None:
        """Work until told to stop, or until nothing is left.

        Cancellation: as leaving the engine.
        """
        import anyio

        self._over = anyio.Event()
        async with anyio.create_task_group() as outer:
            await outer.start(self._obey_signals)
            async with self._engine as engine:
                note(f"working on {', '.join(engine.task_names)}")
                async with anyio.create_task_group() as inner:
                    inner.start_soon(self._show)
                    if self._drain:
                        inner.start_soon(self._await_drain)
                    await self._over.wait()
                    inner.cancel_scope.cancel()
                if self._is_interrupted:
                    note("no more is begun; waiting for what is running (a second signal cancels it)")
            outer.cancel_scope.cancel()

    async def _show(self) -> None:
        from taskengine.cli.progress import show_progress

        await show_progress(self._engine, self._counter)

    async def _await_drain(self) -> None:
        await self._engine.drain()
        self._over.set()

    async def _obey_signals(self, *, task_status: "TaskStatus[None]") -> None:
        import anyio

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            received = 0
            async for _ in signals:
                received += 1
                if received == 1:
                    self._is_interrupted = True
                    self._over.set()
                elif received == 2:
                    note("cancelling what is running")
                    with suppress(EngineNotRunning):  # It has been left in the meantime.
                        self._engine.end_bodies()
                else:
                    os._exit(1)

    def describe_left(self, by_name: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
        """Tell what is unfinished, by name, and why that was left."""
        known = set(self._engine.task_names)
        left = []
        for name, numbers in sorted(by_name.items()):
            unfinished = sum(number for state, number in numbers.items() if State(state) not in FINAL)
            if not unfinished:
                continue
            why = "not known here; pass --tasks MODULE"
            if name in known:
                # After a drain only what is held can be left of a known name.
                why = "left for the next worker" if self._is_interrupted else "held"
            left.append({"name": name, "unfinished": unfinished, "why": why})
        return left
