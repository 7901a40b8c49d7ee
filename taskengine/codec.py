"""The one border between Python values and the JSON text that stores keep.

Everything that is stored passes here, so that all stores behave alike: what they get is text without NUL, NaN or lone
surrogates, of bounded size and depth, the same text for the same value. Nothing is lost silently: what JSON cannot
hold is refused with the place where it stands. Reading is total the other way round: whatever a row contains, an
operator can still list it (`records.task_from_row`). No pickle, no eval, nothing imported by a stored name.

Paths in messages start at `$`, the whole value: `$.a[2]`.
"""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from taskengine import defaults
from taskengine.core.errors import InvalidOption
from taskengine.core.errortext import describe_exception

T = TypeVar("T")

MAX_DEPTH = 100
"""Nesting of stored values. Decoders recurse: what is written on a shallow stack must be readable on a deep one."""

_MAX_INT = 10**4000
"""Below CPython's limit of 4300 digits for text, which the decoder has as well."""

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder().decode
_SCALARS = frozenset({str, bool, type(None)})


class NotJson(ValueError):
    """A value that JSON text cannot hold without loss, or text that is not the JSON it should be."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


# --- values -----------------------------------------------------------------------------------------------------


def dump_plain(value: Any, *, limit: int = defaults.MAX_VALUE_BYTES) -> str:
    """Encode a value made of dict (text keys), list, tuple, str, int, float, bool and None; tuples become lists.

    Exactly these types: a subclass or an Enum would come back as something else.

    Args:
        value: what to encode; the same value always gives the same text (keys are sorted).
        limit: largest size of the text, in bytes of UTF-8.

    Raises:
        NotJson: it contains something else, NaN, Infinity, a lone surrogate, itself, or is too deep or too large.
    """
    try:
        if _is_plain((value,), MAX_DEPTH):
            encoded = _encode(value)
            if len(encoded) <= limit:
                return encoded.decode()
            raise NotJson(f"it takes {len(encoded):,} bytes as JSON and the limit is {limit:,}")
    except (UnicodeEncodeError, RecursionError):
        pass
    raise NotJson(_find_problem(value, rich=False))


def dump(value: Any, *, limit: int = defaults.MAX_VALUE_BYTES) -> str:
    """Encode what `dump_plain` does and, as their usual JSON forms, attrs classes, dates, UUIDs, bytes, sets, Enums ….

    The type is not part of the text: whoever needs it back decodes by annotation, and should check at once that this
    gives an equal value (the registry does).

    Raises:
        NotJson: as for `dump_plain`.
    """
    try:
        return dump_plain(value, limit=limit)
    except NotJson:
        pass
    try:
        built = msgspec.to_builtins(value, str_keys=True, order="sorted")
    except Exception as exc:
        raise NotJson(_find_problem(value, rich=True)) from exc
    return dump_plain(built, limit=limit)


def load(text: str) -> Any:
    """Decode JSON text to plain values.

    Raises:
        NotJson: it is not JSON, or nested beyond what the stack bears.
    """
    try:
        return _decode(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise NotJson(say_briefly(exc)) from exc


def decoder_for(annotation: Any) -> "msgspec.json.Decoder[Any] | None":
    """Return a typed decoder, or None for an annotation that says nothing JSON can be checked or decoded by."""
    try:
        info = msgspec.inspect.type_info(annotation)
        if isinstance(info, msgspec.inspect.AnyType) or _has_foreign_type(info):
            return None
        return msgspec.json.Decoder(annotation)
    except Exception:  # unions that JSON cannot tell apart, unresolved names, classes with hints that do not evaluate
        return None


def decode_as(text: str, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode text by a decoder from `decoder_for`.

    Raises:
        NotJson: the text is not JSON or does not have that type; the message has the path.
    """
    try:
        return decoder.decode(text)
    except Exception as exc:  # classes may raise what they like when they are built
        raise NotJson(say_briefly(exc)) from exc


def convert(value: Any, annotation: Any) -> Any:
    """Turn plain JSON values into what the annotation says; strictly (no text for a number).

    Raises:
        NotJson: the value does not have that type; the message has the path.
    """
    try:
        return msgspec.convert(value, annotation, strict=True, str_keys=True)
    except Exception as exc:
        raise NotJson(say_briefly(exc)) from exc


def check_text(option: str, value: str, *, limit: int) -> str:
    """Return `value` if every store can keep it: 1 to `limit` characters, no NUL, no lone surrogate.

    Raises:
        InvalidOption: it is none of that, or no text at all.
    """
    if not isinstance(value, str):
        raise InvalidOption(option, f"{type(value).__name__} is not text")
    if not value:
        raise InvalidOption(option, "is empty")
    if len(value) > limit:
        raise InvalidOption(option, f"has {len(value):,} characters and the limit is {limit}")
    if "\x00" in value:
        raise InvalidOption(option, "contains NUL")
    if not value.isascii() and not _is_encodable(value):
        raise InvalidOption(option, "contains a lone surrogate, which is no character")
    return str.__str__(value)  # a plain str also for a StrEnum


def _is_plain(values: Iterable[Any], depth: int) -> bool:
    # The hot path of every submit: exact types, most frequent first; surrogates are left to the encoder.
    for value in values:
        kind = type(value)
        if kind in _SCALARS:
            continue
        if kind is int:
            if not -_MAX_INT < value < _MAX_INT:
                return False
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif depth <= 0:
            return False
        elif kind is dict:
            for key in value:
                if type(key) is not str:
                    return False
            if not _is_plain(value.values(), depth - 1):
                return False
        elif (kind is not list and kind is not tuple) or not _is_plain(value, depth - 1):
            return False
    return True


def _find_problem(value: Any, *, rich: bool) -> str:
    try:
        return _problem_at("$", value, MAX_DEPTH, rich) or "it cannot be encoded"
    except RecursionError:
        return f"it contains itself or is nested more than {MAX_DEPTH} levels deep"


def _problem_at(path: str, value: Any, depth: int, rich: bool) -> str | None:
    kind = type(value)
    if kind in _SCALARS or kind in (int, float):
        return _scalar_problem(path, value)
    if kind in (dict, list, tuple):
        if depth <= 0:
            return f"it contains itself or is nested more than {MAX_DEPTH} levels deep"
        return _container_problem(path, value, depth, rich)
    if rich:
        try:
            built = msgspec.to_builtins(value, str_keys=True, order="sorted")
        except Exception:
            return f"{path} is a {kind.__qualname__}, which JSON cannot hold"
        return _problem_at(path, built, depth - 1, rich) if depth > 0 else None
    return f"{path} is a {kind.__qualname__}, which is no plain JSON value"


def _scalar_problem(path: str, value: Any) -> str | None:
    if type(value) is str and not _is_encodable(value):
        return f"{path} contains a lone surrogate, which is no character"
    if type(value) is float and not math.isfinite(value):
        return f"{path} is {value}, which JSON does not know"
    if type(value) is int and not -_MAX_INT < value < _MAX_INT:
        return f"{path} is an integer of more than 4000 digits"
    return None


def _container_problem(path: str, value: Any, depth: int, rich: bool) -> str | None:
    if type(value) is not dict:
        items = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        return next(filter(None, (_problem_at(place, item, depth - 1, rich) for place, item in items)), None)
    for key, item in value.items():
        if type(key) is not str and not rich:
            return f"{path} has a key of type {type(key).__qualname__}, and JSON knows only text keys"
        place = f"{path}.{key}" if type(key) is str and key.isidentifier() else f"{path}[…]"
        problem = _scalar_problem(f"a key of {path}", key) or _problem_at(place, item, depth - 1, rich)
        if problem:
            return problem
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def say_briefly(exc: BaseException) -> str:
    """Describe an error of the codec in one line."""
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    text = describe_exception(exc, limit=1000)
    return text.message if isinstance(exc, msgspec.MsgspecError) else f"{text.type}: {text.message}"


def _has_foreign_type(info: Any) -> bool:
    """Tell whether a type tree contains a class that msgspec would only check by isinstance."""
    seen: set[int] = set()
    stack = [info]
    while stack:
        node = stack.pop()
        if isinstance(node, msgspec.inspect.CustomType | msgspec.inspect.RawType):
            return True
        if isinstance(node, tuple):
            stack.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field) and id(node) not in seen:
            seen.add(id(node))
            stack.extend(getattr(node, name) for name in node.__struct_fields__ if name != "default")
    return False
