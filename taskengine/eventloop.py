"""The one thing that threads need of a running event loop and that differs between the backends."""

import asyncio
import sys
from collections.abc import Callable

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
    loop = asyncio.get_running_loop()

    def soon(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    return soon
