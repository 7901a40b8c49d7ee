"""Sync bodies on the event loop itself: for tests, and for functions that take microseconds."""

from types import FrameType
from typing import Any

from taskengine.ports import BodyEnd, Call


class InlineExecutor:
    """Runs sync bodies on the event loop itself, blocking it."""

    wants_facts = False

    def start(self, call: Call) -> "InlineBody":
        """See `Executor.start`."""
        return InlineBody(call)

    async def aclose(self) -> None:
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


def call_in_frame(frame: FrameType) -> Call | None:
    """Return the call whose body this frame is running, if that is what it does; from any thread."""
    if frame.f_code is _RUNNING:
        body = frame.f_locals.get("self")
        return body._call if isinstance(body, InlineBody) else None
    return None


_RUNNING = InlineBody.run.__code__
