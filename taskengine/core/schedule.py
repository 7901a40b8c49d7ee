"""When a schedule fires: the four kinds of rule, as values that are stored.

A schedule says which *nominal* instants it asks for, and nothing else: when a task was really made, how long it ran, or
what a person ran by hand in between moves none of them. `firing.py` says which of them are served.

All arithmetic is on UTC instants. What lies before the year 2 counts as its first instant; a rule that runs past the
year 9999 has no further fire time.
"""

import calendar
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from attrs import evolve, field, frozen

from taskengine.core.cron import Pattern, first_pass, next_match, read_expression, read_zone, wall_time
from taskengine.core.errors import InvalidOption

SHORTEST_INTERVAL = timedelta(milliseconds=1)
LONGEST_DURATION = timedelta(days=36525)
"""A century."""
MOST_UPCOMING = 10_000

_MICROSECOND = timedelta(microseconds=1)
_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)  # every zone can still name it, and its month
_LATEST = datetime.max.replace(tzinfo=UTC)
_LONGEST_TEXT = 10_000
_TIME_OF_DAY = re.compile(r"(?:[01]\d|2[0-3])(?::[0-5]\d){1,2}", re.ASCII)


def shown(value: object) -> str:
    """Show a value that was refused; never raises, and is never long."""
    try:
        return f"{value!r:.100}"
    except Exception:  # an int of too many digits, or a hostile __repr__
        return f"a value of type {type(value).__name__}"


def to_utc(name: str, value: object) -> datetime:
    """Check that `value` is an aware datetime, and return its instant in UTC."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidOption(name, f"{shown(value)} is not an aware datetime; give it a zone, as in datetime.now(UTC)")
    try:
        return max(value.astimezone(UTC), _EARLIEST)
    except OverflowError:
        return _EARLIEST if value.year == 1 else _LATEST


def whole_number(name: str, value: object, low: int, high: int) -> int:
    """Check that `value` is an int within bounds."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidOption(name, f"{shown(value)} is not a whole number from {low} to {high}")
    return value


def duration(name: str, value: object, low: timedelta, high: timedelta) -> timedelta:
    """Check that `value` is a number of seconds, or a timedelta, within bounds."""
    # The comparison also refuses NaN, infinity and an int beyond every float.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= high.total_seconds():
        value = timedelta(seconds=value)
    if not isinstance(value, timedelta) or not low <= value <= high:
        bounds = f"{low.total_seconds():g} to {high.total_seconds():.0f}"
        raise InvalidOption(name, f"{shown(value)} is neither a number of seconds from {bounds}, nor such a timedelta")
    return value


def _optional_start(value: datetime | None) -> datetime | None:
    return None if value is None else to_utc("start", value)


def _interval(value: float | timedelta) -> timedelta:
    return duration("interval", value, SHORTEST_INTERVAL, LONGEST_DURATION)


def _at(value: datetime) -> datetime:
    return to_utc("at", value)


def _months(value: int) -> int:
    return whole_number("n", value, 1, 1200)


def _day(value: int) -> int:
    if whole_number("day", value, -1, 31) == 0:
        raise InvalidOption("day", "0 is no day; write 1 to 31, or -1 for the last day of the month")
    return value


def _time_of_day(value: object) -> str:
    if not isinstance(value, str) or _TIME_OF_DAY.fullmatch(value) is None:
        raise InvalidOption("at", f"{shown(value)} is not a time of day; write 'HH:MM' or 'HH:MM:SS'")
    return value


def _tidy(expr: Any) -> Any:
    return " ".join(expr.split()) if isinstance(expr, str) else expr


# --- the kinds --------------------------------------------------------------------------------------------------


class Schedule(ABC):
    """A rule that says at which instants something fires: `Cron`, `Every`, `Once` or `Months`."""

    __slots__ = ()

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first fire time strictly after `instant`; None if there is none left.

        `Cron` and `Months` answer in their zone, the others in UTC. A rule that counts from its creation and is not
        anchored answers as if it were created at `instant`.

        Raises:
            InvalidOption: `instant` is not an aware datetime.
        """
        asked = to_utc("instant", instant)
        try:
            return self._next(asked)
        except (OverflowError, ValueError):  # past the year 9999
            return None

    def upcoming(self, n: int, *, after: datetime) -> list[datetime]:
        """Return the first `n` (at most 10,000) fire times after `after`; fewer where there are no more.

        Raises:
            InvalidOption: `n` is out of bounds, or `after` is not an aware datetime.
        """
        most = whole_number("n", n, 0, MOST_UPCOMING)
        schedule = self.anchored(after)
        found: list[datetime] = []
        following = schedule.next_after(after) if most else None
        while following is not None:
            found.append(following)
            following = schedule.next_after(following) if len(found) < most else None
        return found

    def anchored(self, created_at: datetime) -> "Schedule":
        """Return this rule with its start fixed, where it counts from its creation and has none; else itself.

        Whoever stores a schedule anchors it first, once.

        Raises:
            InvalidOption: `created_at` is not an aware datetime.
        """
        to_utc("created_at", created_at)
        return self

    @abstractmethod
    def dump(self) -> dict[str, str | int | None]:
        """Return it as a JSON-compatible dict, which `load_schedule` reads."""

    @abstractmethod
    def _next(self, instant: datetime) -> datetime | None:
        """Answer `next_after` for an instant in UTC; OverflowError or ValueError is the end of the calendar."""


@frozen
class Cron(Schedule):
    """A cron expression in a time zone.

    Five fields (minute, hour, day of month, month, day of week) or six with the seconds first; or `@hourly`, `@daily`
    (`@midnight`), `@weekly`, `@monthly`, `@yearly` (`@annually`). Names such as MON and JAN, lists, upward ranges and
    steps; `5/15` is 5, 20, 35, 50; `L` and `LW` as day of month are its last day and last weekday, `5L` as day of week
    the month's last Friday, `1#2` its second Monday. As in Debian's cron, a day must match both day fields if one of
    them starts with `*`, and either of them otherwise.

    Where a zone changes its clocks, Debian's rules hold, for five fields and for six:

    * *Fixed times*, where neither the minute nor the hour starts with `*`: a time that the clock skips runs at the
      instant after the gap; in a repeated hour it runs once, in the first pass.
    * *Wildcards*, where the minute or the hour starts with `*`, follow the clock: they run in both passes of a repeated
      hour, and what the clock skips does not run (`*/15 2 * * *` has no run on a day without 02:xx).

    Two things differ from Debian's daemon. It runs each of several skipped fixed times (`0,30 2 * * *`) one after the
    other; here they are one run, since they have one instant. And it takes a change of more than three hours for a
    correction of the clock; here the rules hold for any change that a zone's law makes (Apia had no 30 December 2011:
    its `30 2 * * *` ran on the 31st at 00:00 and at 02:30).

    Raises:
        InvalidOption: the expression is not one, is longer than 200 characters or can never match (30 February), or
            the zone is unknown here.
    """

    expr: str = field(converter=_tidy)
    tz: str = field(default="UTC", kw_only=True)
    _pattern: Pattern = field(init=False, repr=False, eq=False)
    _zone: ZoneInfo = field(init=False, repr=False, eq=False)

    @_pattern.default
    def _read_pattern(self) -> Pattern:
        return read_expression(self.expr)

    @_zone.default
    def _read_zone(self) -> ZoneInfo:
        return read_zone(self.tz)

    def dump(self) -> dict[str, str | int | None]:
        return {"kind": "cron", "expr": self.expr, "tz": self.tz}

    def _next(self, instant: datetime) -> datetime | None:
        return next_match(self._pattern, self._zone, instant).astimezone(self._zone)


@frozen
class Every(Schedule):
    """A fixed rate: fire number n, counted from 0, is at `start + n * interval` exactly, so that nothing drifts.

    Without a start the first fire is one interval after the creation, which `anchored` fixes. Real time: 24 hours stay
    24 hours where a zone changes its clocks.

    Args:
        interval: seconds or a timedelta, from a millisecond to a century.
        start: the first fire; may lie in the past.

    Raises:
        InvalidOption: the interval is out of bounds, or `start` is not an aware datetime.
    """

    interval: timedelta = field(converter=_interval)
    start: datetime | None = field(default=None, kw_only=True, converter=_optional_start)

    def anchored(self, created_at: datetime) -> "Every":
        created_at = to_utc("created_at", created_at)
        if self.start is not None:
            return self
        return evolve(self, start=created_at + min(self.interval, _LATEST - created_at))

    def dump(self) -> dict[str, str | int | None]:
        return {"kind": "every", "microseconds": self.interval // _MICROSECOND, "start": _text(self.start)}

    def _next(self, instant: datetime) -> datetime | None:
        if self.start is None:
            return instant + self.interval
        if instant < self.start:
            return self.start
        return self.start + ((instant - self.start) // self.interval + 1) * self.interval


@frozen
class Once(Schedule):
    """One instant.

    Raises:
        InvalidOption: `at` is not an aware datetime.
    """

    at: datetime = field(converter=_at)

    def dump(self) -> dict[str, str | int | None]:
        return {"kind": "once", "at": _text(self.at)}

    def _next(self, instant: datetime) -> datetime | None:
        return self.at if self.at > instant else None


@frozen
class Months(Schedule):
    """Calendar months: every n-th month at a day and a time of day, in a time zone.

    A month that lacks the day (31, or 29 and 30 in February) fires on its last day. A time that the clock skips fires
    at the instant after the gap, one that comes twice in the first pass.

    Args:
        n: 1 to 1,200; counted from the month of `start`, or else of the creation, which `anchored` fixes.
        day: 1 to 31, or -1 for the last day.
        at: time of day, "HH:MM" or "HH:MM:SS".
        tz: IANA name of the zone.
        start: nothing fires before it.

    Raises:
        InvalidOption: one of them is out of bounds, the zone is unknown here, or `start` is not an aware datetime.
    """

    n: int = field(default=1, converter=_months)
    day: int = field(default=1, kw_only=True, converter=_day)
    at: str = field(default="00:00", kw_only=True, converter=_time_of_day)
    tz: str = field(default="UTC", kw_only=True)
    start: datetime | None = field(default=None, kw_only=True, converter=_optional_start)
    _zone: ZoneInfo = field(init=False, repr=False, eq=False)

    @_zone.default
    def _read_zone(self) -> ZoneInfo:
        return read_zone(self.tz)

    def anchored(self, created_at: datetime) -> "Months":
        created_at = to_utc("created_at", created_at)
        return self if self.start is not None else evolve(self, start=created_at)

    def dump(self) -> dict[str, str | int | None]:
        rule: dict[str, str | int | None] = {"n": self.n, "day": self.day, "at": self.at, "tz": self.tz}
        return {"kind": "months", **rule, "start": _text(self.start)}

    def _next(self, instant: datetime) -> datetime | None:
        start = instant if self.start is None else self.start
        after = max(instant, start - _MICROSECOND)
        month = self._month_of(after)
        month += (self._month_of(start) - month) % self.n
        while (found := self._fire_in(month)) <= after:
            month += self.n
        return found.astimezone(self._zone)

    def _month_of(self, instant: datetime) -> int:
        """Number the months; 0 is the January of a year 0."""
        wall = wall_time(self._zone, instant)
        return wall.year * 12 + wall.month - 1

    def _fire_in(self, month: int) -> datetime:
        year, index = divmod(month, 12)
        first = datetime.fromisoformat(f"{year:04}-{index + 1:02}-01T{self.at}")
        last_day = calendar.monthrange(year, index + 1)[1]
        return first_pass(self._zone, first.replace(day=last_day if self.day < 0 else min(self.day, last_day)))


# --- stored -----------------------------------------------------------------------------------------------------


def _text(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat()


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _load_every(*, microseconds: int, start: str | None) -> Every:
    return Every(timedelta(microseconds=microseconds), start=_instant(start))


def _load_once(*, at: str) -> Once:
    return Once(datetime.fromisoformat(at))


def _load_months(*, n: int, day: int, at: str, tz: str, start: str | None) -> Months:
    return Months(n, day=day, at=at, tz=tz, start=_instant(start))


_LOADERS: dict[str, Callable[..., Schedule]] = {
    "cron": Cron,
    "every": _load_every,
    "once": _load_once,
    "months": _load_months,
}


def load_schedule(stored: str | Mapping[str, Any]) -> Schedule:
    """Read what `dump` gave, as the dict or as its JSON text.

    Raises:
        InvalidOption: it cannot be read: damaged, of a newer version, or with a zone that is unknown here. A
            ValueError, and the only error there is, so that one bad row can be put aside.
    """
    try:
        if isinstance(stored, str) and len(stored) > _LONGEST_TEXT:
            raise ValueError(f"{len(stored)} characters are too many")
        values = dict(json.loads(stored) if isinstance(stored, str) else stored)
        loader = _LOADERS.get(values.pop("kind", None))
        if loader is None:
            raise ValueError(f"its kind is not one of {', '.join(_LOADERS)}")
        return loader(**values)
    except (ValueError, TypeError, OverflowError, RecursionError) as exc:
        raise InvalidOption("schedule", f"what is stored cannot be read: {exc!s:.300}") from exc
