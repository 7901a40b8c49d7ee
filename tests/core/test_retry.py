"""Retry arithmetic: total, bounded, and honest about zero and None."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.errors import InvalidOption
from taskengine.core.errortext import describe_exception
from taskengine.core.retry import (
    RETRY_AFTER_STATUS,
    RetryPolicy,
    backoff,
    error_names,
    is_retryable,
    parse_retry_after,
    retry_wait,
    status_is_retryable,
    status_is_success,
)

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)

policies = st.builds(
    RetryPolicy,
    base=st.floats(0, 1e9),
    factor=st.floats(0, 1e6),
    cap=st.floats(0, 1e9),
    jitter=st.floats(0, 1),
)
draws = st.floats(0, 1, exclude_max=True)
counts = st.integers(-5, 5) | st.integers(0, 10**400)


def no_jitter(**options: float) -> RetryPolicy:
    return RetryPolicy(jitter=0, **options)  # type: ignore[arg-type]  # floats only


@given(policies, counts, draws)
def test_a_wait_is_never_negative_and_never_above_the_cap(policy: RetryPolicy, failed: int, draw: float) -> None:
    wait = backoff(policy, failed, draw)
    assert 0.0 <= wait <= policy.cap


@given(policies, st.integers(0, 10**6), draws)
def test_more_failures_never_shorten_the_wait_when_the_factor_grows(
    policy: RetryPolicy, failed: int, draw: float
) -> None:
    if policy.factor >= 1:
        assert backoff(policy, failed, draw) <= backoff(policy, failed + 1, draw)


@given(policies, counts, draws, st.floats(0, 1e9))
def test_a_higher_cap_never_shortens_the_wait(policy: RetryPolicy, failed: int, draw: float, more: float) -> None:
    higher = RetryPolicy(base=policy.base, factor=policy.factor, cap=min(policy.cap + more, 1e9), jitter=policy.jitter)
    assert backoff(policy, failed, draw) <= backoff(higher, failed, draw)


@given(policies, counts, draws)
def test_chance_takes_off_at_most_the_jittered_part(policy: RetryPolicy, failed: int, draw: float) -> None:
    longest = backoff(policy, failed, 0.0)
    assert longest * (1 - policy.jitter) * (1 - 1e-9) <= backoff(policy, failed, draw) <= longest


def test_waits_double_from_the_base_up_to_the_cap() -> None:
    policy = no_jitter(base=1, factor=2, cap=60)
    assert [backoff(policy, failed, 0.5) for failed in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_full_jitter_can_take_nearly_all_of_the_wait() -> None:
    policy = RetryPolicy(base=10, factor=1, cap=60, jitter=1)
    assert backoff(policy, 1, 0.0) == 10
    assert backoff(policy, 1, 0.75) == pytest.approx(2.5)


@pytest.mark.parametrize("failed", [10**3, 10**9, 10**400])
def test_huge_numbers_of_attempts_saturate_at_the_cap(failed: int) -> None:
    assert backoff(no_jitter(base=1, factor=2, cap=60), failed, 0.0) == 60


@pytest.mark.parametrize("failed", [1, 2, 10**400])
def test_a_base_of_zero_always_retries_at_once(failed: int) -> None:
    assert backoff(RetryPolicy(base=0), failed, 0.3) == 0


def test_a_cap_of_zero_always_retries_at_once() -> None:
    assert backoff(RetryPolicy(cap=0), 7, 0.3) == 0


@pytest.mark.parametrize(("factor", "waits"), [(0, [5, 0, 0]), (1, [5, 5, 5]), (0.5, [5, 2.5, 1.25])])
def test_factors_up_to_one_keep_their_meaning(factor: float, waits: list[float]) -> None:
    assert [backoff(no_jitter(base=5, factor=factor), failed, 0.0) for failed in (1, 2, 3)] == waits


@pytest.mark.parametrize(("factor", "wait"), [(0, 0), (0.5, 0), (1, 5), (2, 60)])
def test_every_factor_has_its_own_answer_after_very_many_failures(factor: float, wait: float) -> None:
    assert backoff(no_jitter(base=5, factor=factor, cap=60), 10**9, 0.0) == wait


@pytest.mark.parametrize("failed", [0, -1, -(10**400)])
def test_counts_below_one_are_taken_as_the_first(failed: int) -> None:
    assert backoff(no_jitter(base=3), failed, 0.0) == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 1_000_001),
        ("base", -0.1),
        ("base", math.nan),
        ("base", math.inf),
        ("base", "1"),
        ("factor", -1),
        ("factor", math.inf),
        ("cap", -1),
        ("cap", None),
        ("cap", math.nan),
        ("jitter", 1.1),
        ("jitter", -0.1),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        RetryPolicy(**{option: value})
    assert refusal.value.option == option


def test_none_means_the_default_and_one_means_no_retry() -> None:
    assert RetryPolicy().max_attempts is None
    assert RetryPolicy(max_attempts=1).max_attempts == 1


# --- which exceptions -------------------------------------------------------------------------------------------


class Mine(ValueError):
    pass


def judge(policy: RetryPolicy, exc: BaseException) -> bool:
    return is_retryable(policy, describe_exception(exc, limit=100).leaves)


@pytest.mark.parametrize("exc", [ValueError(), OSError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_everything_is_retried_by_default(exc: BaseException) -> None:
    assert judge(RetryPolicy(), exc)


def test_retry_on_takes_subclasses_too_and_nothing_else() -> None:
    policy = RetryPolicy(retry_on=(ValueError,))
    assert judge(policy, ValueError())
    assert judge(policy, Mine())
    assert not judge(policy, KeyError())


def test_a_single_class_or_name_stands_for_a_tuple_of_it() -> None:
    assert RetryPolicy(retry_on=OSError).retry_on == ("builtins.OSError",)
    assert RetryPolicy(give_up_on="ValueError").give_up_on == ("builtins.ValueError",)


def test_an_empty_retry_on_retries_nothing() -> None:
    assert not judge(RetryPolicy(retry_on=()), ValueError())


def test_an_empty_give_up_on_gives_up_on_nothing() -> None:
    assert judge(RetryPolicy(give_up_on=()), ValueError())


def test_give_up_on_is_looked_at_first() -> None:
    policy = RetryPolicy(retry_on=(ValueError,), give_up_on=(Mine,))
    assert judge(policy, ValueError())
    assert not judge(policy, Mine())


@pytest.mark.parametrize("names", [("ValueError",), ("builtins.ValueError",), (ValueError,), [ValueError]])
def test_classes_can_be_given_as_such_or_by_name(names: Iterable[Any]) -> None:
    policy = RetryPolicy(retry_on=tuple(names))
    assert policy.retry_on == ("builtins.ValueError",)


@pytest.mark.parametrize("bad", [int, 3, None, object()])
def test_what_is_no_exception_class_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption, match="neither an exception class"):
        RetryPolicy(retry_on=(bad,))


def test_names_run_from_the_class_to_its_bases_without_object() -> None:
    assert error_names(Mine) == (
        f"{__name__}.Mine",
        "builtins.ValueError",
        "builtins.Exception",
        "builtins.BaseException",
    )


def test_a_group_of_the_wanted_kind_is_retried_as_its_leaf_would_be() -> None:
    policy = RetryPolicy(retry_on=(ValueError,))
    assert judge(policy, ExceptionGroup("child failed", [ValueError()]))
    assert judge(policy, ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError()])]))


def test_a_group_is_only_retried_if_every_leaf_would_be() -> None:
    policy = RetryPolicy(retry_on=(ValueError,))
    assert not judge(policy, ExceptionGroup("two failed", [ValueError(), KeyError()]))
    assert not judge(RetryPolicy(give_up_on=(KeyError,)), ExceptionGroup("two", [ValueError(), KeyError()]))
    assert judge(RetryPolicy(retry_on=(ValueError, KeyError)), ExceptionGroup("two", [ValueError(), KeyError()]))


# --- HTTP -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [*range(100, 600), 0, 600, 999])
def test_each_status_is_a_success_retried_or_final(status: int) -> None:
    assert status_is_success(status) == (status // 100 == 2)
    assert status_is_retryable(status) == (status in (408, 425, 429) or status // 100 == 5)


def test_retry_after_is_honoured_where_a_retry_makes_sense() -> None:
    assert {408, 425, 429, 503} == RETRY_AFTER_STATUS
    assert all(status_is_retryable(status) for status in RETRY_AFTER_STATUS)


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            "",
            "   ",
            "-1",
            "-5",
            "soon",
            "1,5",
            "1e3",
            "0x10",
            "inf",
            "nan",
            ".5",
            "1.2.3",
            "+3",
            "١٢",
            "²",
            "1 2",
        ),
        *("9" * 101, "Wed", "Wed, 99 Foo 2015 07:28:00 GMT", "Wed, 21 Oct 99999 07:28:00 GMT", "a" * 100, "\x00"),
    ],
)
def test_garbage_and_negatives_leave_it_to_the_backoff(value: str | None) -> None:
    assert parse_retry_after(value, NOW) is None


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0.0), ("1", 1.0), (" 30 ", 30.0), ("1.5", 2.0), ("0.2", 1.0), ("120", 120.0)]
)
def test_seconds_are_read_and_fractions_rounded_up(value: str, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_a_date_in_the_past_is_no_wait_of_its_own() -> None:
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT", NOW) == 0.0


@pytest.mark.parametrize("zone", ["GMT", "+0000", "-0000"])
def test_a_date_ahead_is_read_in_seconds_from_now(zone: str) -> None:
    ahead = format_datetime(NOW + timedelta(seconds=90)).replace("+0000", zone)
    assert parse_retry_after(ahead, NOW) == 90.0


def test_enormous_seconds_are_cut_by_the_caller() -> None:
    huge = parse_retry_after("9" * 100, NOW)
    assert huge is not None
    assert retry_wait(RetryPolicy(), 1, 0.0, huge, 3600) == 3600


@given(st.text(max_size=120))
def test_no_header_makes_it_raise_or_go_below_zero(value: str) -> None:
    parsed = parse_retry_after(value, NOW)
    assert parsed is None or parsed >= 0.0


@given(policies, counts, draws, st.none() | st.floats(), st.floats(0, 1e6))
def test_the_next_wait_is_the_backoff_or_what_was_asked_up_to_its_cap(
    policy: RetryPolicy, failed: int, draw: float, asked: float | None, cap: float
) -> None:
    wait = retry_wait(policy, failed, draw, asked, cap)
    own = backoff(policy, failed, draw)
    assert own <= wait <= max(own, cap)
    if asked is not None and 0 <= asked <= cap:
        assert wait >= asked


def test_zero_seconds_asked_still_wait_the_backoff() -> None:
    assert retry_wait(no_jitter(base=2), 1, 0.0, 0.0, 3600) == 2
