"""What a body is asked to do: pauses waited out in threads and on loops, and the races between the two sides."""

import threading
from collections.abc import Callable

import anyio
import pytest
from anyio import to_thread

from taskengine.eventloop import run_soon
from taskengine.signals import Signals

LIMIT = 30.0
"""Seconds; a guard against hanging, never waited for where all is well."""


def start_thread(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> bool:
    thread.join(LIMIT)
    return not thread.is_alive()


class Watched(Signals):
    """Signals that let a test see how often somebody has come to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)

    def _wake_by(self, wake: Callable[[], None], number: int) -> None:
        super()._wake_by(wake, number)
        self.waiting.release()


# --- the flags ---


def test_at_first_nothing_is_asked() -> None:
    signals = Signals()
    assert (signals.is_stop_requested, signals.is_pause_requested, signals.must_wait) == (False, False, False)
    assert signals.reason is None


def test_a_stop_keeps_its_reason_and_ends_a_pause() -> None:
    signals = Signals()
    signals.request_pause()
    assert signals.must_wait
    signals.request_stop("tea")
    assert (signals.is_stop_requested, signals.reason, signals.must_wait) == (True, "tea", False)


def test_after_a_stop_a_pause_is_not_waited_for() -> None:
    signals = Signals()
    signals.request_stop(None)
    signals.request_pause()
    assert not signals.must_wait
    signals.wait_in_thread()


def test_every_change_is_told_to_every_listener_after_it_was_made() -> None:
    signals = Signals()
    seen: list[tuple[str, bool, bool]] = []
    for name in ("a", "b"):
        signals.listen(
            lambda name=name: seen.append((name, signals.is_pause_requested, signals.is_stop_requested))  # type: ignore[misc]
        )
    signals.request_pause()
    signals.resume()
    signals.request_stop(None)
    changes = [(True, False), (False, False), (False, True)]
    assert seen == [(name, *change) for change in changes for name in ("a", "b")]


# --- waiting in a thread ---


@pytest.mark.parametrize("end", [Signals.resume, lambda signals: signals.request_stop("tea")], ids=["resume", "stop"])
def test_a_thread_waits_as_long_as_the_pause_lasts(end: Callable[[Signals], None]) -> None:
    signals = Watched()
    signals.request_pause()
    thread = start_thread(signals.wait_in_thread)
    assert signals.waiting.acquire(timeout=LIMIT)
    assert thread.is_alive()
    end(signals)
    assert joined(thread)


def test_without_a_pause_a_thread_does_not_wait() -> None:
    Signals().wait_in_thread()


def test_many_threads_are_woken_by_one_resume() -> None:
    signals = Watched()
    signals.request_pause()
    threads = [start_thread(signals.wait_in_thread) for _ in range(5)]
    for _ in threads:
        assert signals.waiting.acquire(timeout=LIMIT)
    signals.resume()
    assert all(joined(thread) for thread in threads)


def test_a_second_pause_is_waited_out_by_a_thread_that_is_woken_into_it() -> None:
    signals = Watched()
    signals.request_pause()
    thread = start_thread(signals.wait_in_thread)
    assert signals.waiting.acquire(timeout=LIMIT)
    with_bell = signals._wakers
    # The bell rings, but before the thread looks there is a pause again: it must wait once more.
    signals.is_pause_requested = True
    for ring in with_bell:
        ring()
    assert signals.waiting.acquire(timeout=LIMIT)
    assert thread.is_alive()
    signals.resume()
    assert joined(thread)


def test_a_resume_while_a_thread_is_on_its_way_to_wait_is_never_missed() -> None:
    signals = Signals()
    rounds, turn = 2_000, threading.Barrier(2)
    done = []

    def body() -> None:
        for _ in range(rounds):
            turn.wait(LIMIT)
            signals.wait_in_thread()
            done.append(True)
            turn.wait(LIMIT)

    thread = start_thread(body)
    for number in range(rounds):
        signals.request_pause()
        turn.wait(LIMIT)
        for _ in range(number % 7):  # come at different moments of its way
            signals.must_wait  # noqa: B018
        signals.resume()
        turn.wait(LIMIT)
    assert joined(thread)
    assert len(done) == rounds
    assert signals._wakers == (), "nobody is left to be woken"


def test_a_change_between_the_look_and_the_bell_is_never_missed() -> None:
    class Late(Signals):
        """The resume comes when the thread has looked and has not hung up its bell yet."""

        def _wake_by(self, wake: Callable[[], None], number: int) -> None:
            self.resume()
            super()._wake_by(wake, number)

    signals = Late()
    signals.request_pause()
    assert joined(start_thread(signals.wait_in_thread))


# --- waiting on the loop ---


@pytest.mark.parametrize("end", [Signals.resume, lambda signals: signals.request_stop("tea")], ids=["resume", "stop"])
async def test_an_anyio_task_waits_as_long_as_the_pause_lasts(end: Callable[[Signals], None]) -> None:
    signals = Signals()
    signals.request_pause()
    went_on = anyio.Event()

    async def body() -> None:
        await signals.wait(run_soon())
        went_on.set()

    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(body)
            await anyio.wait_all_tasks_blocked()
            assert not went_on.is_set()
            end(signals)
            await went_on.wait()


async def test_an_anyio_task_is_woken_from_another_thread() -> None:
    signals = Signals()
    signals.request_pause()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(signals.wait, run_soon())
            await anyio.wait_all_tasks_blocked()
            await to_thread.run_sync(signals.resume)


async def test_a_change_between_the_look_and_the_bell_is_never_missed_on_the_loop() -> None:
    class Late(Signals):
        def _wake_by(self, wake: Callable[[], None], number: int) -> None:
            self.resume()
            super()._wake_by(wake, number)

    signals = Late()
    signals.request_pause()
    with anyio.fail_after(LIMIT):
        await signals.wait(run_soon())


async def test_a_cancelled_wait_harms_no_later_change() -> None:
    signals = Signals()
    signals.request_pause()
    with anyio.fail_after(LIMIT):
        async with anyio.create_task_group() as tg:
            tg.start_soon(signals.wait, run_soon())
            await anyio.wait_all_tasks_blocked()
            tg.cancel_scope.cancel()
        signals.resume()
        signals.request_pause()
        signals.request_stop(None)
    assert not signals.must_wait


def test_a_waiter_whose_loop_has_ended_does_not_keep_the_others_from_waking() -> None:
    signals = Watched()
    signals.request_pause()

    async def leave_a_waiter() -> None:
        async with anyio.create_task_group() as tg:
            tg.start_soon(signals.wait, run_soon())
            await anyio.wait_all_tasks_blocked()
            tg.cancel_scope.cancel()

    for backend in ("asyncio", "trio"):
        anyio.run(leave_a_waiter, backend=backend)
    thread = start_thread(signals.wait_in_thread)
    for _ in range(3):
        assert signals.waiting.acquire(timeout=LIMIT)
    signals.resume()
    assert joined(thread)
