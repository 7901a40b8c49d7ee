"""The child's main program: it runs one body at a time, as its parent tells it, and ends with its parent.

Bodies run on the main thread, so that they may do what only a main thread may. A daemon thread reads what the parent
says: stop, pause, resume, answers. The end of that pipe means that the parent is gone, however it went; then the whole
process group is killed, grandchildren and all. (A body that holds the interpreter's lock for ever, inside an extension
module, keeps the thread from noticing. It is ended by force while the parent lives, and survives it otherwise.)

What a body leaves behind in its process, such as the working directory or a module's globals, is there for the next one
that runs in it; with `max_tasks_per_child=1` there is no next one.
"""

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from typing import NoReturn

from taskengine.executors.process.frames import (
    Answer,
    Began,
    FrameBuffer,
    Quit,
    Start,
    ToChild,
    Unfit,
    Wishes,
    encode,
    read_to_child,
)
from taskengine.executors.process.limits import limit_memory, limit_processor
from taskengine.executors.process.performing import encode_end, perform
from taskengine.executors.process.voice import PipeVoice
from taskengine.signals import Signals

_BEGAN = encode(Began())


class Pipe:
    """The two ends that this process was given as its standard input and output."""

    def __init__(self) -> None:
        """Move them out of the way: prints, and programs that the body starts, must not meet the frames."""
        # Both are closed on exec, so that only this process has them.
        self._input = os.dup(0)
        self._output = os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # standard error is closed
            os.dup2(null, 1)
            os.dup2(null, 2)
        os.close(null)
        self._buffer = FrameBuffer()
        self.is_foreign = False
        """Whether this is a fork of the child, made by a body: frames are none of its business."""
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self) -> None:
        self.is_foreign = True
        os.close(self._input)
        os.close(self._output)

    def receive(self) -> ToChild:
        """Wait for the next message.

        Raises:
            EOFError: the parent is gone.
        """
        while (payload := self._buffer.take()) is None:
            chunk = os.read(self._input, 65536)
            if not chunk:
                raise EOFError
            self._buffer.feed(chunk)
        return read_to_child(payload)

    def write(self, frame: bytes) -> None:
        """Write one frame; one at a time, the caller sees to that. Does not return if nobody reads."""
        if self.is_foreign:
            return
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[os.write(self._output, rest) :]
        except OSError:  # the parent has gone, or the body has closed what is not its own
            kill_group()


class Attempt:
    """One body with its two directions: what is asked of it, and what it says."""

    def __init__(self, start: Start, pipe: Pipe) -> None:
        self._start = start
        self._pipe = pipe
        self._signals = Signals()
        self.voice = PipeVoice(pipe.write, start.remaining)
        self.follow(start.wishes)

    def follow(self, wishes: Wishes) -> None:
        """Have this side's signals follow the parent's; on the reading thread."""
        signals = self._signals
        if wishes.is_stop_requested and not signals.is_stop_requested:
            signals.request_stop(wishes.reason)
        is_new = not signals.is_pause_requested or signals.pause_number != wishes.pause_number
        if wishes.is_pause_requested and is_new:
            signals.request_pause(wishes.pause_number)
        elif signals.is_pause_requested and not wishes.is_pause_requested:
            signals.resume()

    def run(self) -> None:
        """Run the body; on the main thread."""
        start = self._start
        problem = limit_memory(start.memory_limit) or limit_processor(start.cpu_limit)
        if problem is not None:
            self.voice.end(encode(Unfit(problem)))
            return
        self._pipe.write(_BEGAN)
        end = perform(start, self._signals, self.voice)
        if self._pipe.is_foreign:
            os._exit(0)  # The body has forked and both have come back from it; the other one answers.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the body may have closed or replaced it
                stream.flush()
        self.voice.end(encode_end(end, start))


def main() -> None:
    """Run bodies until the parent says that there are no more."""
    pipe = Pipe()
    _settle()
    attempts: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, attempts), name="taskengine-parent", daemon=True).start()
    while (attempt := attempts.get()) is not None:
        attempt.run()
        del attempt  # It holds what the body was given, and the next one may be long in coming.


def _settle() -> None:
    """Undo what a parent may have handed down, and what would disturb."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # What is said with ctx.log is kept by the parent. Here it goes where a task's module sends it, if anywhere; without
    # this, logging would print it on its own account.
    logging.getLogger("taskengine").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)  # Else a child that is killed takes its prints with it.


def _listen(pipe: Pipe, attempts: "queue.SimpleQueue[Attempt | None]") -> None:
    current: Attempt | None = None
    try:
        while True:
            message = pipe.receive()
            if isinstance(message, Start):
                current = Attempt(message, pipe)
                attempts.put(current)
            elif isinstance(message, Quit):
                attempts.put(None)
            elif current is not None:
                if isinstance(message, Answer):
                    current.voice.answer(message)
                else:
                    current.follow(message)
    finally:
        kill_group()


def kill_group() -> NoReturn:
    """End this process and all that it has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(70)


if __name__ == "__main__":
    main()
