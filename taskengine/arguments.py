"""What a function accepts and returns, as checks and conversions to and from JSON text.

A `CallShape` is made once per task, from the signature and the annotations of its function. It answers three questions
quickly: do these arguments fit, what is their text, and which values does a stored text stand for. A value that leaves
as JSON must come back equal: in a position with a usable annotation that is tried out at submit, in any other one only
plain JSON values are accepted. Only the function's own annotations are ever evaluated, never anything stored.
"""

import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from taskengine import codec
from taskengine.context import TaskContext
from taskengine.core.errors import InvalidArguments, InvalidOption, InvalidResult

_Parameter = inspect.Parameter
_PLAIN_SCALARS: tuple[type, ...] = (int, str, bool, float, type(None))


def short_repr(value: object) -> str:
    """Represent a value in at most about 200 characters, also one whose `repr` fails."""
    try:
        return _SHORT.repr(value)
    except BaseException:
        return f"<unprintable {type(value).__name__}>"


_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = _SHORT.maxlong = 200
_SHORT.maxlevel = 3


@frozen
class Unresolved:
    """An annotation that does not evaluate here, such as a name imported under TYPE_CHECKING."""

    text: str


@frozen(eq=False)
class Slot:
    """One place for a value: a parameter, or the result."""

    what: str
    annotation: Any
    plain: frozenset[type]
    """Types whose exact instances, if plain JSON, are already right for the annotation: nothing to convert."""
    decoder: Any
    """Typed decoder; None where only plain JSON values are accepted."""

    @classmethod
    def of(cls, what: str, annotation: Any) -> "Slot":
        usable = annotation is not _Parameter.empty and not isinstance(annotation, Unresolved)
        decoder = codec.decoder_for(annotation) if usable else None
        return cls(what, annotation, _plain_types(annotation) if decoder is not None else frozenset(), decoder)

    def encode(self, value: Any, limit: int) -> str:
        """Encode a value after trying that it comes back equal.

        Raises:
            NotJson: it does not, or cannot be encoded; the message names the slot and the fix.
        """
        if self.decoder is None:
            try:
                return codec.dump_plain(value, limit=limit)
            except codec.NotJson as exc:
                raise codec.NotJson(f"{self.what}: {exc.problem}{self._advice()}") from exc
        try:
            if type(value) in self.plain:
                return codec.dump_plain(value, limit=limit)
            text = codec.dump(value, limit=limit)
            back = codec.decode_as(text, self.decoder)
        except codec.NotJson as exc:
            raise codec.NotJson(f"{self.what}: {exc.problem}") from exc
        if not _is_same(back, value):
            raise codec.NotJson(
                f"{self.what}: {short_repr(value)} comes back from JSON as {short_repr(back)}, which is not equal; "
                f"pass a value that {_say(self.annotation)} describes, or annotate it more exactly"
            )
        return text

    def convert(self, value: Any) -> Any:
        """Turn a plain JSON value into what the annotation says.

        Raises:
            NotJson: it does not have that type; the message names the slot.
        """
        if self.decoder is None or type(value) in self.plain:
            return value
        try:
            return codec.convert(value, self.annotation)
        except codec.NotJson as exc:
            raise codec.NotJson(f"{self.what}: {exc.problem}") from exc

    def decode(self, text: str) -> Any:
        """Decode stored text by the annotation.

        Raises:
            NotJson: the text is no JSON of that type.
        """
        return codec.load(text) if self.decoder is None else codec.decode_as(text, self.decoder)

    def _advice(self) -> str:
        if self.annotation is _Parameter.empty:
            return "; annotate it with the type, or pass plain JSON values"
        if isinstance(self.annotation, Unresolved):
            return f"; its annotation {self.annotation.text!r} cannot be evaluated where the function is defined"
        return f"; JSON cannot be decoded as {_say(self.annotation)}, so only plain JSON values are taken"


@frozen(eq=False)
class CallShape:
    """How one function may be called, its TaskContext aside."""

    name: str
    """Name of the task, for messages."""
    takes_context: bool
    signature: inspect.Signature
    positional: tuple[Slot, ...]
    """Of the parameters that can be given by position, in order."""
    more: Slot | None
    """Of `*args`."""
    named: Mapping[str, Slot]
    """Of the parameters that can be given by name."""
    others: Slot | None
    """Of `**kwargs`."""
    result: Slot
    is_typed: bool
    """Whether any parameter asks for a conversion or check beyond plain JSON."""
    least: int
    """How many must be given by position."""
    needed: tuple[frozenset[str], ...]
    """By the number of positional arguments: names that must be given."""
    taken: tuple[frozenset[str], ...]
    """By the number of positional arguments: names that must not be given, in spite of `**kwargs`."""

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> "CallShape":
        """Read a function's signature and annotations.

        Raises:
            InvalidOption: it has no readable signature.
        """
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError) as exc:
            raise InvalidOption("task", f"{function!r} has no signature that could be read; wrap it in a def") from exc
        hints = _resolve_hints(function)
        parameters = list(signature.parameters.values())
        takes_context = bool(parameters) and _is_context(hints.get(parameters[0].name))
        context = parameters.pop(0) if takes_context else None
        slots = {p.name: Slot.of(f"parameter {p.name!r}", hints.get(p.name, _Parameter.empty)) for p in parameters}
        by_position = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        reserved = {context.name} if context is not None and context.kind is not _Parameter.POSITIONAL_ONLY else set()
        filled = [{p.name for p in by_position[:count]} for count in range(len(by_position) + 1)]
        return cls(
            name=name,
            takes_context=takes_context,
            signature=signature.replace(parameters=parameters),
            positional=tuple(slots[p.name] for p in by_position),
            more=next((slots[p.name] for p in parameters if p.kind is p.VAR_POSITIONAL), None),
            named={p.name: slots[p.name] for p in by_name},
            others=next((slots[p.name] for p in parameters if p.kind is p.VAR_KEYWORD), None),
            result=Slot.of("the returned value", hints.get("return", _Parameter.empty)),
            is_typed=any(slot.decoder is not None for slot in slots.values()),
            least=sum(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in by_position),
            needed=tuple(frozenset(p.name for p in by_name if p.default is p.empty) - names for names in filled),
            taken=tuple(frozenset(p.name for p in by_name if p.name in names) | reserved for names in filled),
        )

    def fit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that the function could be called so.

        Raises:
            InvalidArguments: too many, missing, doubly given or unknown arguments.
        """
        count = len(args)
        if count > len(self.positional):
            if self.more is None:
                raise self._misfit(args, kwargs)
            count = len(self.positional)
        given = kwargs.keys()
        if (
            count < self.least
            or not self.needed[count] <= given
            or not given.isdisjoint(self.taken[count])
            or (self.others is None and not given <= self.named.keys())
        ):
            raise self._misfit(args, kwargs)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> str:
        """Encode arguments that fit as `[args, kwargs]`, as given: defaults are left to whoever runs the body.

        Raises:
            InvalidArguments: a value has the wrong type or cannot be kept as JSON; the message names the parameter.
        """
        try:
            if not self.is_typed or self._are_plain(args, kwargs):
                return codec.dump_plain([args, kwargs], limit=limit)
        except codec.NotJson:
            pass
        try:
            for slot, value in self._pairs(args, kwargs):
                slot.encode(value, limit)
            return codec.dump([args, kwargs], limit=limit)
        except codec.NotJson as exc:
            raise InvalidArguments(self.name, exc.problem) from exc

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode stored arguments by the annotations.

        Raises:
            NotJson: the text is not JSON at all.
            InvalidArguments: it is no call that fits the function.
        """
        call = codec.load(text)
        if type(call) is not list or len(call) != 2 or type(call[0]) is not list or type(call[1]) is not dict:
            raise InvalidArguments(self.name, "what is stored is not a list of positional and an object of named ones")
        args, kwargs = call
        self.fit(args, kwargs)
        if not self.is_typed or self._are_plain(args, kwargs):
            return tuple(args), kwargs
        try:
            positional = tuple(slot.convert(value) for slot, value in self._positional_pairs(args))
            return positional, {key: self._named_slot(key).convert(value) for key, value in kwargs.items()}
        except codec.NotJson as exc:
            raise InvalidArguments(self.name, exc.problem) from exc

    def encode_result(self, value: Any, limit: int) -> str:
        """Encode what the function returned.

        Raises:
            InvalidResult: it cannot be kept as JSON, or is not what the annotation says.
        """
        try:
            if self.result.decoder is None or type(value) in self.result.plain:
                return codec.dump_plain(value, limit=limit)
        except codec.NotJson:
            pass
        try:
            return self.result.encode(value, limit)
        except codec.NotJson as exc:
            raise InvalidResult(self.name, exc.problem) from exc

    def _are_plain(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tell that no value needs a typed check or conversion, if all are plain JSON; without `*args`, `**kwargs`."""
        if len(args) > len(self.positional):
            return False
        for slot, value in zip(self.positional, args, strict=False):
            if slot.decoder is not None and type(value) not in slot.plain:
                return False
        for key, value in kwargs.items():
            named = self.named.get(key)
            if named is None or (named.decoder is not None and type(value) not in named.plain):
                return False
        return True

    def _pairs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Slot, Any]]:
        yield from self._positional_pairs(args)
        for key, value in kwargs.items():
            yield self._named_slot(key), value

    def _positional_pairs(self, args: Sequence[Any]) -> Iterator[tuple[Slot, Any]]:
        yield from zip(self.positional, args, strict=False)
        if self.more is not None:
            for value in args[len(self.positional) :]:
                yield self.more, value

    def _named_slot(self, key: str) -> Slot:
        slot = self.named.get(key, self.others)
        assert slot is not None, "fit() has looked"
        return slot

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InvalidArguments:
        problem = "the context is passed by the engine"
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            problem = str(exc)
        return InvalidArguments(self.name, f"{problem}; it is called as {self.name}{self._shown_signature()}")

    def _shown_signature(self) -> str:
        try:
            return str(self.signature)
        except Exception:  # the repr of somebody's default
            return f"({', '.join(self.signature.parameters)})"


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what is executed in the end: partials unwrapped, a callable object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    method: Callable[..., Any] = type(function).__call__
    return method


def _resolve_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Evaluate each annotation for itself, so that one that fails does not take the others with it."""
    code = code_of(function)
    try:
        return typing.get_type_hints(code, include_extras=True)
    except Exception:
        pass
    try:
        raw = dict(code.__annotations__)
    except Exception:  # from 3.14 on this evaluates
        return {}
    return {name: _resolve(code, annotation) for name, annotation in raw.items()}


def _resolve(code: Callable[..., Any], annotation: Any) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    scope = getattr(inspect.unwrap(code), "__globals__", {})
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)["it"]
    except Exception:
        return Unresolved(annotation if isinstance(annotation, str) else repr(annotation))


def _is_context(hint: Any) -> bool:
    if isinstance(hint, Unresolved):  # imported under TYPE_CHECKING only: its name is all there is
        return hint.text.strip("'\" ").rpartition(".")[2] == TaskContext.__name__
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    return isinstance(hint, type) and issubclass(hint, TaskContext)


def _plain_types(annotation: Any) -> frozenset[type]:
    if annotation in _PLAIN_SCALARS or annotation in (list, dict):
        return frozenset({annotation})
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return frozenset().union(*map(_plain_types, parts))
    if (origin is list and parts == (Any,)) or (origin is dict and parts == (str, Any)):
        return frozenset({origin})
    return frozenset()


def _is_same(back: Any, value: Any) -> bool:
    try:
        return bool(back == value) or bool(_with_lists(back) == _with_lists(value))
    except Exception:
        return False


def _with_lists(value: Any) -> Any:
    """Replace tuples by lists in plain containers: the one difference that is not held against a value."""
    if type(value) in (list, tuple):
        return [_with_lists(item) for item in value]
    if type(value) is dict:
        return {key: _with_lists(item) for key, item in value.items()}
    return value


def _say(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
