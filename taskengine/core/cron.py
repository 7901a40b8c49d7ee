"""What a cron expression says, and which instant a wall time is in a time zone.

The two are kept apart. `cronsim` answers on plain wall time only ("the next 02:30 on a Monday"), where it is right;
all that happens when a zone changes its clocks is decided here, because cronsim, asked within a repeated hour, answers
times in the past, and steps over matches where a zone shifts by half an hour or at midnight.

Instants are UTC in here, wall times are naive. An instant is never compared as a wall time: two datetimes of one zone
compare by their wall times, which come twice in a repeated hour.
"""

import re
from copy import copy
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from attrs import frozen
from cronsim import CronSim, CronSimError
from cronsim.cronsim import Field

from taskengine.core.errors import InvalidOption

LONGEST_EXPRESSION = 200
"""Characters; it bounds what reading an expression can cost."""
LONGEST_ZONE = 100

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_TAKES = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 as far as the months given have such a day, L for the last, LW for the last weekday",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 (both are Sunday) or SUN-SAT, FRI,SAT,SUN,MON for FRI-MON, 5L for the last Friday, 1#2 for the "
    "second Monday",
}

_SECOND = timedelta(seconds=1)
_REACH = timedelta(hours=25)
"""Longer than any change of clocks (24 h, islands that crossed the date line), shorter than the time between two."""
_SOME_DAY = datetime(2000, 1, 1)
"""Where the search for a first match begins; any day would do."""
_ONE_VALUE = re.compile(r"(\w+)-(\w+)/0*[1-9]\d*", re.ASCII)


# --- expressions ------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Pattern:
    """A cron expression that was read: which wall times match."""

    wild: bool
    """The field of the minute or of the hour starts with `*`: it follows the clock through every change."""
    _simulator: CronSim

    def next_wall(self, wall: datetime) -> datetime:
        """Return the first matching wall time after `wall`, in whole seconds.

        Raises:
            OverflowError: the year 9999 ends first, or 50 years, in which whatever can match has matched.
        """
        simulator = copy(self._simulator)  # what was parsed is shared, and only read
        simulator.dt = wall.replace(microsecond=0)
        found = next(simulator, None)
        if found is None:
            raise OverflowError
        return found


def read_expression(expr: object) -> Pattern:
    """Read a cron expression; the cost is bounded (some 20 ms for the worst, which never match).

    Raises:
        InvalidOption: it is not one, or no day ever matches it.
    """
    if not isinstance(expr, str) or len(expr) > LONGEST_EXPRESSION or not expr.isascii():
        raise InvalidOption(
            "cron", f"an expression is ASCII text of at most {LONGEST_EXPRESSION} characters, such as '0 3 * * *'"
        )
    fields = ALIASES.get(expr.lower(), expr).upper().split()
    if len(fields) not in (5, 6):
        known = ", ".join(ALIASES)
        raise InvalidOption(
            "cron",
            f"{expr!r} has neither 5 fields (minute hour day-of-month month day-of-week) nor 6 (seconds first), nor is "
            f"it one of {known}",
        )
    try:
        simulator = CronSim(" ".join(_repaired(fields)), _SOME_DAY)
    except CronSimError as exc:
        name = str(exc).removeprefix("Bad ")
        raise InvalidOption(
            "cron",
            f"{expr!r} has a bad {name}; it takes {_TAKES[name]}, and of these lists (1,2), ranges upwards (5-7) and "
            "steps (*/5)",
        ) from exc
    pattern = Pattern(any(field.startswith("*") for field in fields[-5:-3]), simulator)
    try:
        pattern.next_wall(_SOME_DAY)
    except OverflowError as exc:
        raise InvalidOption(
            "cron", f"{expr!r} never comes round: no day of these months is both the day-of-month and the day-of-week"
        ) from exc
    return pattern


def _repaired(fields: list[str]) -> list[str]:
    first = 6 - len(fields)
    return [",".join(_repaired_term(n, term) for term in text.split(",")) for n, text in enumerate(fields, start=first)]


def _repaired_term(position: int, term: str) -> str:
    # cronsim takes a stepped range of one value for a start without an end: `7-7/1` for `7/1`, every value from 7 on.
    # It also lets a step after L pass, which means nothing.
    stepped = _ONE_VALUE.fullmatch(term)
    field = Field(position)
    if stepped is not None and field.int(stepped[1]) == field.int(stepped[2]):
        return stepped[1]
    if term.startswith("L") and "/" in term:
        raise CronSimError(field.msg())
    return term


# --- zones ------------------------------------------------------------------------------------------------------


def read_zone(name: object) -> ZoneInfo:
    """Find a time zone by its IANA name.

    Raises:
        InvalidOption: there is none of this name on this machine.
    """
    try:
        if isinstance(name, str) and 0 < len(name) <= LONGEST_ZONE:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown; no name at all; the name of a folder, such as "America"
        pass
    raise InvalidOption(
        "tz",
        f"{name if isinstance(name, str) else type(name).__name__!r:.100} is not a time zone known here; give an IANA "
        "name such as 'UTC', 'Europe/Madrid' or 'Etc/GMT-3' (which is UTC+3); without a system database, "
        "install tzdata",
    )


def wall_time(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return what a clock in `zone` shows at `instant`."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def first_pass(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return the instant of a wall time: the first of two, and the end of the gap for one that does not exist."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if wall_time(zone, instant) == wall:
        return instant
    # In a gap, fold 0 reads by the offset before it, which is an instant after it; fold 1 the other way round.
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant)


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).replace(tzinfo=UTC) - instant


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first instant with the offset that the zone has at `after`; at `before` it has another."""
    low, high = before.replace(microsecond=0), after.replace(microsecond=0)
    offset = _offset(zone, high)
    while high - low > _SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        if _offset(zone, middle) == offset:
            high = middle
        else:
            low = middle
    return high


# --- both -------------------------------------------------------------------------------------------------------


def next_match(pattern: Pattern, zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the first instant after `instant` at which `pattern` fires, by the rules that `Cron` states.

    Raises:
        OverflowError: the year 9999 ends first.
    """
    return _next_wild(pattern, zone, instant) if pattern.wild else _next_fixed(pattern, zone, instant)


def _next_fixed(pattern: Pattern, zone: ZoneInfo, instant: datetime) -> datetime:
    here = instant.astimezone(zone)
    wall = here.replace(tzinfo=None, fold=0)
    if here.fold:
        # The second pass of a repeated hour: everything in it has run in the first. Go on from the hour's end.
        earlier = here.replace(fold=0).astimezone(UTC)
        wall = _change(zone, earlier, instant).replace(tzinfo=None) + _offset(zone, earlier) - _SECOND
    return first_pass(zone, pattern.next_wall(wall))


def _next_wild(pattern: Pattern, zone: ZoneInfo, after: datetime) -> datetime:
    # Between two changes of the clocks a wall time is an instant plus a constant. Go ahead by that; where a change
    # comes first, go on from it by the new offset. Nothing in between can match unless a change turns the clock back
    # to before `after`, hence the look at what lies within reach; and beyond it one may jump.
    offset = _offset(zone, after)
    while True:
        match = pattern.next_wall(after.replace(tzinfo=None) + offset)
        candidate = (match - offset).replace(tzinfo=UTC)
        ahead = min(candidate, after + _REACH)
        if (changed := _offset(zone, ahead)) != offset:
            after, offset = _change(zone, after, ahead) - _SECOND, changed  # the change itself may match
        elif ahead == candidate:
            return candidate
        else:
            after = max(ahead, candidate - _REACH)
            offset = _offset(zone, after)
