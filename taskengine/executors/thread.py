"""Sync bodies, in threads.

Own daemon threads, not the host's shared pool: a thread that never ends must not eat a place that the host counts on,
nor keep the interpreter from exiting. Threads cannot be cancelled. The body sees the stop flag (`ctx.checkpoint()`);
if it does not look, it is abandoned, which means: it goes on, its task is `lost`, and nobody waits for it.
"""

import queue
import sys
import threading
import traceback
from contextlib import suppress

import anyio

from taskengine.eventloop import Soon, run_soon
from taskengine.ports import BodyEnd, Call

IDLE_SECONDS = 10.0
"""How long a thread waits for another body before it ends."""


class _Thread:
    """One daemon thread that runs the calls given to it, one at a time."""

    def __init__(self, pool: "ThreadExecutor", number: int) -> None:
        self._pool = pool
        self._calls: queue.SimpleQueue[ThreadBody | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"taskengine-body-{number}", daemon=True)
        self.thread.start()

    def give(self, body: "ThreadBody | None") -> None:
        self._calls.put(body)

    def _work(self) -> None:
        while True:
            try:
                body = self._calls.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                if self._pool.retire(self):
                    return
                continue
            if body is None:
                return
            body.work()
            # Before the answer, so that whoever reads it finds the thread free again.
            self._pool.take_back(self, body)
            body.answer()
            del body  # It holds what the function returned or raised, and this thread may wait for long.


class ThreadBody:
    """A sync body; the contract is `ports.Body`."""

    def __init__(self, pool: "ThreadExecutor", call: Call) -> None:
        self._pool = pool
        self._call = call
        self._done = anyio.Event()
        self._end = BodyEnd()
        self._soon: Soon | None = None
        self._thread: _Thread | None = None
        self.is_abandoned = False

    async def run(self) -> BodyEnd:
        """See `Body.run`.

        Cancellation: stops waiting; the thread goes on.
        """
        self._soon = run_soon()
        self._thread = self._pool.lend()
        self._thread.give(self)
        await self._done.wait()
        if self.is_abandoned:
            return BodyEnd(is_abandoned=True)
        return self._end

    def work(self) -> None:
        """Run the function; on the thread."""
        try:
            self._end.value = self._call.context.run(self._call.function, *self._call.args, **self._call.kwargs)
        except BaseException as error:  # it is the outcome, whatever it is
            self._end.error = error

    def answer(self) -> None:
        """Wake the runner; on the thread."""
        assert self._soon is not None, "a body is run before it answers"
        with suppress(RuntimeError):  # The loop has ended in the meantime; nobody waits.
            self._soon(self._done.set)

    def interrupt(self) -> None:
        """Nothing more than the stop flag, which the runner has set, can reach a thread."""

    def abandon(self) -> None:
        """See `Body.abandon`."""
        self.is_abandoned = True
        self._done.set()

    def where(self) -> str:
        """See `Body.where`."""
        thread = self._thread.thread if self._thread is not None else None
        frame = sys._current_frames().get(thread.ident or 0) if thread is not None else None
        if thread is None or frame is None:
            return "not begun"
        stack = traceback.extract_stack(frame)
        # The line of the body itself says more than the place in some library where it waits; both say most.
        own_file = getattr(getattr(self._call.function, "__code__", None), "co_filename", None)
        own = next((place for place in reversed(stack) if place.filename == own_file), stack[-1])
        inner = "" if own is stack[-1] else f", at {_describe(stack[-1])}"
        return f"{_describe(own)}{inner} (thread {thread.name})"


def _describe(place: traceback.FrameSummary) -> str:
    return f"{place.filename}:{place.lineno} in {place.name}"


class ThreadExecutor:
    """Runs sync bodies; the contract is `ports.Executor`. As many threads as bodies run at once."""

    wants_facts = False

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Thread] = []
        self._made = 0
        self._is_closed = False

    def start(self, call: Call) -> ThreadBody:
        """See `Executor.start`."""
        return ThreadBody(self, call)

    def lend(self) -> _Thread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._made += 1
            return _Thread(self, self._made)

    def take_back(self, thread: _Thread, body: ThreadBody) -> None:
        """Keep a thread for the next body."""
        with self._lock:
            if self._is_closed or body.is_abandoned:
                thread.give(None)
            else:
                self._idle.append(thread)

    def retire(self, thread: _Thread) -> bool:
        """Let a thread that has waited long go; False if it has just been lent."""
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
                return True
            return False

    async def aclose(self) -> None:
        """End the idle threads and wait for them; busy ones end after their body."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.give(None)
        for thread in idle:
            thread.thread.join(1.0)
