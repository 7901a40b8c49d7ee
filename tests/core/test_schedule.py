"""When schedules fire, cron expressions aside: instants, fixed rates, months, and what is stored."""

import contextlib
import json
import pickle
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.errors import InvalidOption
from taskengine.core.schedule import Cron, Every, Months, Once, Schedule, load_schedule

START = datetime(2026, 1, 1, tzinfo=UTC)
END_OF_TIME = datetime.max.replace(tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def fires(schedule: Schedule, after: str, n: int = 1) -> list[str]:
    """The next `n` fire times in minutes of their own zone, as text; a text cannot hide a wrong offset."""
    return [fire.isoformat(timespec="minutes") for fire in schedule.upcoming(n, after=at(after))]


# --- instants ---------------------------------------------------------------------------------------------------

KINDS: list[Schedule] = [
    Cron("0 3 * * *", tz="Europe/Berlin"),
    Every(60, start=START),
    Every(60),
    Once(START + timedelta(days=1)),
    Months(tz="Asia/Kolkata"),
    Months(3, start=START),
]


@pytest.mark.parametrize("schedule", KINDS, ids=repr)
@pytest.mark.parametrize("host", ["Asia/Kolkata", "America/New_York"])
def test_naive_instants_are_refused_and_the_hosts_zone_changes_nothing(
    schedule: Schedule, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = schedule.upcoming(3, after=START)
    monkeypatch.setenv("TZ", host)
    time.tzset()
    try:
        assert schedule.upcoming(3, after=START) == expected
        assert schedule.upcoming(3, after=START.astimezone(timezone(timedelta(hours=9)))) == expected
        assert all(fire.utcoffset() is not None for fire in expected)
        refused: list[Any] = [datetime(2026, 1, 1), "2026-01-01", None, 0]
        for naive in refused:
            for ask in (schedule.next_after, schedule.anchored, lambda it: schedule.upcoming(1, after=it)):
                with pytest.raises(InvalidOption, match="is not an aware datetime; give it a zone"):
                    ask(naive)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("make", [Once, lambda naive: Every(60, start=naive), lambda naive: Months(start=naive)])
def test_naive_instants_are_refused_as_options(make: Any) -> None:
    with pytest.raises(InvalidOption, match="is not an aware datetime"):
        make(datetime(2026, 1, 1))


@pytest.mark.parametrize("schedule", [*KINDS, Cron("* * * * *", tz="Asia/Tokyo"), Months(1200)], ids=repr)
def test_a_rule_that_runs_past_the_calendar_has_no_further_fire(schedule: Schedule) -> None:
    assert schedule.next_after(END_OF_TIME) is None
    assert schedule.next_after(END_OF_TIME.replace(tzinfo=timezone(timedelta(hours=-12)))) is None
    assert schedule.anchored(END_OF_TIME).upcoming(5, after=END_OF_TIME) == []


@pytest.mark.parametrize("schedule", KINDS, ids=repr)
def test_what_lies_before_the_year_2_counts_as_its_first_instant(schedule: Schedule) -> None:
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
    assert schedule.next_after(first) == schedule.next_after(datetime(2, 1, 1, tzinfo=UTC)) is not None


@pytest.mark.parametrize("n", [-1, 10_001, 1.0, True, "3", None, 10**5000], ids=lambda n: repr(type(n)))
def test_upcoming_is_bounded(n: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^n: .* is not a whole number from 0 to 10000"):
        Cron("* * * * *").upcoming(n, after=START)


def test_upcoming_gives_what_there_is() -> None:
    assert Once(START).upcoming(5, after=START - timedelta(days=1)) == [START]
    assert Once(START).upcoming(5, after=START) == []
    assert Every(60).upcoming(0, after=START) == []


# --- fixed rates ------------------------------------------------------------------------------------------------


def test_an_interval_keeps_to_start_plus_n_intervals_whenever_it_is_asked() -> None:
    every = Every(1, start=START)
    asked = START - timedelta(seconds=1)
    for n in range(120):
        found = every.next_after(asked)
        assert found == START + n * timedelta(seconds=1)
        # noticed up to 0.1 s late, by a body of 0.3 s, or by a person in between: nothing moves
        asked = found + timedelta(seconds=0.1 * (n % 2) + 0.3)


def test_an_interval_fires_first_after_one_interval_unless_a_start_is_given() -> None:
    assert Every(20).anchored(START) == Every(20, start=START + timedelta(seconds=20))
    assert Every(20).anchored(START).upcoming(2, after=START) == Every(20).upcoming(2, after=START)
    assert Every(20).next_after(START) == START + timedelta(seconds=20)
    given_start = Every(20, start=START)
    assert given_start.anchored(START + timedelta(days=9)) is given_start
    assert given_start.next_after(START - timedelta(days=9)) == START


@given(
    st.integers(1_000, 10**15),
    st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
)
def test_an_interval_never_drifts(microseconds: int, start: datetime, asked: datetime) -> None:
    every = Every(timedelta(microseconds=microseconds), start=start)
    found = every.next_after(asked)
    assert found is not None
    assert (found - start) % every.interval == timedelta(0)
    assert found > asked
    assert found == start or found - every.interval <= asked


def test_a_jump_of_a_century_costs_an_interval_nothing() -> None:
    every = Every(0.001, start=START)
    century = START + timedelta(days=36525)
    began = time.perf_counter()
    assert every.next_after(century) == century + timedelta(milliseconds=1)
    assert time.perf_counter() - began < 1


def test_an_interval_is_real_time_where_clocks_change() -> None:
    daily = Every(timedelta(days=1), start=datetime(2026, 3, 28, 12, tzinfo=BERLIN))
    assert fires(daily, "2026-03-28T12:00+01:00") == ["2026-03-29T11:00+00:00"]


@pytest.mark.parametrize(
    "interval",
    [0, -1, 0.0009, 36525 * 86400 + 1, float("nan"), float("inf"), 10**5000, True, "5", None, timedelta(0)],
    ids=lambda value: repr(type(value)),
)
def test_an_interval_is_bounded(interval: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^interval: .* is neither a number of seconds from 0.001 to 3155760000"):
        Every(interval)


# --- months -----------------------------------------------------------------------------------------------------


def test_a_month_that_lacks_the_day_fires_on_its_last() -> None:
    monthly = Months(day=31, at="03:00", tz="Europe/Berlin")
    days = ["2026-01-31T03:00+01:00", "2026-02-28T03:00+01:00", "2026-03-31T03:00+02:00", "2026-04-30T03:00+02:00"]
    assert fires(monthly, "2026-01-01T00:00+00:00", 4) == days
    assert fires(Months(day=-1, at="03:00", tz="Europe/Berlin"), "2026-01-01T00:00+00:00", 4) == days
    assert fires(Months(day=30), "2024-02-01T00:00+00:00") == ["2024-02-29T00:00+00:00"]


def test_months_count_from_the_month_of_their_start() -> None:
    created = at("2026-03-15T10:00+00:00")
    quarterly = Months(3, day=1).anchored(created)
    assert quarterly == Months(3, day=1, start=created)
    assert quarterly.anchored(START) is quarterly
    expected = ["2026-06-01T00:00+00:00", "2026-09-01T00:00+00:00", "2026-12-01T00:00+00:00"]
    assert fires(quarterly, "2026-03-15T10:00+00:00", 3) == expected
    assert fires(quarterly, "2020-01-01T00:00+00:00", 3) == expected
    assert fires(quarterly, "2026-10-15T10:00+00:00") == expected[2:]
    assert fires(Months(3, day=20).anchored(created), "2026-03-15T10:00+00:00", 2) == [
        "2026-03-20T00:00+00:00",
        "2026-06-20T00:00+00:00",
    ]
    assert fires(Months(start=at("2026-05-01T00:00+00:00")), "2026-01-01T00:00+00:00") == ["2026-05-01T00:00+00:00"]


def test_months_have_the_month_of_their_own_zone() -> None:
    # 31 January in UTC, and 1 February in Kiritimati already.
    assert fires(Months(tz="Pacific/Kiritimati"), "2026-01-31T11:00+00:00") == ["2026-03-01T00:00+14:00"]


def test_months_meet_changes_of_clocks_as_fixed_times_do() -> None:
    spring = Months(day=29, at="02:30:15", tz="Europe/Berlin")
    assert fires(spring, "2026-03-15T00:00+00:00") == ["2026-03-29T03:00+02:00"]
    autumn = Months(day=25, at="02:30", tz="Europe/Berlin")
    assert fires(autumn, "2026-10-15T00:00+00:00", 2) == ["2026-10-25T02:30+02:00", "2026-11-25T02:30+01:00"]
    assert fires(autumn, "2026-10-25T02:10+01:00") == ["2026-11-25T02:30+01:00"]


def test_a_jump_of_a_century_costs_months_nothing() -> None:
    assert fires(Months(5, start=START), "2126-01-15T00:00+00:00") == ["2126-06-01T00:00+00:00"]


@pytest.mark.parametrize(
    "options",
    [
        {"n": 0},
        {"n": 1201},
        {"n": True},
        {"n": 1.5},
        {"day": 0},
        {"day": 32},
        {"day": -2},
        {"day": -1.0},
        {"day": "L"},
        {"at": "24:00"},
        {"at": "3:00"},
        {"at": "03:00:60"},
        {"at": "03"},
        {"at": ""},
        {"at": "03:00:00:00"},
        {"at": "\u0660\u0663:00"},
        {"at": "03:00\n"},
        {"at": None},
    ],
    ids=repr,
)
def test_months_are_bounded(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refusal:
        Months(**options)
    assert refusal.value.option in options


# --- stored -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [*KINDS, Cron("@daily"), Every(timedelta(microseconds=1001)), Months(2, day=-1, at="01:02:03")],
    ids=repr,
)
def test_a_schedule_comes_back_from_its_dump(schedule: Schedule) -> None:
    text = json.dumps(schedule.dump())
    assert load_schedule(text) == load_schedule(schedule.dump()) == schedule
    assert load_schedule(text).upcoming(3, after=START) == schedule.upcoming(3, after=START)
    assert pickle.loads(pickle.dumps(schedule)) == schedule  # noqa: S301  # our own bytes


def test_schedules_are_values() -> None:
    assert Cron(" 0  3 * * * ") == Cron("0 3 * * *", tz="UTC")
    assert Cron("0 3 * * *") != Cron("0 3 * * *", tz="Europe/Berlin")
    assert len({*KINDS, *KINDS}) == len(KINDS)
    assert repr(Cron("0 3 * * *")) == "Cron(expr='0 3 * * *', tz='UTC')"


class _Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "stored",
    [
        "", "nonsense", "null", "[]", "[1]", "{}", "3", '"cron"', "NaN", "[" * 9_999, " " * 10_001, "9" * 9_000,
        '{"kind": "yearly"}', '{"kind": []}', '{"kind": null}', '{"kind": "cron"}',
        '{"kind": "cron", "expr": "0 0 * * *", "tz": "UTC+3"}',
        '{"kind": "cron", "expr": "0 0 * * *", "tz": ""}',
        '{"kind": "cron", "expr": "0 0 * * *", "tz": "Europa/Madrid"}',
        '{"kind": "cron", "expr": "0 0 30 2 *", "tz": "UTC"}',
        '{"kind": "cron", "expr": null, "tz": null}',
        '{"kind": "cron", "expr": "0 0 * * *", "tz": "UTC", "of": "a newer version"}',
        '{"kind": "every", "microseconds": 1e400, "start": null}',
        '{"kind": "every", "microseconds": 0, "start": null}',
        '{"kind": "every", "microseconds": "60", "start": null}',
        '{"kind": "every", "microseconds": 60000000, "start": "2026-01-01"}',
        '{"kind": "every", "microseconds": 60000000, "start": 7}',
        '{"kind": "every", "microseconds": 60000000}',
        '{"kind": "once", "at": null}', '{"kind": "once", "at": "soon"}', '{"kind": "once"}',
        '{"kind": "months", "n": 0, "day": 1, "at": "00:00", "tz": "UTC", "start": null}',
        None, 7, b"{}", [], {1: 2}, {"kind": "once", 1: 2}, {"kind": "once", "at": _Hostile()},
    ],
    ids=lambda stored: repr(stored)[:60] if isinstance(stored, str) else type(stored).__name__,
)  # fmt: skip
def test_a_stored_schedule_that_cannot_be_read_is_one_clear_value_error(stored: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^schedule: what is stored cannot be read: ") as refusal:
        load_schedule(stored)
    assert isinstance(refusal.value, ValueError)
    assert len(str(refusal.value)) < 500


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(KINDS), st.data())
def test_damage_anywhere_in_a_stored_schedule_gives_a_schedule_or_that_error(
    kind: Schedule, data: st.DataObject
) -> None:
    stored: dict[str, Any] = dict(kind.dump())
    stored[data.draw(st.sampled_from([*stored]))] = data.draw(json_values)
    with contextlib.suppress(InvalidOption):
        load_schedule(stored).upcoming(2, after=START)
