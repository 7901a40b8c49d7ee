"""The border between values and stored text: nothing is lost silently, reading is total."""

import contextlib
import enum
import math
import uuid
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine import codec, defaults
from taskengine.codec import MAX_DEPTH, NotJson
from taskengine.core.errors import InvalidOption

NOW = datetime(2026, 11, 30, 12, 0, 0, 123, tzinfo=UTC)

texts = st.text()  # no surrogates by default
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


class Colour(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    left: int
    right: int


class Text(str):
    pass


@attrs.frozen
class Point:
    x: Any
    y: Any = 0


@attrs.frozen
class Even:
    number: int

    def __attrs_post_init__(self) -> None:
        if self.number % 2:
            raise KeyError("odd")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# --- values -----------------------------------------------------------------------------------------------------


@given(json_values)
def test_plain_values_round_trip_exactly(value: Any) -> None:
    back = codec.load(codec.dump_plain(value))
    assert back == value
    assert repr(back) == repr(value) or sorted_repr(back) == sorted_repr(value)
    assert codec.dump(value) == codec.dump_plain(value)


def sorted_repr(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {sorted_repr(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(sorted_repr, value)) + "]"
    return repr(value)


@given(st.dictionaries(texts, json_values), st.randoms())
def test_the_order_of_keys_does_not_change_the_text(value: dict[str, Any], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert codec.dump_plain({key: value[key] for key in keys}) == codec.dump_plain(value)


@pytest.mark.parametrize("value", ["\x00", {"a": "x\x00y"}, {"\x00": 1}, "\u2028", "😀", "\x7f", '"\\'])
def test_nul_and_other_odd_characters_round_trip_without_standing_in_the_text(value: Any) -> None:
    text = codec.dump_plain(value)
    assert "\x00" not in text
    assert codec.load(text) == value


@pytest.mark.parametrize("value", [0, 2**63, 2**64, -(2**100), 10**3999, True, 1.0, -0.0, 1e308, 5e-324, 1e16])
def test_numbers_keep_their_type_and_value(value: float) -> None:
    back = codec.load(codec.dump_plain(value))
    assert (type(back), repr(back)) == (type(value), repr(value))


def test_tuples_become_lists() -> None:
    assert codec.dump_plain((1, (2, [3]))) == "[1,[2,[3]]]"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, r"\$ is nan"),
        ({"a": [1, 2, math.inf]}, r"\$\.a\[2\] is inf"),
        ({"a b": -math.inf}, r"\$\[…\] is -inf"),
        ("\ud800", r"\$ contains a lone surrogate"),
        ({"\udfff": 1}, r"a key of \$ contains a lone surrogate"),
        ({1: 2}, r"\$ has a key of type int"),
        ({None: 2}, r"\$ has a key of type NoneType"),
        ({Colour.RED: 2}, r"\$ has a key of type Colour"),
        (10**4000, r"\$ is an integer of more than 4000 digits"),
        (-(10**5000), r"\$ is an integer of more than 4000 digits"),
        ([{1}], r"\$\[0\] is a set"),
        ((b"x",), r"\$\[0\] is a bytes"),
        ({"x": Point(1)}, r"\$\.x is a Point"),
        (Colour.RED, r"\$ is a Colour"),
        (Number.ONE, r"\$ is a Number"),
        (Text("x"), r"\$ is a Text"),
        (Pair(1, 2), r"\$ is a Pair"),
        (OrderedDict(a=1), r"\$ is a OrderedDict"),
        (defaultdict(list), r"\$ is a defaultdict"),
        (NOW, r"\$ is a datetime"),
        (object(), r"\$ is a object"),
        (print, r"\$ is a builtin_function_or_method"),
        (nested(MAX_DEPTH + 1), "nested more than 100 levels"),
        (nested(100_000), "nested more than 100 levels"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_what_is_no_plain_json_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(NotJson, match=words) as refusal:
        codec.dump_plain(value)
    assert str(refusal.value) == refusal.value.problem


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    for dump in (codec.dump_plain, codec.dump):
        with pytest.raises(NotJson, match="contains itself"):
            dump(cycle)


def test_a_value_of_the_greatest_depth_is_kept() -> None:
    assert codec.load(codec.dump_plain(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


def test_a_nearly_spent_stack_is_a_refusal_and_no_crash() -> None:
    outcomes: set[str] = set()

    def dive() -> None:
        with contextlib.suppress(RecursionError):
            dive()
        for work in (lambda: codec.dump_plain(nested(90)), lambda: codec.load("[" * 90 + "]" * 90)):
            try:
                work()
                outcomes.add("worked")
            except (NotJson, RecursionError) as exc:  # too near the end even the refusal finds no room
                outcomes.add(type(exc).__name__)

    dive()
    assert "worked" in outcomes
    assert "NotJson" in outcomes


def test_text_over_the_limit_is_refused_and_never_cut() -> None:
    assert codec.dump_plain("x" * 8, limit=10) == '"xxxxxxxx"'
    for dump in (codec.dump_plain, codec.dump):
        with pytest.raises(NotJson, match="11 bytes as JSON and the limit is 10"):
            dump("x" * 9, limit=10)
    with pytest.raises(NotJson, match="limit is 1,048,576"):
        codec.dump_plain("é" * (defaults.MAX_VALUE_BYTES // 2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(1.5, "a"), '{"x":1.5,"y":"a"}'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at":"2026-01-02T00:00:00Z"}'),
        (date(2026, 1, 2), '"2026-01-02"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.10"), '"1.10"'),
        (b"a", '"YQ=="'),
        (timedelta(days=1), '"P1D"'),
        (Colour.RED, '"red"'),
        (Number.ONE, "1"),
        ({"b", "c", "a"}, '["a","b","c"]'),
        (Pair(1, 2), "[1,2]"),
        ({2: "b", 1: "a"}, '{"1":"a","2":"b"}'),
        (Point(1, {3, 1, 2}), '{"x":1,"y":[1,2,3]}'),
    ],
    ids=lambda value: type(value).__name__,
)
def test_richer_values_have_their_usual_form(value: Any, text: str) -> None:
    assert codec.dump(value) == text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Point(math.nan), r"\$\.x is nan"),
        ({"p": [Point(1, {"q": math.inf})]}, r"\$\.p\[0\]\.y\.q is inf"),
        (Point(1, "\ud800"), r"\$\.y contains a lone surrogate"),
        ([object()], r"\$\[0\] is a object, which JSON cannot hold"),
        ({"p": Point(1, object())}, r"\$\.p is a Point, which JSON cannot hold"),
        ({(1, 2): Point(object())}, r"\$\[…\] is a Point"),
        ({1, "a"}, r"\$ is a set"),
        ((n for n in [1]), r"\$ is a generator"),
        (open, r"\$ is a builtin_function_or_method"),
        (lambda: 1, r"\$ is a function"),
        (1j, r"\$ is a complex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_cannot_hold_at_all_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(NotJson, match=words):
        codec.dump(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "nan",
        "NaN",
        "Infinity",
        "1e999",
        "'a'",
        '"\\ud800"',
        "[" * 100_000,
        "9" * 5000,
        "\x00",
        "[1] 2",
    ],
    ids=lambda text: text[:10],
)
def test_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        codec.load(text)


@pytest.mark.parametrize("thing", [None, 3, b"\xff", "\ud800"])
def test_what_is_no_text_is_refused_like_bad_text(thing: Any) -> None:
    with pytest.raises(NotJson):
        codec.load(thing)


@pytest.mark.parametrize(
    ("value", "annotation", "result"),
    [
        (3, float, 3.0),
        ("2026-01-02", date, date(2026, 1, 2)),
        ({"1": "a"}, dict[int, str], {1: "a"}),
        ([1, 2], tuple[int, int], (1, 2)),
        ({"x": 1}, Point, Point(1)),
        ("YQ==", bytes, b"a"),
    ],
)
def test_plain_values_are_converted_by_annotation(value: Any, annotation: Any, result: Any) -> None:
    assert codec.convert(value, annotation) == result


def test_conversion_is_strict_and_says_where() -> None:
    with pytest.raises(NotJson, match=r"Expected `int`, got `str` - at `\$\[1\]`"):
        codec.convert([1, "2"], list[int])


def test_a_class_that_raises_while_it_is_built_is_a_refusal() -> None:
    decoder = codec.decoder_for(Even)
    assert decoder is not None
    with pytest.raises(NotJson, match="odd"):
        codec.convert({"number": 1}, Even)
    with pytest.raises(NotJson, match="odd"):
        codec.decode_as('{"number":1}', decoder)


def test_a_decoder_reads_text_as_its_type() -> None:
    decoder = codec.decoder_for(dict[str, Point])
    assert decoder is not None
    assert codec.decode_as('{"a":{"x":1}}', decoder) == {"a": Point(1)}
    with pytest.raises(NotJson, match=r"missing required field `x` - at `\$\[\.\.\.\]`"):
        codec.decode_as('{"a":{"y":"1"}}', decoder)
    with pytest.raises(NotJson):
        codec.decode_as("{", decoder)


@attrs.define
class Tree:
    children: "list[Tree]" = attrs.field(factory=list)


@attrs.define
class WithForeign:
    lock: complex


@pytest.mark.parametrize("annotation", [int, Point, list[Point], int | None, Tree, Pair, Colour, None, dict[str, Any]])
def test_annotations_that_json_can_be_decoded_by_have_a_decoder(annotation: Any) -> None:
    assert codec.decoder_for(annotation) is not None


@pytest.mark.parametrize(
    "annotation",
    [Any, object, complex, list[complex], WithForeign, str | datetime, "int | str", type, Point | Even, 3],
    ids=str,
)
def test_annotations_that_say_nothing_about_json_have_none(annotation: Any) -> None:
    assert codec.decoder_for(annotation) is None


# --- texts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["a", " ", "é😀", "x" * 10, "\n"])
def test_text_within_its_limit_is_returned(value: str) -> None:
    assert codec.check_text("label", value, limit=10) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "is empty"),
        ("x" * 11, "has 11 characters and the limit is 10"),
        ("a\x00", "contains NUL"),
        ("a\ud800", "lone surrogate"),
        (3, "int is not text"),
        (None, "NoneType is not text"),
        (b"a", "bytes is not text"),
    ],
)
def test_text_that_some_store_cannot_keep_is_refused_by_the_name_of_its_option(value: Any, words: str) -> None:
    with pytest.raises(InvalidOption, match=words) as refusal:
        codec.check_text("label", value, limit=10)
    assert refusal.value.option == "label"


def test_an_enum_of_strings_is_taken_as_its_plain_text() -> None:
    assert type(codec.check_text("tag", Colour.RED, limit=10)) is str


def test_the_border_does_not_import_what_could_run_code() -> None:
    assert not {"pickle", "marshal", "shelve", "importlib", "yaml"} & set(vars(codec))
