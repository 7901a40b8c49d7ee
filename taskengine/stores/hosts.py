"""Where a store's synchronous calls run.

`ThreadHost` gives the store one long-lived thread for writing and one for reading. The writing thread also renews the
owner's lease, whether the event loop is blocked or not, and in return expects a sign of life from the loop: after
`max_loop_block` seconds without one it lets the lease go, because bodies that nobody can cancel must not be held for
ever. `InlineHost` makes the calls on the loop itself: for the memory store, virtual time and simulation.

Threads are daemons, so that a program which never leaves the engine still exits.
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio
from attrs import define

from taskengine.core.errors import EngineNotRunning, StoreClosed, StoreError, StoreUnavailable
from taskengine.diagnostics import diagnostics
from taskengine.eventloop import Soon, run_soon
from taskengine.ports import Clock, Reader, Store

T = TypeVar("T")

logger = diagnostics("taskengine.store")

POLL = 0.05
"""Seconds between looks at what other processes have committed (6 µs each)."""

FAIRNESS_PAUSE = 0.001
"""Seconds without the lock after a commit while other owners live; without it one writer starves the others."""


@define(eq=False)
class Watch:
    """What a host tells the supervisor, on the event loop. Callbacks must not raise."""

    foreign_commit: Callable[[], None]
    beat_committed: Callable[[float], None]
    """With the monotonic instant of the commit."""
    owner_gone: Callable[[str], None]
    loop_blocked: Callable[[float], None] = lambda _: None
    """With the seconds since the last sign of life; once for each time it is blocked. On the writing thread."""


@define(eq=False)
class LeaseTerms:
    """How the lease is kept; seconds."""

    beat: float
    max_loop_block: float
    loop_block_warning: float = math.inf


class _Job(Generic[T]):
    """One call on its way through a thread, and its answer on the way back."""

    __slots__ = ("error", "event", "function", "value")

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.event = anyio.Event()
        self.value: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.function()
        except BaseException as error:  # the answer, whatever it is; the thread goes on
            self.error = error

    def refuse(self, error: BaseException) -> None:
        """Answer without running; on the loop."""
        self.error = error
        self.event.set()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value


class _Worker:
    """A daemon thread that runs jobs in order and calls `between` when it has had none for a while."""

    def __init__(self, name: str, soon: Soon, between: Callable[[], float] | None = None) -> None:
        self._soon = soon
        self._between = between
        self._jobs: deque[_Job[Any]] = deque()
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Rung once for each job, and with False for the end. Apart from the jobs, so that none of them is lost with an
        exception that strikes the thread from outside."""
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, function: Callable[[], T]) -> _Job[T]:
        """Queue a call; after `stop` it is answered with EngineNotRunning."""
        job = _Job(function)
        if self._is_stopped:
            job.refuse(EngineNotRunning("it is being left"))
        else:
            self._jobs.append(job)
            self._bell.put(True)
        return job

    async def call(self, function: Callable[[], T]) -> T:
        job = self.put(function)
        await job.event.wait()
        return job.result()

    def _work(self) -> None:
        wait = 0.0 if self._between is not None else None
        while True:
            job: _Job[Any] | None = None
            try:
                with suppress(queue.Empty):
                    if not self._bell.get(timeout=wait):
                        return
                    job = self._jobs.popleft() if self._jobs else None
                if job is not None:
                    job.run()
                    self._soon(job.event.set)
                if self._between is not None:
                    wait = self._between()
            except RuntimeError:
                return  # The loop has ended; nobody waits for anything here.
            except BaseException as error:  # raised from outside, into the thread: it must live on
                logger.error("the store's thread met %r and goes on", error)
                if job is not None:
                    job.error = job.error or StoreUnavailable(f"the store's thread met {error!r}")
                    self._soon(job.event.set)
                self._bell.put(True)  # It may have struck between the bell and the job.

    def stop(self) -> None:
        """End the thread after the jobs that are queued, and refuse those that come later."""
        self._is_stopped = True
        self._bell.put(False)
        # The thread has nothing left to do but to return, so this blocks for microseconds.
        self._thread.join(1.0)


class ThreadHost:
    """A store behind one writing and one reading thread; the contract is `ports.StoreHost`."""

    def __init__(self, store: Store, *, clock: Clock, watch: Watch, terms: LeaseTerms) -> None:
        self._store = store
        self._clock = clock
        self._watch = watch
        self._terms = terms
        self._owner: str | None = None
        self._next_beat = 0.0
        self._next_look = 0.0
        self._seen_commits: int | None = None
        self._pong = 0.0
        self._ping_sent = False
        self._ping_at = 0.0
        self._has_warned = False
        self._has_let_go = False
        self.other_owners = 0
        """Set by the persister after each tick; decides on the fairness pause."""

    async def open(self) -> None:
        """Start the threads and open the store on the writing one."""
        self._soon = run_soon()
        self._pong = self._clock.monotonic()
        self._reading = _Worker("taskengine-reader", self._soon)
        self._writing = _Worker("taskengine-writer", self._soon, self._between_jobs)
        opening = self._writing.put(self._store.open)
        with anyio.CancelScope(shield=True):  # bounded by the store; half an opening cannot be undone
            await opening.event.wait()
        try:
            opening.result()
        except BaseException:
            # Not closed: that it could not be opened may mean that it is somebody else's.
            self._reading.stop()
            self._writing.stop()
            raise
        self._seen_commits = await self._writing.call(self._store.foreign_commits)

    async def close(self) -> None:
        """Close the store and end the threads."""
        self._owner = None
        self._reading.stop()
        try:
            await self._writing.call(self._store.close)
        finally:
            self._writing.stop()

    async def write(self, job: Callable[[], T]) -> T:
        """See `ports.StoreHost.write`."""
        answer = self._writing.put(job)
        with anyio.CancelScope(shield=True):
            await answer.event.wait()
        return answer.result()

    async def read(self, job: Callable[[Reader], T]) -> T:
        """See `ports.StoreHost.read`."""
        return await self._reading.call(lambda: job(self._store.reader()))

    def renew(self, owner: str | None) -> None:
        """See `ports.StoreHost.renew`."""
        self._owner = owner
        self._next_beat = self._clock.monotonic() + self._terms.beat

    # --- on the writing thread ---

    def _between_jobs(self) -> float:
        """Look after the lease and for others' commits; return the seconds until it is wanted again."""
        if self.other_owners:
            time.sleep(FAIRNESS_PAUSE)
        now = self._clock.monotonic()
        if now < self._next_look:
            return self._next_look - now
        self._next_look = now + POLL
        self._listen_for_loop(now)
        if self._owner is not None and now >= self._next_beat and not self._has_let_go:
            self._beat(self._owner, now)
        commits = self._store.foreign_commits()
        if self._seen_commits is not None and commits != self._seen_commits:
            self._seen_commits = commits
            self._soon(self._watch.foreign_commit)
        return POLL

    def _beat(self, owner: str, now: float) -> None:
        try:
            with self._store.transact() as tx:
                alive = tx.beat(owner)
        except StoreClosed:
            return
        except StoreError as error:
            if not isinstance(error, StoreUnavailable):
                logger.error("the lease could not be renewed: %s", error)
            self._next_beat = now + min(1.0, self._terms.beat)
            return
        self._next_beat = now + self._terms.beat
        if alive:
            self._soon(lambda: self._watch.beat_committed(now))
        else:
            self._soon(lambda: self._watch.owner_gone(owner))

    def _listen_for_loop(self, now: float) -> None:
        if not self._ping_sent:
            self._ping_sent = True
            self._ping_at = now
            self._soon(self._answer_ping)
            return
        if now - self._ping_at > self._terms.loop_block_warning and not self._has_warned:
            self._has_warned = True
            self._watch.loop_blocked(now - self._ping_at)
        if now - self._pong > self._terms.max_loop_block and not self._has_let_go:
            self._has_let_go = True
            logger.critical(
                "the event loop has been blocked for %.0f s; the lease is let go and others may take over",
                now - self._pong,
            )

    def _answer_ping(self) -> None:
        self._pong = self._clock.monotonic()
        self._ping_sent = False
        self._has_warned = False
        self._has_let_go = False


class InlineHost:
    """A store whose calls are made on the event loop; the contract is `ports.StoreHost`."""

    def __init__(self, store: Store, *, clock: Clock, watch: Watch, terms: LeaseTerms) -> None:
        self._store = store
        self._clock = clock
        self._watch = watch
        self._terms = terms
        self._owner: str | None = None
        self._is_writing = False
        self._unsubscribe: Callable[[], None] | None = None
        self.other_owners = 0

    async def open(self) -> None:
        """Open the store."""
        self._store.open()
        self._soon = run_soon()
        self._thread = threading.get_ident()
        subscribe = getattr(self._store, "subscribe", None)
        if subscribe is not None:
            self._unsubscribe = subscribe(self._committed)

    def _committed(self) -> None:
        if self._is_writing and threading.get_ident() == self._thread:
            return
        with suppress(RuntimeError):  # This engine's loop has ended without leaving the engine.
            self._soon(self._watch.foreign_commit)

    async def close(self) -> None:
        """Close the store."""
        self._owner = None
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._store.close()

    async def write(self, job: Callable[[], T]) -> T:
        """See `ports.StoreHost.write`."""
        self._is_writing = True
        try:
            return job()
        finally:
            self._is_writing = False

    async def read(self, job: Callable[[Reader], T]) -> T:
        """See `ports.StoreHost.read`."""
        return job(self._store.reader())

    def renew(self, owner: str | None) -> None:
        """See `ports.StoreHost.renew`."""
        self._owner = owner

    async def keep_lease(self) -> None:
        """Renew the lease for ever.

        Cancellation: ends it.
        """
        while True:
            await anyio.sleep(self._terms.beat)
            owner = self._owner
            if owner is not None:
                await self._renew(owner)

    async def _renew(self, owner: str) -> None:
        def beat() -> bool:
            with self._store.transact() as tx:
                return tx.beat(owner)

        if await self.write(beat):
            self._watch.beat_committed(self._clock.monotonic())
        else:
            self._watch.owner_gone(owner)
