"""`Cron` compared with a naive scan: minute by minute through zoneinfo, with a parser and change rules of its own.

The scan works as Debian's daemon does. It keeps a virtual time, the latest wall minute it has seen, and looks at the
wall clock once a minute: one minute on is the ordinary case; more is a gap, whose fixed times run now; at or behind the
virtual time is a repeated hour, in which only wildcards run. Nothing is shared with the code under test.
"""

import calendar
import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from taskengine.core.errors import InvalidOption
from taskengine.core.schedule import Cron

# What is odd there: half-hour changes; a day left out, and a change of hemisphere; midnight changes in 2000 to 2018;
# half-hour changes for good; two hours at once; a gap at 00:00 and a repeated hour that ends in the day before.
ODD_ZONES = ["Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo", "America/Caracas"]
ODD_ZONES += ["Antarctica/Troll", "America/Havana"]
ZONES = ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York", *ODD_ZONES]

# Over all zones 500 examples, and 20,000 in the long form.
EXAMPLES = settings().max_examples if settings().max_examples >= 2000 else 50

NOTHING = timedelta(0)
MINUTE = timedelta(minutes=1)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class Naive:
    """An expression as the scan reads it."""

    def __init__(self, expr: str) -> None:
        fields = expr.split()
        self.seconds = _values(fields.pop(0), 0, 59, []) if len(fields) == 6 else {0}
        minute, hour, self.day, month, self.weekday = fields
        self.minutes = _values(minute, 0, 59, [])
        self.hours = _values(hour, 0, 23, [])
        self.months = _values(month, 1, 12, [*MONTHS])
        self.fixed = not (minute.startswith("*") or hour.startswith("*"))

    @functools.cache  # noqa: B019  # an instance lives for one example
    def matches_date(self, on: date) -> bool:
        if on.month not in self.months:
            return False
        last = calendar.monthrange(on.year, on.month)[1]
        working = [d for d in range(1, last + 1) if date(on.year, on.month, d).weekday() < 5]
        by_day = any(
            on.day == last
            if term == "L"
            else on.day == working[-1]
            if term == "LW"
            else on.day in _term(term, 1, 31, [])
            for term in self.day.split(",")
        )
        by_weekday = any(self._is_weekday(term, on, last) for term in self.weekday.split(","))
        both = self.day.startswith("*") or self.weekday.startswith("*")
        return (by_day and by_weekday) if both else (by_day or by_weekday)

    def _is_weekday(self, term: str, on: date, last: int) -> bool:
        head, mark, nth = term.partition("#")
        if mark:
            return on.isoweekday() % 7 in _weekdays(head) and (on.day - 1) // 7 + 1 == int(nth)
        if term.endswith("L"):
            return on.isoweekday() % 7 in _weekdays(term[:-1]) and on.day > last - 7
        return on.isoweekday() % 7 in _weekdays(term)

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.matches_date(wall.date())


def _values(text: str, low: int, high: int, names: list[str]) -> set[int]:
    return set(itertools.chain.from_iterable(_term(term, low, high, names) for term in text.split(",")))


def _weekdays(term: str) -> set[int]:
    return {n % 7 for n in _term(term, 0, 7, DAYS)}


def _term(term: str, low: int, high: int, names: list[str]) -> range:
    def number(word: str) -> int:
        return names.index(word) + low if word in names else int(word)

    span, slash, step = term.partition("/")
    first, dash, last = span.partition("-")
    if first == "*":
        return range(low, high + 1, int(step or 1))
    end = number(last) if dash else high if slash else number(first)
    return range(number(first), end + 1, int(step or 1))


def scan(naive: Naive, zone: ZoneInfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the instants after `after` at which the expression fires."""
    now = after.replace(second=0, microsecond=0) - timedelta(hours=27)  # long enough to know what was passed already
    virtual = now.astimezone(zone)
    while (now := now + MINUTE) <= until:
        wall = now.astimezone(zone)
        step = wall - virtual  # in wall time, as Python counts within one zone
        fires = set()
        if step > MINUTE and naive.fixed:
            skipped = (virtual.replace(tzinfo=None) + n * MINUTE for n in range(1, step // MINUTE))
            fires = {now} if any(map(naive.matches, skipped)) else set()
        if naive.matches(wall) and (step > NOTHING or not naive.fixed):
            fires |= {now + timedelta(seconds=second) for second in naive.seconds}
        if fires:
            yield from sorted(fire for fire in fires if fire > after)
        if step > NOTHING:
            virtual = wall


# --- what is tried ----------------------------------------------------------------------------------------------


@functools.cache
def changes(name: str) -> list[datetime]:
    """Find the instants, to some hours, at which the zone changes its clocks."""
    zone, step = ZoneInfo(name), timedelta(hours=6)
    instants = [datetime(1990, 1, 1, tzinfo=UTC) + n * step for n in range(51 * 1461)]
    offsets = [instant.astimezone(zone).utcoffset() for instant in instants]
    return [instants[n] for n in range(1, len(instants)) if offsets[n] != offsets[n - 1]]


def ranged(low: int, high: int, often: list[int], names: list[str] | None = None) -> st.SearchStrategy[str]:
    number = st.sampled_from(often) | st.integers(low, high)

    def in_words(value: int) -> st.SearchStrategy[str]:
        known = [names[value - low]] if names and value - low < len(names) else []
        return st.sampled_from([str(value), *known])

    value = number.flatmap(in_words)
    pair = st.tuples(number, number).map(sorted)
    span = pair.map(lambda ends: f"{ends[0]}-{ends[1]}")
    step = st.integers(1, high)
    stepped = st.tuples(span | number.map(str), step).map(lambda both: f"{both[0]}/{both[1]}")
    return value | span | stepped


def fields(term: st.SearchStrategy[str], *stars: str) -> st.SearchStrategy[str]:
    return st.sampled_from(stars) | st.lists(term, min_size=1, max_size=3).map(",".join)


def mostly_star(term: st.SearchStrategy[str], *stars: str) -> st.SearchStrategy[str]:
    return st.integers(0, 3).flatmap(lambda n: fields(term, "*", *stars) if n == 0 else st.just("*"))


weekday = st.sampled_from([*"01234567", *DAYS])
last_or_nth = st.sampled_from("01234567").map("{}L".format) | st.builds("{}#{}".format, weekday, st.integers(1, 5))
seconds = st.lists(ranged(0, 59, [0, 30]), min_size=1, max_size=3).map(",".join)
minutes = fields(ranged(0, 59, [0, 15, 30, 45]), "*", "*/7", "*/15")
hours = fields(ranged(0, 23, [0, 1, 2, 3]), "*", "*/2", "*/5")
days = mostly_star(ranged(1, 31, [1, 28, 29, 30, 31]) | st.sampled_from(["L", "LW"]), "*/2", "*/10")
months = mostly_star(ranged(1, 12, [2, 3, 10], MONTHS), "*/2")
weekdays = mostly_star(ranged(0, 7, [0, 7], [*DAYS, "SUN"]) | last_or_nth, "*/2")
five = st.tuples(minutes, hours, days, months, weekdays).map(" ".join)
six = st.tuples(seconds, five).map(" ".join)
expressions = st.integers(0, 4).flatmap(lambda n: six if n == 4 else five)

anywhen = st.datetimes(datetime(1990, 1, 1), datetime(2040, 12, 31), timezones=st.just(UTC))
horizons = st.sampled_from([2] * 16 + [10] * 5 + [60] * 2 + [400])
"""Days; a scan of one takes about a millisecond."""


@st.composite
def starts(draw: st.DrawFn, zone: str) -> datetime:
    """An instant; most of them near a change of the clocks, if the zone has any."""
    if not changes(zone) or draw(st.integers(0, 3)) == 0:
        return draw(anywhen)
    near = draw(st.sampled_from(changes(zone))) + draw(st.integers(-3000, 1500)) * MINUTE
    return near + draw(
        st.sampled_from([timedelta(0), timedelta(seconds=1), timedelta(seconds=59, microseconds=999_999)])
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("zone", ZONES)
@settings(max_examples=EXAMPLES)
@given(data=st.data(), expr=expressions, days=horizons)
def test_cron_agrees_with_a_scan_minute_by_minute(zone: str, data: st.DataObject, expr: str, days: int) -> None:
    after = data.draw(starts(zone), label="after")
    event(compare(expr, zone, after, days))


def compare(expr: str, zone: str, after: datetime, days: int) -> str:
    """Compare the next four fires at most; tell which kind of case it was."""
    naive = Naive(expr)
    try:
        cron = Cron(expr, tz=zone)
    except InvalidOption:
        first = date(2000, 1, 1).toordinal()
        assert not any(naive.matches_date(date.fromordinal(first + n)) for n in range(28 * 366)), "it can match"
        return "refused"
    until = after + timedelta(days=days)
    expected = list(itertools.islice(scan(naive, ZoneInfo(zone), after, until), 4))
    found = cron.upcoming(max(1, len(expected)), after=after)
    assert all(fire.tzinfo == ZoneInfo(zone) for fire in found)
    instants = [fire.astimezone(UTC) for fire in found]
    if not expected:
        assert all(instant > until for instant in instants)
        return "nothing within reach"
    assert instants == expected
    return "compared"


KNOWN = [
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:10+00:00"),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10+00:00"),  # within the second pass
    ("0 3 * * *", "Europe/Berlin", "2026-10-25T01:10+00:00"),
    ("0,15,30,45 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00"),
    ("*/15 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00"),
    ("*/15 2 * * *", "Europe/Berlin", "2026-10-24T12:00+00:00"),
    ("15 * * * *", "America/New_York", "2026-11-01T04:00+00:00"),
    ("*/15 2 * * *", "Australia/Lord_Howe", "2026-04-04T13:00+00:00"),
    ("*/15 1 * * *", "Australia/Lord_Howe", "2026-04-04T13:00+00:00"),
    ("10 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00+00:00"),
    ("*/20 * 30 12 *", "Pacific/Apia", "2011-12-28T00:00+00:00"),
    ("30 2 30 12 *", "Pacific/Apia", "2011-12-28T00:00+00:00"),
    ("*/30 0 * * *", "America/Sao_Paulo", "2017-10-14T12:00+00:00"),
    ("30 0 * * *", "America/Havana", "2025-11-02T04:45+00:00"),
    ("*/30 0 * * *", "America/Havana", "2025-11-02T03:45+00:00"),
    ("10 1-2 * * *", "Antarctica/Troll", "2026-03-28T12:00+00:00"),
    ("7-7/1 3 * * *", "UTC", "2026-03-28T12:00+00:00"),
    ("30,10 0 2 * * *", "Europe/Berlin", "2026-03-28T12:00+00:00"),
]


@pytest.mark.parametrize(("expr", "zone", "after"), KNOWN)
def test_cron_agrees_with_the_scan_where_changes_of_the_clocks_are_hard(expr: str, zone: str, after: str) -> None:
    compare(expr, zone, datetime.fromisoformat(after), days=4)
