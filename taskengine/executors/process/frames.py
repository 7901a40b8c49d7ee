"""What parent and child say to each other: a length of 4 bytes, then one message as JSON.

Never pickle: a message is data of a fixed shape, checked when it is read. The parent trusts nothing that it reads: a
frame that is too long, or is none, counts as a crash of the child. A function is named by its module and its name in
there, both taken from the parent's registry and never from a store.
"""

import struct
from typing import Any

import msgspec
from msgspec import Struct

from taskengine.core.model import FailureKind

_HEADER = struct.Struct(">I")


class BrokenFrame(ValueError):
    """Bytes that are no frame, or no message."""


# --- to the child -----------------------------------------------------------------------------------------------


class Start(Struct, tag="start", frozen=True, kw_only=True):
    """Run one body. It is answered by Began and, at its end, by one of `END`."""

    module: str
    qualname: str
    sys_path: list[bytes] | None
    """File names, not always text; None: as it was for the call before."""
    task_id: str
    name: str
    attempt: int
    takes_context: bool
    arguments: str
    metadata: dict[str, Any]
    idempotency_key: str
    remaining: float | None
    """Seconds until it is out of time."""
    wishes: "Wishes"
    max_value_bytes: int
    max_error_bytes: int
    memory_limit: int | None
    """Bytes of address space."""
    cpu_limit: int | None
    """Seconds of processor time for this body."""


class Wishes(Struct, tag="wishes", frozen=True):
    """What is asked of the body from now on."""

    is_stop_requested: bool
    is_pause_requested: bool
    reason: str | None
    pause_number: int = 0


class Answer(Struct, tag="answer", frozen=True, kw_only=True):
    """The answer to an Ask."""

    path: str | None = None
    seconds: float | None = None
    problem: str | None = None
    """Why there is none."""


class Quit(Struct, tag="quit", frozen=True):
    """There is nothing more to do: end as a program ends, exit handlers and all."""


ToChild = Start | Wishes | Answer | Quit


# --- to the parent ----------------------------------------------------------------------------------------------


class Unfit(Struct, tag="unfit", frozen=True):
    """This child cannot run the body, nor any other; nothing of it was begun."""

    problem: str


class Began(Struct, tag="began", frozen=True):
    """From here on the end of the child is the doing of the body."""


class Said(Struct, tag="said", frozen=True):
    """A word without more to it: `begun`, `checkpoint`, `heartbeat`, `reached_pause` or `left_pause`."""

    word: str


class Progress(Struct, tag="progress", frozen=True):
    text: str
    """JSON."""


class Line(Struct, tag="line", frozen=True):
    level: int
    message: str


class Extend(Struct, tag="extend", frozen=True):
    """Seconds."""

    attempt: float
    idle: float
    total: float


class Ask(Struct, tag="ask", frozen=True):
    """A question, which waits for its Answer: `artifact_dir` or `remaining`."""

    what: str


class Returned(Struct, tag="returned", frozen=True):
    result: str
    """JSON."""


class Stopped(Struct, tag="stopped", frozen=True):
    reason: str | None


class Snoozed(Struct, tag="snoozed", frozen=True):
    delay: float
    """Seconds."""
    reason: str | None


class Discarded(Struct, tag="discarded", frozen=True):
    reason: str


class Raised(Struct, tag="raised", frozen=True, kw_only=True):
    """An `ErrorReport`, field by field."""

    kind: FailureKind
    type_name: str
    message: str
    traceback: str = ""
    detail: dict[str, Any] | None = None
    leaves: list[list[str]] = []
    retryable: bool | None = None
    retry_after: float | None = None


End = Returned | Stopped | Snoozed | Discarded | Raised
FromChild = Unfit | Began | Said | Progress | Line | Extend | Ask | Returned | Stopped | Snoozed | Discarded | Raised


# --- bytes ------------------------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_from_child = msgspec.json.Decoder(FromChild)
_to_child = msgspec.json.Decoder(ToChild)


def encode(message: ToChild | FromChild) -> bytes:
    """Make one frame.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate.
    """
    payload = _encoder.encode(message)
    return _HEADER.pack(len(payload)) + payload


def read_from_child(payload: bytes) -> FromChild:
    """Decode what came from a child.

    Raises:
        BrokenFrame: it is no message.
    """
    message: FromChild = _read(payload, _from_child)
    return message


def read_to_child(payload: bytes) -> ToChild:
    """Decode what came from the parent.

    Raises:
        BrokenFrame: it is no message.
    """
    message: ToChild = _read(payload, _to_child)
    return message


def _read(payload: bytes, decoder: Any) -> Any:
    try:
        return decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"a frame of {len(payload)} bytes is no message") from error


def frame_limit(max_value_bytes: int, max_error_bytes: int) -> int:
    """Return the bytes of the longest frame that a well-behaved child sends.

    A result is JSON within JSON, where at most every byte is escaped once; what an error or a log line says may have
    control characters, which take six bytes each.
    """
    return 2 * max_value_bytes + 24 * max_error_bytes + 1024 * 1024


class FrameBuffer:
    """Bytes as they come in, taken out as frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Add what came in."""
        self._bytes += chunk

    def take(self, limit: int | None = None) -> bytes | None:
        """Return the next frame's content, None if it is not there in full.

        Args:
            limit: largest length; None is no limit.

        Raises:
            BrokenFrame: it is longer.
        """
        if len(self._bytes) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._bytes)
        if limit is not None and size > limit:
            raise BrokenFrame(f"a frame of {size:,} bytes is announced and the limit is {limit:,}")
        end = _HEADER.size + size
        if len(self._bytes) < end:
            return None
        payload = bytes(self._bytes[_HEADER.size : end])
        del self._bytes[:end]
        return payload

    def __len__(self) -> int:
        return len(self._bytes)
