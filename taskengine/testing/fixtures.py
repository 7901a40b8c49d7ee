"""An engine in a test fixture.

A fixture is entered and left by a test framework, and not always in one anyio task: pytest-asyncio runs each fixture,
and each test, in tasks of their own. A task group must be left where it was entered, so `async with Engine(...)` does
not belong in such a fixture. Under anyio's own plugin it would work until something in it fails; then asyncio shows a
bare cancellation and trio hangs.

`engine_in_background` gives the engine a task of its own, in which it is entered and left, and no scope of it reaches
the fixture. Within one test a plain `async with Engine(...)` needs nothing of this.
"""

import asyncio
import contextvars
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from attrs import define, field

from taskengine.engine import Engine


@define(eq=False)
class _Stay:
    """One stay in an engine, as its own task and its user see it."""

    engine: Engine
    entered_or_failed: anyio.Event = field(factory=anyio.Event)
    may_leave: anyio.Event = field(factory=anyio.Event)
    ended: anyio.Event = field(factory=anyio.Event)
    error: BaseException | None = None

    async def live(self) -> None:
        try:
            async with self.engine:
                self.entered_or_failed.set()
                await self.may_leave.wait()
        except anyio.get_cancelled_exc_class() as error:
            # The loop is ending; whoever waits for us has to be told all the same.
            self.error = error
            raise
        except BaseException as error:  # it is raised where somebody can see it
            self.error = error
        finally:
            self.entered_or_failed.set()
            self.ended.set()


@asynccontextmanager
async def engine_in_background(engine: Engine) -> AsyncIterator[Engine]:
    """Enter an engine in a task of its own; usable from a fixture of any test framework, on asyncio and trio.

    ```python
    @pytest.fixture
    async def engine():
        async with engine_in_background(Engine(MemoryStore(), tasks=[my_task])) as engine:
            yield engine
    ```

    Args:
        engine: not entered yet.

    Raises:
        What entering the engine raises; and on the way out, what became of an engine that crashed in the meantime. The
        block's own exception leaves as it was raised.

    Cancellation: while entering or leaving, it still waits until the engine has been left, which is bounded by the
    engine's graces.
    """
    stay = _Stay(engine)
    keep = _spawn(stay.live)
    try:
        await stay.entered_or_failed.wait()
        if stay.error is not None:
            raise stay.error
        yield engine
    finally:
        stay.may_leave.set()
        with anyio.CancelScope(shield=True):
            await stay.ended.wait()
        del keep
    if stay.error is not None:
        raise stay.error


def _spawn(live: Callable[[], Awaitable[None]]) -> object:
    """Start a task that belongs to no task group of ours; return what must be kept while it runs."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.spawn_system_task(
                live, name="taskengine in background", context=contextvars.copy_context()
            )

    async def main() -> None:
        await live()

    # asyncio itself holds tasks only weakly.
    return asyncio.get_running_loop().create_task(main(), name="taskengine in background")


__all__ = ["engine_in_background"]
