"""What a body in a child says, on its way to the parent; in the child.

A body may say things far more often than anybody can hear them. So the words that only the newest of counts for are
sent at most once in `INTERVAL`: a checkpoint costs a look at the clock. Pauses, lines and extensions are always sent;
a full pipe makes their speaker wait, which is what keeps a flood of lines from growing in the parent.
"""

import queue
import threading
import time
from collections.abc import Callable

from taskengine.core.errortext import storable
from taskengine.executors.process.frames import Answer, Ask, Extend, Line, Progress, Said, encode

INTERVAL = 0.02
"""Seconds."""

MAX_LINE_BYTES = 64 * 1024
"""Of one line; the parent has its own limit, which is usually lower."""

_BEGUN = encode(Said("begun"))
_CHECKPOINT = encode(Said("checkpoint"))
_HEARTBEAT = encode(Said("heartbeat"))
_REACHED_PAUSE = encode(Said("reached_pause"))
_LEFT_PAUSE = encode(Said("left_pause"))


class PipeVoice:
    """The voice of one body; the contract is `signals.Voice`. Silent once the body has ended."""

    def __init__(self, write: Callable[[bytes], None], remaining: float | None) -> None:
        self._write = write
        self._lock = threading.Lock()
        """Held while anything is written, so that frames stay whole and none follows the end."""
        self._is_over = False
        self._next_checkpoint_at = 0.0
        self._next_heartbeat_at = 0.0
        self._next_progress_at = 0.0
        self._late_progress: str | None = None
        self._late_bell: threading.Event | None = None
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._ends_at: float | None = None
        """On the monotonic clock, by what the parent said last."""
        self._is_paused = False
        self._is_stale = False
        """Whether `_ends_at` has been overtaken."""
        self._note_remaining(remaining)

    # --- ended by the child ---

    def end(self, frame: bytes) -> None:
        """Send the last frame; what is said after it, by threads that the body left behind, goes nowhere."""
        with self._lock:
            if self._late_progress is not None:
                self._write(encode(Progress(self._late_progress)))
            self._is_over = True
            self._write(frame)
        if self._late_bell is not None:
            self._late_bell.set()

    def answer(self, answer: Answer) -> None:
        """Pass an answer on; on the reading thread."""
        self._answers.put(answer)

    # --- said by the body ---

    def begun(self) -> None:
        """See `Voice.begun`."""
        self._is_stale = True
        self._send(_BEGUN)

    def checkpoint(self) -> None:
        """See `Voice.checkpoint`."""
        now = time.monotonic()
        if now >= self._next_checkpoint_at:
            self._next_checkpoint_at = now + INTERVAL
            self._send(_CHECKPOINT)

    def heartbeat(self) -> None:
        """See `Voice.heartbeat`."""
        now = time.monotonic()
        if now >= self._next_heartbeat_at:
            self._next_heartbeat_at = now + INTERVAL
            self._send(_HEARTBEAT)

    def reached_pause(self) -> None:
        """See `Voice.reached_pause`."""
        self._is_paused = True
        self._send(_REACHED_PAUSE)

    def left_pause(self) -> None:
        """See `Voice.left_pause`."""
        self._is_stale = True
        self._is_paused = False
        self._send(_LEFT_PAUSE)

    def progress(self, text: str) -> None:
        """See `Voice.progress`. One that comes too soon is sent a little later, unless a newer one takes its place."""
        now = time.monotonic()
        with self._lock:
            if now >= self._next_progress_at and self._late_progress is None:
                self._next_progress_at = now + INTERVAL
                self._write_if_not_over(encode(Progress(text)))
                return
            self._late_progress = text
            if self._late_bell is None:
                self._late_bell = threading.Event()
                threading.Thread(target=self._send_late, args=(self._late_bell,), daemon=True).start()
            self._late_bell.set()

    def log(self, level: int, message: str) -> None:
        """See `Voice.log`."""
        self._send(encode(Line(int(level), storable(message, limit=MAX_LINE_BYTES))))

    def extend(self, *, attempt: float, idle: float, total: float) -> None:
        """See `Voice.extend`."""
        self._is_stale = True
        self._send(encode(Extend(attempt, idle, total)))

    def remaining(self) -> float | None:
        """See `Voice.remaining`. Counted here; the parent is asked only if something has changed since it said so."""
        if self._is_stale or self._is_paused:
            self._is_stale = False
            answer = self._ask("remaining")
            if answer.problem is None:
                self._note_remaining(answer.seconds)
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    def artifact_dir(self) -> str:
        """See `Voice.artifact_dir`.

        Raises:
            OSError: the parent could not make it, or the body has ended.
        """
        answer = self._ask("artifact_dir")
        if answer.path is None:
            raise OSError(answer.problem)
        return answer.path

    # --- how it is sent ---

    def _note_remaining(self, seconds: float | None) -> None:
        self._ends_at = None if seconds is None else time.monotonic() + seconds

    def _send(self, frame: bytes) -> None:
        with self._lock:
            self._write_if_not_over(frame)

    def _write_if_not_over(self, frame: bytes) -> None:
        if not self._is_over:
            self._write(frame)

    def _ask(self, what: str) -> Answer:
        with self._asking:
            with self._lock:
                if self._is_over:
                    return Answer(problem="the attempt has ended")
                self._write(encode(Ask(what)))
            return self._answers.get()

    def _send_late(self, bell: threading.Event) -> None:
        """Send the progress that came too soon; on a thread that only a body with so much to say has."""
        while True:
            bell.wait()
            time.sleep(INTERVAL)
            with self._lock:
                bell.clear()
                if self._is_over:
                    return
                if self._late_progress is not None:
                    self._write(encode(Progress(self._late_progress)))
                    self._late_progress = None
                    self._next_progress_at = time.monotonic() + INTERVAL
