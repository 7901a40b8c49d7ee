"""Sync bodies on the event loop itself: for tests, and for functions that take microseconds."""

from typing import Any

from taskengine.ports import BodyEnd, Call


class InlineExecutor:
    """Runs sync bodies on the event loop itself, blocking it."""

    def start(self, call: Call) -> "InlineBody":
        """See `Executor.start`."""
        return InlineBody(call)

    def close(self) -> None:
        """Nothing to let go."""


class InlineBody:
    """A sync body on the loop; it cannot be interrupted, and by the time anybody could it has ended."""

    def __init__(self, call: Call) -> None:
        self._call = call

    async def run(self) -> BodyEnd:
        """See `Body.run`."""
        call = self._call
        try:
            value: Any = call.context.run(call.function, *call.args, **call.kwargs)
        except BaseException as error:
            return BodyEnd(error=error)
        return BodyEnd(value=value)

    def interrupt(self) -> None:
        """No effect."""

    def abandon(self) -> None:
        """No effect."""

    def where(self) -> str:
        """See `Body.where`."""
        return "on the event loop"
