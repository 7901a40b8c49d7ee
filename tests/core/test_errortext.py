"""Describing exceptions that do not want to be described."""

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.errortext import ErrorText, describe_exception, storable

LIMIT = 10_000


def caught(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as same:
        return same


def describe(exc: BaseException, limit: int = LIMIT) -> ErrorText:
    text = describe_exception(caught(exc), limit=limit)
    for part in (text.type, text.message, text.traceback):
        assert type(part) is str
        assert "\x00" not in part
        assert len(part.encode()) <= limit + 100
    assert text.leaves
    return text


class Raising(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("from __str__")


class NoString(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]  # the point of it


class Recursing(Exception):
    def __str__(self) -> str:
        return str(self)


class Huge(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


class OddString(str):
    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise ValueError("no bytes")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __format__(self, spec: str) -> str:
        raise ValueError("no format")


class Odd(Exception):
    def __str__(self) -> str:
        return OddString("odd")


class NoCause(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise ValueError("no cause for you")


class NoTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise ValueError("no traceback for you")


class FailingMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise ValueError(name)

    def __hash__(cls) -> int:
        raise ValueError("no hash")


class Unnamable(Exception, metaclass=FailingMeta):
    pass


class UnnamableBase(BaseException, metaclass=FailingMeta):
    pass


class LyingGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise ValueError("none of your business")


class FailingRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def test_a_plain_exception_has_type_message_traceback_and_one_leaf() -> None:
    text = describe(ValueError("x"))
    assert text.type == "ValueError"
    assert text.message == "x"
    assert text.traceback.startswith("Traceback (most recent call last):\n")
    assert "in caught" in text.traceback
    assert text.traceback.endswith("ValueError: x\n")
    assert text.leaves == (("builtins.ValueError", "builtins.Exception", "builtins.BaseException"),)


def test_locals_are_not_shown() -> None:
    def fail() -> None:
        password = "sesame"
        raise ValueError(len(password))

    with pytest.raises(ValueError) as failure:
        fail()
    assert "sesame" not in describe_exception(failure.value, limit=LIMIT).traceback.replace('password = "sesame"', "")


def test_an_exception_that_was_never_raised_has_a_text_too() -> None:
    text = describe_exception(ValueError("x"), limit=LIMIT)
    assert text.traceback == "ValueError: x\n"


@pytest.mark.parametrize("kind", [Raising, NoString, Recursing])
def test_what_cannot_be_printed_is_called_unprintable(kind: type[Exception]) -> None:
    text = describe(kind())
    assert text.type == kind.__qualname__
    assert text.message == f"<unprintable {kind.__qualname__}>"
    assert "in caught" in text.traceback


def test_an_argument_whose_repr_fails_makes_the_message_unprintable() -> None:
    assert describe(ValueError(FailingRepr())).message == "<unprintable ValueError>"


def test_ten_megabytes_are_cut_and_marked_as_cut() -> None:
    text = describe(Huge(), limit=1000)
    assert text.message == "x" * 1000 + "… [cut, 10000000 bytes in all]"
    assert "in caught" in text.traceback
    assert "… [cut, " in text.traceback


def test_a_subclass_of_str_is_taken_by_its_characters() -> None:
    assert describe(Odd()).message == "odd"


def test_nul_and_lone_surrogates_are_replaced() -> None:
    assert describe(ValueError("a\x00b\ud800c😀")).message == "a\ufffdb\ufffdc😀"


def test_cyclic_causes_end() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    text = describe(first)
    assert text.traceback.count("ValueError: first") == 1
    assert text.traceback.count("KeyError: 'second'") == 1


def test_causes_are_shown() -> None:
    error = RuntimeError("outer")
    error.__cause__ = ValueError("inner")
    text = describe(error).traceback
    assert "ValueError: inner" in text
    assert "direct cause" in text


def test_a_very_long_chain_of_causes_falls_back_to_the_frames() -> None:
    chain: BaseException = ValueError(0)
    for number in range(10_000):
        following = ValueError(number)
        following.__cause__ = chain
        chain = following
    text = describe(chain)
    assert "in caught" in text.traceback
    assert "direct cause" not in text.traceback


@pytest.mark.parametrize("kind", [NoCause, NoTraceback])
def test_attributes_that_raise_do_not_hide_the_frames(kind: type[Exception]) -> None:
    text = describe(kind("message"))
    assert text.message == "message"
    assert "in caught" in text.traceback


def test_a_class_that_cannot_even_be_named_keeps_its_base_as_leaf() -> None:
    text = describe(Unnamable("message"))
    assert text.type == "<unnamable exception>"
    assert text.message == "message"
    assert text.leaves == (("builtins.Exception", "builtins.BaseException"),)
    assert describe(UnnamableBase()).leaves == (("builtins.BaseException",),)


def test_a_note_that_cannot_be_printed_is_no_obstacle() -> None:
    error = ValueError("x")
    error.__notes__ = [FailingRepr(), "\ud800"]  # type: ignore[list-item]
    assert describe(error).message == "x"


def test_a_runaway_recursion_is_described() -> None:
    def recurse() -> None:
        recurse()

    with pytest.raises(RecursionError) as failure:
        recurse()
    text = describe_exception(failure.value, limit=LIMIT)
    assert text.type == "RecursionError"
    assert "in recurse" in text.traceback


def test_frames_that_cannot_be_shown_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Iterator[str]:
        raise MemoryError

    monkeypatch.setattr(traceback, "format_tb", fail)
    monkeypatch.setattr(traceback.TracebackException, "from_exception", fail)
    text = describe(ValueError("x"))
    assert "its frames cannot be shown" in text.traceback
    assert text.message == "x"


# --- groups -----------------------------------------------------------------------------------------------------


def test_a_group_shows_its_leaves() -> None:
    text = describe(ExceptionGroup("g", [ValueError("x"), ExceptionGroup("h", [KeyError("y")])]))
    assert text.type == "ExceptionGroup"
    assert text.message == "ValueError: x; KeyError: 'y'"
    assert [names[0] for names in text.leaves] == ["builtins.ValueError", "builtins.KeyError"]
    assert "ExceptionGroup: g (2 sub-exceptions)" in text.traceback


def test_equal_classes_are_one_leaf() -> None:
    assert len(describe(ExceptionGroup("g", [ValueError(1), ValueError(2)])).leaves) == 1


def test_a_group_of_base_exceptions_is_described_too() -> None:
    text = describe(BaseExceptionGroup("g", [SystemExit(1), ValueError("x")]))
    assert text.message == "SystemExit: 1; ValueError: x"


def test_members_of_a_group_may_misbehave_as_well() -> None:
    text = describe(ExceptionGroup("g", [Raising(), Odd(), Unnamable("u"), ValueError("\ud800")]))
    assert text.message.split("; ") == [
        "Raising: <unprintable Raising>",
        "Odd: odd",
        "<unnamable exception>: u",
        "ValueError: \ufffd",
    ]


def test_a_group_that_lies_about_its_members_is_asked_past_its_class() -> None:
    assert describe(LyingGroup("g", [ValueError("x")])).message == "ValueError: x"


def test_a_huge_group_is_summed_up_and_every_kind_in_it_is_found() -> None:
    text = describe(ExceptionGroup("g", [*(ValueError(n) for n in range(50_000)), KeyError("last")]))
    assert "… and 49981 more" in text.message
    assert [names[0] for names in text.leaves] == ["builtins.ValueError", "builtins.KeyError"]
    assert "in caught" in text.traceback


def test_a_group_that_holds_one_member_on_many_paths_is_walked_once() -> None:
    group: Exception = ValueError("leaf")
    for _ in range(100):  # 2 ** 100 paths
        group = ExceptionGroup("g", [group, group])
    assert describe(group).message == "ValueError: leaf"


# --- storable ---------------------------------------------------------------------------------------------------


@given(st.text(st.characters() | st.sampled_from("\x00\ud800\udfff😀é")), st.integers(0, 50))
def test_storable_text_is_encodable_bounded_and_marked(text: str, limit: int) -> None:
    result = storable(text, limit=limit)
    size = len(text.encode("utf-8", "surrogatepass"))
    head, mark, _ = result.partition("… [cut, ")
    assert "\x00" not in result
    result.encode()
    if size <= limit:
        assert len(result) == len(text)
    else:
        assert mark
        assert result.endswith(f"… [cut, {size} bytes in all]")
        assert len(head.encode()) <= limit
