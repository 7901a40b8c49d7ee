"""In-process listeners: somebody who wants to hear of every committed move, and whose troubles are his own."""

import inspect
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from taskengine.core.errors import StoreError
from taskengine.core.model import Transition
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import forget_own_cancels
from taskengine.views import EventStream

logger = diagnostics("taskengine")

OUTAGE_PAUSE = 1.0
"""Seconds between looks while the store cannot be read."""

Listener = Callable[[Transition], Awaitable[None] | None]


class Listening:
    """One listener at work. Made by `Engine.listen`."""

    def __init__(self, listener: Listener, events: EventStream) -> None:
        self._listener = listener
        self._events = events
        self._scope = anyio.CancelScope()
        self._has_ended = anyio.Event()
        self.failures = 0
        """How often the listener raised."""

    def stop(self) -> None:
        """End it; a call that is under way is cancelled. Idempotent."""
        self._scope.cancel()

    async def run(self) -> None:
        """Tell until the engine is left; what was committed by then is told.

        Cancellation: ends it.
        """
        try:
            with self._scope:
                while not await self._tell_all():  # noqa: ASYNC110  # The store tells nobody when it is back.
                    await anyio.sleep(OUTAGE_PAUSE)
        finally:
            self._has_ended.set()

    async def _tell_all(self) -> bool:
        """Tell until the events end (True) or cannot be read for now."""
        try:
            async for event in self._events:
                await self._tell(event)
        except StoreError as error:
            logger.warning("what is to be told to a listener cannot be read yet: %s", error)
            return False
        except anyio.get_cancelled_exc_class():
            # Ours leaves here. One that the listener left behind (a timeout that was entered and not left) does not.
            await anyio.lowlevel.checkpoint_if_cancelled()
            forget_own_cancels()
            self._note()
            return False
        return True

    async def ended(self) -> None:
        """Wait until it has told everything.

        Cancellation: gives up waiting.
        """
        await self._has_ended.wait()

    async def _tell(self, event: Transition) -> None:
        try:
            answer = self._listener(event)
            if inspect.isawaitable(answer):
                await answer
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint_if_cancelled()  # Ours leaves here; one that the listener made up does not.
            forget_own_cancels()
            self._note()
        except BaseException:
            self._note()

    def _note(self) -> None:
        self.failures += 1
        logger.exception("a listener raised; it hears of the next move all the same")
