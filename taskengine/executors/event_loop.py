"""Async bodies, on the event loop.

The body's coroutine is driven by hand, inside a cancel scope of its own. That buys two things over a plain `await`.
A body that swallows its cancellation can be abandoned: at its next resumption it is simply not resumed, and its slot
moves on. And it runs in a contextvars Context of its own, without the price of an anyio task for each attempt.

What cannot be freed: a body that never awaits (it blocks the loop), and on trio a body that is shielded for ever (it
is never resumed). On asyncio a shield does not hold against the task's own `cancel`, which `abandon` uses.
"""

import asyncio
import ctypes
import inspect
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

import anyio

from taskengine.ports import BodyEnd, Call


class _Abandoned(BaseException):
    """Raised in place of resuming a body that nobody waits for."""


class _Drive:
    """Awaitable that steps a coroutine in its own context until it ends or is abandoned."""

    __slots__ = ("call", "context", "coroutine", "is_abandoned")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], call: Call) -> None:
        self.coroutine = coroutine
        self.call = call
        self.context = call.context
        self.is_abandoned = False

    def __await__(self) -> Generator[Any, Any, Any]:
        run, send, throw = self.context.run, self.coroutine.send, self.coroutine.throw
        try:
            trap = run(send, None)
            while True:
                try:
                    answer = yield trap
                except BaseException as error:
                    if self.is_abandoned:
                        raise _Abandoned from None
                    trap = run(throw, error)
                else:
                    if self.is_abandoned:
                        raise _Abandoned
                    trap = run(send, answer)
        except StopIteration as stop:
            return stop.value


class LoopBody:
    """An async body; the contract is `ports.Body`."""

    def __init__(self, call: Call, *, on_asyncio: bool) -> None:
        self._call = call
        self._on_asyncio = on_asyncio
        self._scope = anyio.CancelScope()
        self._drive: _Drive | None = None
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> BodyEnd:
        """See `Body.run`."""
        end = BodyEnd()
        if self._on_asyncio:
            self._task = asyncio.current_task()
        # By hand and not `with`: a body that leaks a scope makes the exit raise, and that must not hide its outcome.
        self._scope.__enter__()
        try:
            coroutine = self._call.context.run(_begin, self._call)
            self._drive = _Drive(coroutine, self._call)
            end.value = await self._drive
        except _Abandoned as abandoned:
            end.is_abandoned, end.error = True, abandoned
            _dismiss(self._drive)
        except BaseException as error:
            end.error = error
        self._leave(end)
        return end

    def _leave(self, end: BodyEnd) -> None:
        error = end.error
        try:
            self._scope.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except RuntimeError:
            end.is_slot_spoiled = True
            self._scope.cancel()  # Ends what runs in the task groups that it left open.
        except BaseException as remaining:
            end.error = remaining
        task = self._task
        if task is not None:
            # Somebody in the body cancelled the asyncio task itself; that must not strike the next body.
            while task.cancelling():
                if task.uncancel() == 0:
                    break

    def interrupt(self) -> None:
        """Cancel its scope; see `Body.interrupt`."""
        self._scope.cancel()

    def abandon(self) -> None:
        """See `Body.abandon`."""
        if self._drive is not None:
            self._drive.is_abandoned = True
        if self._task is not None:
            self._task.cancel()

    def where(self) -> str:
        """See `Body.where`."""
        coroutine = self._drive.coroutine if self._drive is not None else None
        place = "not begun"
        while coroutine is not None and inspect.iscoroutine(coroutine):
            frame = coroutine.cr_frame
            if frame is None:
                break
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
            coroutine = coroutine.cr_await
        return place


class LoopExecutor:
    """Runs async bodies; the contract is `ports.Executor`."""

    wants_facts = False

    def __init__(self) -> None:
        self._on_asyncio: bool | None = None

    def start(self, call: Call) -> LoopBody:
        """See `Executor.start`."""
        if self._on_asyncio is None:
            self._on_asyncio = _is_asyncio()  # Asked once: the answer costs as much as a short body.
        return LoopBody(call, on_asyncio=self._on_asyncio)

    async def aclose(self) -> None:
        """Nothing to let go."""


def call_in_frame(frame: FrameType) -> Call | None:
    """Return the call whose body this frame is stepping, if that is what it does; from any thread."""
    if frame.f_code is _STEPPING:
        drive = frame.f_locals.get("self")
        return drive.call if isinstance(drive, _Drive) else None
    return None


_STEPPING = _Drive.__await__.__code__


def _begin(call: Call) -> Coroutine[Any, Any, Any]:
    made = call.function(*call.args, **call.kwargs)
    return made if inspect.iscoroutine(made) else _awaiting(made)


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable


def _is_asyncio() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _dismiss(drive: _Drive | None) -> None:
    """Close an abandoned coroutine, which lets well-behaved scopes in it end; keep it if it will not close."""
    if drive is None:
        return
    try:
        drive.context.run(drive.coroutine.close)
    except BaseException:
        # It answers even its closing with another await. Python closes it once more when it is collected, at the
        # latest when the interpreter exits, and without a loop such a body may then spin for ever. So it must never
        # be collected: it leaks, on purpose. There are at most as many of these as slots that were replaced.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(drive.coroutine))
