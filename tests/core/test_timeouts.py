"""Timeouts: what is taken, and the instants that follow."""

import math
from typing import Any

import attrs
import pytest

from taskengine.core.errors import InvalidOption
from taskengine.core.timeouts import LONGEST, NO_TIMEOUTS, Timeouts, to_timeouts

KINDS = ["start", "attempt", "idle", "total"]
NO_DURATIONS = [0, 0.0, -1, -1e-9, math.nan, math.inf, LONGEST * 2, 10**400, True, "5", [5], b"5", 1j]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [1e-9, 0.5, 1, 3600, LONGEST, None])
def test_a_number_of_seconds_or_none_is_taken(kind: str, seconds: float | None) -> None:
    assert getattr(Timeouts(**{kind: seconds}), kind) == seconds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", NO_DURATIONS, ids=lambda value: repr(value)[:10])
def test_what_is_no_duration_is_refused_by_its_kind(kind: str, seconds: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^timeout: {kind}=.* is not a number of seconds above 0") as refusal:
        Timeouts(**{kind: seconds})
    assert refusal.value.option == "timeout"


@pytest.mark.parametrize(
    ("final", "words"),
    [
        ((), set()),
        ("attempt", {"attempt"}),
        (["idle", "idle"], {"idle"}),
        ({"attempt", "idle"}, {"attempt", "idle"}),
        (iter(["idle"]), {"idle"}),
    ],
)
def test_attempt_and_idle_may_be_final(final: Any, words: set[str]) -> None:
    assert Timeouts(final=final).final == words


@pytest.mark.parametrize("final", ["total", "start", "", ["attempt", "total"], [["attempt"]], 3, None, [None], b"idle"])
def test_nothing_else_can_be_named_as_final(final: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^timeout: final=.* is neither 'attempt' nor 'idle'"):
        Timeouts(final=final)


def test_without_timeouts_there_are_no_instants() -> None:
    assert Timeouts() == NO_TIMEOUTS
    assert NO_TIMEOUTS.deadline_at(7) is None
    assert NO_TIMEOUTS.start_within() is None
    assert Timeouts(attempt=1, idle=1, start=1).deadline_at(7) is None
    assert Timeouts(attempt=1, idle=1, total=1).start_within() is None


def test_the_total_counts_from_the_submit() -> None:
    assert Timeouts(total=1.5).deadline_at(1_000) == 1_501_000


def test_the_start_is_a_length_of_time_since_the_due_time_may_change() -> None:
    assert Timeouts(start=0.25).start_within() == 250_000


def test_a_timeout_below_a_microsecond_is_one_and_not_none() -> None:
    assert Timeouts(start=1e-9, total=1e-9).start_within() == 1
    assert Timeouts(total=1e-9).deadline_at(5) == 6


def test_the_longest_timeout_still_is_an_instant_that_stores_can_keep() -> None:
    deadline = Timeouts(total=LONGEST).deadline_at(2 * 10**15)
    assert deadline is not None
    assert deadline < 2**63


def test_timeouts_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Timeouts().total = 1  # type: ignore[misc]


def test_a_plain_number_is_the_timeout_of_each_attempt() -> None:
    assert to_timeouts(5) == Timeouts(attempt=5)
    assert to_timeouts(0.5) == Timeouts(attempt=0.5)


def test_timeouts_and_none_are_read_as_they_are() -> None:
    timeouts = Timeouts(total=1)
    assert to_timeouts(timeouts) is timeouts
    assert to_timeouts(None) is None


@pytest.mark.parametrize("value", NO_DURATIONS, ids=lambda value: repr(value)[:10])
def test_what_is_neither_a_duration_nor_timeouts_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^timeout: .* is neither a number of seconds above 0, nor Timeouts"):
        to_timeouts(value)
