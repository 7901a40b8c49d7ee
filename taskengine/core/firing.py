"""Which fire times of a schedule are served: after a sleep or an outage, under overlap, and with jitter.

Pure functions: they are told the time, the draw and what still runs. Instants come back in UTC. What they cost does not
grow with the time slept: at most `max_catch_up + 1` fire times on either side of the grace period are walked through,
and the last one of a longer row is found by halving.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from attrs import frozen

from taskengine.core.errors import InvalidOption
from taskengine.core.schedule import LONGEST_DURATION, Schedule, duration, shown, to_utc, whole_number

MisfirePolicy = Literal["skip", "once", "all"]
"""What becomes of missed fire times: none is served; one stands for all; each is served, up to a bound."""
OverlapPolicy = Literal["skip", "queue_one", "allow"]
"""What becomes of a fire time while a task of the schedule is unfinished."""

MOST_CATCH_UP = 10_000

_Ahead = Callable[[datetime], datetime | None]

_MICROSECOND = timedelta(microseconds=1)
_NO_TIME = timedelta(0)
_LAST = datetime.max.replace(tzinfo=UTC)


@frozen(kw_only=True)
class Span:
    """A row of fire times that were not served, to be recorded as one."""

    first: datetime
    last: datetime
    count: int | None
    """None where there were more than `max_catch_up` to walk through."""


@frozen(kw_only=True)
class MisfirePlan:
    """What to do about the fire times that are due. All instants are UTC."""

    fire: tuple[datetime, ...]
    """Nominal instants to serve now, rising."""
    skipped: tuple[Span, ...]
    """What is not served, rising."""
    next_at: datetime | None
    """When to look again; None if the schedule has ended."""
    considered: datetime
    """The nominal time up to which all is decided: what to store, and to give as `last` the next time."""


def misfires(
    schedule: Schedule,
    *,
    last: datetime | None,
    now: datetime,
    policy: MisfirePolicy = "once",
    grace: float | timedelta,
    max_catch_up: int = 1000,
) -> MisfirePlan:
    """Decide about every fire time in (last, now].

    A fire time that is at most `grace` old is on time, and served whatever the policy. Older ones were missed:

    * `skip`: they are not served.
    * `once`: the latest fire time that is due stands for all that are due, those on time included.
    * `all`: they are served, the oldest first, as long as no more than `max_catch_up` are served at all.

    What is not served comes back as spans. More than `max_catch_up` on time are cut likewise, under every policy.

    A clock that was set back decides nothing a second time: up to `last` nothing fires again, and `next_at` lies
    after it.

    Args:
        schedule: anchored, if it counts from its creation.
        last: `considered` of the plan before, or the instant of creation; None begins at `now`.
        now: the time.
        policy: see above.
        grace: seconds, or a timedelta, up to a century.
        max_catch_up: 1 to 10,000.

    Raises:
        InvalidOption: an argument is out of bounds, or the schedule is not anchored.
    """
    _known("misfire", policy, MisfirePolicy)
    patience = duration("grace", grace, _NO_TIME, LONGEST_DURATION)
    most = whole_number("max_catch_up", max_catch_up, 1, MOST_CATCH_UP)
    now = to_utc("now", now)
    begin = now if last is None else to_utc("last", last)
    if schedule.anchored(now) != schedule:
        raise InvalidOption("schedule", "it counts from its creation: fix that with anchored(created_at) before use")

    def ahead(instant: datetime) -> datetime | None:
        found = schedule.next_after(instant)
        return None if found is None else found.astimezone(UTC)

    # The last instant that is past its grace; before it fire times were missed, after it they are on time.
    edge = max(begin, to_utc("now", now - patience) - _MICROSECOND)
    missed_first = _first(ahead, begin, edge)
    if missed_first is not None and policy == "once":
        latest = _latest(ahead, missed_first, now)
        fire = [latest]
        skipped = _serve(ahead, begin, latest - _MICROSECOND, serve=0, walk=most)[1]
    else:
        on_time, cut = _serve(ahead, edge, now, serve=most, walk=most)
        room = most - len(on_time) if policy == "all" else 0
        missed, left = _serve(ahead, begin, edge, serve=room, walk=most)
        fire, skipped = missed + on_time, left + cut
    considered = max([begin, *fire, *(span.last for span in skipped)])
    return MisfirePlan(
        fire=tuple(fire), skipped=tuple(skipped), next_at=ahead(max(considered, now)), considered=considered
    )


def _first(ahead: _Ahead, after: datetime, until: datetime) -> datetime | None:
    """Return the first fire time in (after, until], if there is one."""
    found = ahead(after)
    return found if found is not None and found <= until else None


def _serve(
    ahead: _Ahead, after: datetime, until: datetime, *, serve: int, walk: int
) -> tuple[list[datetime], list[Span]]:
    """Split the fire times in (after, until]: the first `serve` of them, and the span of the others.

    Walks through no more than `walk + 1` of them; `serve` is at most `walk`.
    """
    seen: list[datetime] = []
    while len(seen) <= walk and (found := _first(ahead, after, until)) is not None:
        seen.append(found)
        after = found
    rest = seen[serve:]
    if not rest:
        return seen, []
    if len(seen) <= walk:
        return seen[:serve], [Span(first=rest[0], last=rest[-1], count=len(rest))]
    latest = _latest(ahead, rest[-1], until)
    # One more than was walked through may be all there is; then it is counted.
    count = len(rest) if latest == rest[-1] else None
    return seen[:serve], [Span(first=rest[0], last=latest, count=count)]


def _latest(ahead: _Ahead, found: datetime, until: datetime) -> datetime:
    """Return the last fire time up to `until`, by halving; `found` is one of them."""
    while found < until:  # no fire time lies after `until`, up to where it began
        middle = found + (until - found) // 2
        later = _first(ahead, middle, until)
        if later is None:
            until = middle
        else:
            found = later
    return found


def overlap(policy: OverlapPolicy, *, unfinished: int, queued: int) -> Literal["fire", "skip", "queue"]:
    """Decide about a fire time by what the store holds of the same schedule.

    `skip` fires only if nothing is unfinished; `queue_one` then lets one task wait for the end of the others, and
    skips what comes while one waits; `allow` always fires.

    Args:
        policy: see above.
        unfinished: tasks of the schedule that have not ended, counted from rows (a counter that is kept leaks);
            whether those in `queued` count is the same to the answer.
        queued: those of them that wait by `queue_one`.

    Raises:
        InvalidOption: there is no such policy.
    """
    _known("overlap", policy, OverlapPolicy)
    if policy == "allow" or (unfinished <= 0 and queued <= 0):
        return "fire"
    return "queue" if policy == "queue_one" and queued <= 0 else "skip"


def jittered(nominal: datetime, *, jitter_seconds: float | timedelta, draw: float) -> datetime:
    """Return when a fire time is due if up to `jitter_seconds` are put on it, in UTC; never before it.

    The nominal time stays what it is: it names the fire time, and the next one is not counted from here.

    Args:
        nominal: the fire time.
        jitter_seconds: 0 to a century.
        draw: chance, in [0, 1).

    Raises:
        InvalidOption: an argument is out of bounds.
    """
    jitter = duration("jitter", jitter_seconds, _NO_TIME, LONGEST_DURATION)
    at = to_utc("nominal", nominal)
    return at + min(jitter * draw, _LAST - at)


def _known(option: str, policy: object, policies: object) -> None:
    known = get_args(policies)
    if policy not in known:
        raise InvalidOption(option, f"{shown(policy)} is not one of {', '.join(map(repr, known))}")
