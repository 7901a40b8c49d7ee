"""An exception as text that can be stored anywhere.

The failure path cannot fail: whatever an exception does when it is looked at (a `__str__` that raises, recurses,
answers with something else or with ten megabytes, a cyclic `__cause__`, a group of a million), `describe_exception`
returns bounded text that every store accepts. It therefore catches BaseException around each piece of foreign code,
and reaches attributes that a subclass might override through the base class.
"""

import re
import traceback
from collections.abc import Iterator
from types import TracebackType

from attrs import frozen

from taskengine.core.retry import error_names

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAX_FRAMES = 1000
"""Innermost frames that are shown: a whole runaway recursion at Python's default limit."""
_MAX_RELATED = 200
"""Causes, contexts and group members up to which the full traceback is made; the work grows with each of them."""
_MAX_LEAVES_IN_TEXT = 20
_MAX_TYPE_BYTES = 500


@frozen(kw_only=True)
class ErrorText:
    """What can be said of an exception, without NUL and lone surrogates."""

    type: str
    """Qualified name of the class, without its module."""
    message: str
    """`str(exception)`, or for a group its leaves as `Type: message; Type: message`; cut at the limit."""
    traceback: str
    """The traceback without locals; cut at the limit."""
    leaves: tuple[tuple[str, ...], ...]
    """Class names, nearest first, of each distinct class among the leaves: what a retry policy judges."""


def describe_exception(exc: BaseException, *, limit: int) -> ErrorText:
    """Describe an exception; never raises.

    Args:
        exc: any exception, well behaved or not.
        limit: largest size of the message and of the traceback, in bytes of UTF-8 each (the mark of a cut is added).
    """
    leaves = _find_leaves(exc)
    message = _summarize(leaves, limit) if _is_group(exc) else _message_of(exc)
    return ErrorText(
        type=_type_name(exc),
        message=storable(message, limit=limit),
        traceback=storable(_traceback_of(exc), limit=limit),
        # By identity: a metaclass may define equality and hash as it likes.
        leaves=tuple(_names_of(kind) for kind in {id(type(leaf)): type(leaf) for leaf in leaves}.values()),
    )


def storable(text: str, *, limit: int) -> str:
    """Make text acceptable to every store: NUL and lone surrogates replaced, cut (and marked) at `limit` bytes."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size <= limit:
        return _UNSTORABLE.sub("\ufffd", text)
    head = _UNSTORABLE.sub("\ufffd", text[: max(0, limit)]).encode()[: max(0, limit)]
    return f"{head.decode(errors='ignore')}… [cut, {size} bytes in all]"


def _is_group(exc: BaseException) -> bool:
    return issubclass(type(exc), BaseExceptionGroup)  # isinstance would ask the object's own `__class__`


def _members(exc: BaseException) -> tuple[BaseException, ...]:
    """Return a group's members as the interpreter holds them, whatever a subclass says."""
    if not _is_group(exc):
        return ()
    members: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(exc)
    return members


def _find_leaves(exc: BaseException) -> list[BaseException]:
    """List the innermost exceptions, each object once: a group may hold one member on many paths."""
    leaves, seen, stack = [], set(), [exc]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if _is_group(current):
            stack.extend(reversed(_members(current)))
        else:
            leaves.append(current)
    return leaves


def _summarize(leaves: list[BaseException], limit: int) -> str:
    shown = [f"{_type_name(leaf)}: {_message_of(leaf)[: limit + 1]}" for leaf in leaves[:_MAX_LEAVES_IN_TEXT]]
    if len(leaves) > _MAX_LEAVES_IN_TEXT:
        shown.append(f"… and {len(leaves) - _MAX_LEAVES_IN_TEXT} more")
    return "; ".join(shown)


def _type_name(exc: BaseException) -> str:
    try:
        return storable(type(exc).__qualname__, limit=_MAX_TYPE_BYTES)
    except BaseException:  # a metaclass can make even this fail
        return "<unnamable exception>"


def _names_of(kind: type[BaseException]) -> tuple[str, ...]:
    try:
        return error_names(kind)
    except BaseException:
        return error_names(Exception if issubclass(kind, Exception) else BaseException)


def _message_of(exc: BaseException) -> str:
    try:
        text = str(exc)
        # `str` may answer with a subclass of it, whose every method is foreign code: take the characters only.
        return text if type(text) is str else "".join([text, ""])
    except BaseException:
        return f"<unprintable {_type_name(exc)}>"


def _traceback_of(exc: BaseException) -> str:
    try:
        if _is_small(exc):
            return "".join(traceback.TracebackException.from_exception(exc, limit=-_MAX_FRAMES, compact=True).format())
    except BaseException:  # fall back to what needs none of the exception's own code
        pass
    return _plain_traceback_of(exc)


def _is_small(exc: BaseException) -> bool:
    """Tell whether a full traceback is affordable, counting as the interpreter walks.

    It follows each cause and context once, and each member of a group on every path that leads to it.
    """
    count, seen = 0, set()
    stack = [exc]
    while stack and count <= _MAX_RELATED:
        current = stack.pop()
        count += 1
        seen.add(id(current))
        related = (current.__cause__, current.__context__)
        stack += [other for other in related if other is not None and id(other) not in seen]
        stack += _members(current)[: _MAX_RELATED + 1]
    return count <= _MAX_RELATED


def _plain_traceback_of(exc: BaseException) -> str:
    """Frames of the exception itself and its name; its message stands elsewhere."""
    lines = ["Traceback (most recent call last):\n", *_frames_of(exc)]
    return "".join([*lines, _type_name(exc), "\n"])


def _frames_of(exc: BaseException) -> Iterator[str]:
    tracebacks: TracebackType | None = vars(BaseException)["__traceback__"].__get__(exc)
    try:
        yield from traceback.format_tb(tracebacks, limit=-_MAX_FRAMES)
    except BaseException:
        yield "  (its frames cannot be shown)\n"
