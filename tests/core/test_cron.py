"""When a cron expression fires: the calendar, changes of the clocks, and what is refused."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.cron import ALIASES
from taskengine.core.errors import InvalidOption
from taskengine.core.schedule import Cron, Every, Months, Schedule

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def fires(schedule: Schedule, after: str, n: int = 1) -> list[str]:
    """The next `n` fire times in minutes of their own zone, as text; a text cannot hide a wrong offset."""
    return [fire.isoformat(timespec="minutes") for fire in schedule.upcoming(n, after=at(after))]


# --- the calendar -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "zone", "after", "expected"),
    [
        ("0 0 * * 1-5", "America/Chicago", "2021-03-12T00:00:01-06:00", "2021-03-15T00:00-05:00"),
        ("0 0 * * *", "America/Los_Angeles", "2022-03-13T00:00-08:00", "2022-03-14T00:00-07:00"),
        ("0 12 * * 0", "Europe/Berlin", "2022-03-24T12:00+01:00", "2022-03-27T12:00+02:00"),
    ],
)
def test_a_day_of_23_hours_hides_no_day(expr: str, zone: str, after: str, expected: str) -> None:
    assert fires(Cron(expr, tz=zone), after) == [expected]


def test_no_fire_is_shifted_or_doubled_after_the_autumn_change() -> None:
    weekly = Cron("0 8 * * 1", tz="Europe/Amsterdam")
    assert fires(weekly, "2017-10-23T08:00+02:00", 2) == ["2017-10-30T08:00+01:00", "2017-11-06T08:00+01:00"]
    daily = Cron("0 20 * * *", tz="Europe/Paris")
    days = ["2022-10-30T20:00+01:00", "2022-10-31T20:00+01:00", "2022-11-01T20:00+01:00"]
    assert fires(daily, "2022-10-29T20:00+02:00", 3) == days


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("2016-02-29T09:00+00:00", "2020-02-29T09:00+00:00"),
        ("2096-03-01T00:00+00:00", "2104-02-29T09:00+00:00"),  # 2100 is no leap year
    ],
)
def test_29_february_comes_in_leap_years(after: str, expected: str) -> None:
    assert fires(Cron("0 9 29 2 *"), after) == [expected]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Cron("0 0 * * *"), "2024-03-01T00:00+00:00"),
        (Cron("0 0 29 * *"), "2024-03-29T00:00+00:00"),
        (Cron("0 0 1 1 *"), "2025-01-01T00:00+00:00"),
        (Every(timedelta(days=365), start=at("2023-02-28T12:00+00:00")), "2025-02-27T12:00+00:00"),
        (Months(12, day=29, start=at("2024-02-29T00:00+00:00")), "2025-02-28T00:00+00:00"),
    ],
)
def test_every_kind_can_be_asked_on_a_29_february(schedule: Schedule, expected: str) -> None:
    assert fires(schedule, "2024-02-29T12:00+00:00") == [expected]


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("0 0 L * *", "2026-01-31"),
        ("0 0 LW * *", "2026-01-30"),  # the 31st is a Saturday
        ("0 0 * * 5L", "2026-01-30"),
        ("0 0 * * 1#2", "2026-01-12"),
        ("0 0 * * mon#2,5L", "2026-01-12"),
        ("0 0 7-7/1 * *", "2026-01-07"),
        ("0 0 20,7-07/3 2 *", "2026-02-07"),
        ("0 0 * * WED-3/2", "2026-01-07"),
        ("0 0 * * 7", "2026-01-04"),
        ("0 0 */2 * 1", "2026-01-05"),  # a star in a day field: both must match
        ("0 0 13 * 5", "2026-01-02"),  # none: either
        ("0 0 28/3 * *", "2026-01-28"),
    ],
)
def test_days_are_read_as_debian_and_cronsim_read_them(expr: str, expected: str) -> None:
    assert fires(Cron(expr), "2026-01-01T12:00+00:00") == [f"{expected}T00:00+00:00"]


def test_a_stepped_range_of_one_value_is_that_value() -> None:
    assert fires(Cron("0 0 7-7/1 * *"), "2026-01-01T00:00+00:00", 2) == [
        "2026-01-07T00:00+00:00",
        "2026-02-07T00:00+00:00",
    ]


def test_six_fields_begin_with_the_seconds() -> None:
    found = Cron("*/20 30 4 * * *").upcoming(4, after=START)
    assert [fire.time().isoformat() for fire in found] == ["04:30:00", "04:30:20", "04:30:40", "04:30:00"]
    assert found[3].day == 2


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_fires_as_what_it_stands_for(alias: str) -> None:
    assert fires(Cron(alias), "2026-02-03T04:05+00:00", 3) == fires(Cron(ALIASES[alias]), "2026-02-03T04:05+00:00", 3)
    assert fires(Cron(alias.upper()), "2026-02-03T04:05+00:00") == fires(Cron(alias), "2026-02-03T04:05+00:00")


def test_a_fire_time_lies_strictly_after_the_instant() -> None:
    daily = Cron("0 3 * * *")
    assert daily.next_after(at("2026-01-01T02:59:59.999999+00:00")) == at("2026-01-01T03:00+00:00")
    assert daily.next_after(at("2026-01-01T03:00+00:00")) == at("2026-01-02T03:00+00:00")
    assert daily.next_after(at("2026-01-01T03:00:00.000001+00:00")) == at("2026-01-02T03:00+00:00")


# --- changes of the clocks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "zone", "after", "expected"),
    [
        (
            "0 2 * * *",
            "America/New_York",
            "2013-03-10T01:59-05:00",
            ["2013-03-10T03:00-04:00", "2013-03-11T02:00-04:00"],
        ),
        (
            "30 2 * * *",
            "America/New_York",
            "2025-03-09T00:00-05:00",
            ["2025-03-09T03:00-04:00", "2025-03-10T02:30-04:00"],
        ),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        # Several skipped times are one run, also with one that is at the gap's end anyway.
        (
            "0,30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-29T00:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"],
        ),
        (
            "0,15,45 30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T00:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        ),
        (
            "10 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-04T00:00+10:30",
            ["2026-10-04T02:30+11:00", "2026-10-05T02:10+11:00"],
        ),
        # A day that a zone left out.
        ("30 2 * * *", "Pacific/Apia", "2011-12-29T12:00-10:00", ["2011-12-31T00:00+14:00", "2011-12-31T02:30+14:00"]),
    ],
)
def test_a_fixed_time_that_the_clock_skips_runs_once_right_after_the_gap(
    expr: str, zone: str, after: str, expected: list[str]
) -> None:
    assert fires(Cron(expr, tz=zone), after, 2) == expected


@pytest.mark.parametrize(
    ("zone", "expr", "first", "second_pass", "following"),
    [
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T02:30+02:00", "2026-10-25T02:10+01:00", "2026-10-26T02:30+01:00"),
        (
            "America/New_York",
            "30 1 * * *",
            "2026-11-01T01:30-04:00",
            "2026-11-01T01:10-05:00",
            "2026-11-02T01:30-05:00",
        ),
        (
            "Australia/Lord_Howe",
            "40 1 * * *",
            "2026-04-05T01:40+11:00",
            "2026-04-05T01:35+10:30",
            "2026-04-06T01:40+10:30",
        ),
        # The hour from 00:00 comes twice there.
        ("America/Havana", "30 0 * * *", "2026-11-01T00:30-04:00", "2026-11-01T00:10-05:00", "2026-11-02T00:30-05:00"),
    ],
)
def test_a_fixed_time_in_a_repeated_hour_runs_in_its_first_pass_only(
    zone: str, expr: str, first: str, second_pass: str, following: str
) -> None:
    cron = Cron(expr, tz=zone)
    assert fires(cron, (at(first) - timedelta(minutes=5)).isoformat(), 2) == [first, following]
    assert fires(cron, second_pass) == [following]


def test_a_fixed_time_at_the_end_of_a_repeated_hour_is_not_passed_over_from_within_it() -> None:
    assert fires(Cron("0 3 * * *", tz="Europe/Berlin"), "2026-10-25T02:10+01:00") == ["2026-10-25T03:00+01:00"]


def test_wildcards_run_in_both_passes_and_skip_what_the_clock_skips() -> None:
    half_hourly = Cron("*/30 * * * *", tz="Europe/Berlin")
    autumn = ["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00", "03:00+01:00"]
    assert fires(half_hourly, "2026-10-25T01:30+02:00", 5) == [f"2026-10-25T{clock}" for clock in autumn]
    assert fires(half_hourly, "2026-03-29T01:00+01:00", 2) == ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00"]
    hourly = Cron("15 * * * *", tz="America/New_York")
    autumn = ["01:15-04:00", "01:15-05:00", "02:15-05:00"]
    assert fires(hourly, "2026-11-01T00:15-04:00", 3) == [f"2026-11-01T{clock}" for clock in autumn]
    of_one_hour = Cron("*/30 2 * * *", tz="Europe/Berlin")
    assert fires(of_one_hour, "2026-03-28T12:00+01:00") == ["2026-03-30T02:00+02:00"]


def test_a_wildcard_does_not_run_on_a_day_that_its_zone_left_out() -> None:
    assert fires(Cron("0 * 30 12 *", tz="Pacific/Apia"), "2011-12-29T12:00-10:00") == ["2012-12-30T00:00+14:00"]


def test_fires_are_aware_in_the_schedules_zone() -> None:
    fire = Cron("30 2 * * *", tz="Europe/Berlin").next_after(START)
    assert fire is not None
    assert fire.tzinfo is ZoneInfo("Europe/Berlin")
    second = Cron("*/30 * * * *", tz="Europe/Berlin").next_after(at("2026-10-25T02:00+01:00"))
    assert second is not None
    assert second.fold == 1


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "fix"),
    [
        ("0 0 30 2 *", "day-of-month; it takes 1-31 as far as the months given have such a day"),
        ("0 0 31 2,4,6,9,11 *", "bad day-of-month"),
        ("* * */20 * 1L", "never comes round"),
        ("0 0 */31 2 1#5", "never comes round"),
        ("61 * * * *", "bad minute; it takes 0-59"),
        ("60 * * * * *", "bad second; it takes 0-59"),
        ("* 24 * * *", "bad hour; it takes 0-23"),
        ("* * * 13 *", "bad month; it takes 1-12 or JAN-DEC"),
        ("* * * * 8", "bad day-of-week; it takes 0-7"),
        ("* * * * FRI-MON", "FRI,SAT,SUN,MON for FRI-MON"),
        ("0 0 L/2 * *", "bad day-of-month"),
        ("0 0 7-7/0 * *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"),
        ("1--100000000 * * * *", "bad minute"),
        ("9e9 * * * *", "bad minute"),
        ("9**9**9 * * * *", "bad minute"),
        ("0-59/" + "9" * 150 + "x * * * *", "bad minute"),
        ("1-x/2 * * * *", "bad minute"),
        (", * * * *", "bad minute"),
        ("? * * * *", "bad minute"),
        ("", "neither 5 fields"),
        ("* * * *", "neither 5 fields"),
        ("* * * * * * *", "neither 5 fields"),
        ("@reboot", "one of @hourly, @daily"),
        ("9" * 5000 + " * * * *", "at most 200 characters"),
        ("\u0661 * * * *", "ASCII"),
        (None, "ASCII text"),
        (5, "ASCII text"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_expression_that_cannot_be_is_refused_with_the_fix(expr: Any, fix: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        Cron(expr)
    assert refusal.value.option == "cron"
    assert fix in str(refusal.value)


def test_a_huge_step_is_only_a_step() -> None:
    assert fires(Cron("0-59/" + "9" * 150 + " * * * *"), "2026-01-01T00:00+00:00") == ["2026-01-01T01:00+00:00"]


@given(
    st.text("0123456789*/-,#LW @ASUNFRIJ\t", max_size=40) | st.lists(st.text("0127*/-,#LW", max_size=5)).map(" ".join)
)
def test_any_text_is_an_expression_or_refused(expr: str) -> None:
    with contextlib.suppress(InvalidOption):
        Cron(expr).upcoming(2, after=START)


@pytest.mark.parametrize(
    "zone",
    ["", "UTC+3", "Europa/Madrid", "America", "../etc/passwd", "/etc/localtime", "a\0b", "x" * 5000, None, 3, b"UTC"],
)
@pytest.mark.parametrize("kind", [lambda zone: Cron("0 0 * * *", tz=zone), lambda zone: Months(tz=zone)])
def test_a_zone_that_is_unknown_is_refused_at_creation(kind: Any, zone: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^tz: .*give an IANA name such as 'UTC', 'Europe/Madrid' or 'Etc/GMT-3'"):
        kind(zone)
