"""The two things that the backends do differently and anyio does not hide: a call from a thread, and Ctrl-C."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

Soon = Callable[[Callable[[], None]], None]
"""Has a callback run in the loop's thread, soon; callable from any thread.

The callback must not raise. Raises RuntimeError when the loop has ended.
"""


def run_soon() -> Soon:
    """Return the running loop's `Soon`. Call it from inside the loop.

    anyio's own `from_thread.run_sync` is not used: it waits for the callback, so that it stops with a blocked loop and
    hangs on one that has ended.
    """
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return trio.lowlevel.current_trio_token().run_sync_soon
    import asyncio  # Late: a program on trio may never need it.

    loop = asyncio.get_running_loop()

    def soon(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return soon


def protect(function: Callable[..., Any]) -> None:
    """Have trio raise no KeyboardInterrupt in the middle of this function of ours, but only where it waits."""
    if "trio" in sys.modules:
        import trio

        trio.lowlevel.enable_ki_protection(function)


def forget_own_cancels() -> None:
    """On asyncio, take back the cancels of the running task that no scope has made."""
    if "asyncio" not in sys.modules:
        return
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:
        return
    while task is not None and task.cancelling():
        if task.uncancel() == 0:
            break


def is_on_loop() -> bool:
    """Tell whether this thread is running an event loop right now, so that blocking it would block that loop."""
    if "trio" in sys.modules:
        import trio

        if trio.lowlevel.in_trio_run():
            return True
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    return asyncio._get_running_loop() is not None


def spawn(tg: "TaskGroup", run: Callable[..., Awaitable[Any]], *args: object, name: str) -> None:
    """Start an anyio task in which trio raises no KeyboardInterrupt.

    A Ctrl-C belongs to the host. trio raises it in whichever unprotected task happens to run, which may be a body,
    where it would pass for the body's own failure. On asyncio the loop's runner cancels the host's task instead.
    """
    if "trio" in sys.modules:
        import trio

        trio.lowlevel.enable_ki_protection(_protected)
    tg.start_soon(_protected, run, args, name=name)


async def _protected(run: Callable[..., Awaitable[Any]], args: tuple[object, ...]) -> None:
    await run(*args)
