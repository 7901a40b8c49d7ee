"""Which fire times are served: missed ones, ones that overlap, and jitter."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.errors import InvalidOption
from taskengine.core.firing import MisfirePlan, MisfirePolicy, OverlapPolicy, Span, jittered, misfires, overlap
from taskengine.core.schedule import Cron, Every, Months, Once, Schedule

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
CENTURY = timedelta(days=36525)
POLICIES: list[MisfirePolicy] = list(get_args(MisfirePolicy))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def minute(n: int) -> datetime:
    return NOON + timedelta(minutes=n)


def plan(
    schedule: Schedule, last: datetime | None, now: datetime, policy: MisfirePolicy, **options: Any
) -> MisfirePlan:
    return misfires(schedule, last=last, now=now, policy=policy, **{"grace": 30, **options})


# --- missed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_on_time_is_served_whatever_the_policy(policy: MisfirePolicy) -> None:
    made = plan(Cron("* * * * *"), minute(0), minute(1) + timedelta(seconds=30), policy)
    assert made == MisfirePlan(fire=(minute(1),), skipped=(), next_at=minute(2), considered=minute(1))


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_due_is_nothing_to_do(policy: MisfirePolicy) -> None:
    made = plan(Cron("* * * * *"), minute(0), minute(1) - timedelta(microseconds=1), policy)
    assert made == MisfirePlan(fire=(), skipped=(), next_at=minute(1), considered=minute(0))
    assert plan(Once(minute(0)), minute(0), minute(5), policy) == MisfirePlan(
        fire=(), skipped=(), next_at=None, considered=minute(0)
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_last_it_begins_now(policy: MisfirePolicy) -> None:
    made = plan(Cron("* * * * *"), None, minute(5), policy)
    assert made == MisfirePlan(fire=(), skipped=(), next_at=minute(6), considered=minute(5))


def test_a_nightly_run_missed_by_twenty_minutes_runs_once_late_by_default() -> None:
    nightly = Cron("0 3 * * *", tz="Europe/Berlin")
    last, now = at("2026-06-01T03:00+02:00"), at("2026-06-02T03:20+02:00")
    made = misfires(nightly, last=last, now=now, grace=60)
    assert made.fire == (at("2026-06-02T03:00+02:00"),)
    assert made.skipped == ()
    assert made.next_at == at("2026-06-03T03:00+02:00")
    # and the same program restarted, three times
    for _ in range(3):
        again = misfires(nightly, last=made.considered, now=now, grace=60)
        assert (again.fire, again.skipped, again.next_at) == ((), (), made.next_at)


def test_four_missed_minutes_under_each_policy() -> None:
    every_minute, now = Cron("* * * * *"), minute(4) + timedelta(seconds=40)
    missed = tuple(minute(n) for n in (1, 2, 3, 4))
    rest = {"next_at": minute(5), "considered": minute(4)}
    skipped = Span(first=minute(1), last=minute(4), count=4)
    assert plan(every_minute, minute(0), now, "skip") == MisfirePlan(fire=(), skipped=(skipped,), **rest)
    skipped = Span(first=minute(1), last=minute(3), count=3)
    assert plan(every_minute, minute(0), now, "once") == MisfirePlan(fire=missed[3:], skipped=(skipped,), **rest)
    assert plan(every_minute, minute(0), now, "all") == MisfirePlan(fire=missed, skipped=(), **rest)


def test_four_missed_minutes_with_the_last_of_them_on_time() -> None:
    every_minute, now = Cron("* * * * *"), minute(4)
    missed = Span(first=minute(1), last=minute(3), count=3)
    for policy in ("skip", "once"):
        made = plan(every_minute, minute(0), now, policy)
        assert (made.fire, made.skipped) == ((minute(4),), (missed,))
    assert plan(every_minute, minute(0), now, "all").fire == tuple(minute(n) for n in (1, 2, 3, 4))


def test_several_on_time_are_all_served_unless_one_before_them_was_missed_and_one_stands_for_all() -> None:
    second = timedelta(seconds=1)
    every_second = Every(1, start=NOON)
    on_time = tuple(NOON + n * second for n in (1, 2, 3))
    for policy in POLICIES:
        assert plan(every_second, NOON, NOON + 3 * second, policy).fire == on_time
    now = NOON + 32 * second
    assert len(plan(every_second, NOON, now, "skip").fire) == 31
    assert plan(every_second, NOON, now, "once").fire == (now,)
    assert plan(every_second, NOON, now, "once").skipped == (
        Span(first=NOON + second, last=NOON + 31 * second, count=31),
    )


def test_grace_of_zero_still_takes_what_is_due_this_very_instant() -> None:
    assert plan(Cron("* * * * *"), minute(0), minute(1), "skip", grace=0).fire == (minute(1),)
    late = minute(1) + timedelta(microseconds=1)
    assert plan(Cron("* * * * *"), minute(0), late, "skip", grace=0).fire == ()
    assert plan(Cron("* * * * *"), minute(0), minute(9), "skip", grace=timedelta(minutes=5)).fire == tuple(
        minute(n) for n in range(4, 10)
    )


def test_catching_up_is_bounded_and_the_rest_is_one_span() -> None:
    every_minute = Cron("* * * * *")
    week = minute(7 * 24 * 60)
    late = week + timedelta(seconds=40)
    made = plan(every_minute, minute(0), late, "all")
    assert made.fire == tuple(minute(n) for n in range(1, 1001))
    assert made.skipped == (Span(first=minute(1001), last=week, count=None),)
    assert (made.next_at, made.considered) == (week + timedelta(minutes=1), week)
    # what is on time comes before what was missed
    made = plan(every_minute, minute(0), week, "all", max_catch_up=3)
    assert made.fire == (minute(1), minute(2), week)
    assert made.skipped == (Span(first=minute(3), last=week - timedelta(minutes=1), count=None),)


def test_a_span_is_counted_up_to_the_bound() -> None:
    every_minute = Cron("* * * * *")
    for missed, count in ((9, 9), (10, 10), (11, 11), (12, None)):
        made = plan(every_minute, minute(0), minute(missed) + timedelta(seconds=40), "skip", max_catch_up=10)
        assert made.skipped == (Span(first=minute(1), last=minute(missed), count=count),)
    for missed, count in ((4, 1), (5, None), (11, None)):
        made = plan(every_minute, minute(0), minute(missed) + timedelta(seconds=40), "all", max_catch_up=3)
        assert made.fire == (minute(1), minute(2), minute(3))
        assert made.skipped == (Span(first=minute(4), last=minute(missed), count=count),)


@pytest.mark.parametrize("policy", POLICIES)
def test_more_on_time_than_the_bound_are_cut_under_every_policy(policy: MisfirePolicy) -> None:
    made = plan(Every(0.001, start=NOON), NOON, NOON + timedelta(seconds=20), policy, max_catch_up=2)
    millisecond = timedelta(milliseconds=1)
    assert made.fire == (NOON + millisecond, NOON + 2 * millisecond)
    assert made.skipped == (Span(first=NOON + 3 * millisecond, last=NOON + timedelta(seconds=20), count=None),)


SCHEDULES = [
    Cron("* * * * *"),
    Cron("*/10 30 2 * * *", tz="Europe/Berlin"),
    Cron("*/5 * * * *", tz="Australia/Lord_Howe"),
    Cron("0 0 29 2 *", tz="Pacific/Apia"),
    Every(0.001, start=NOON),
    Every(3600, start=NOON + timedelta(minutes=7)),
    Months(day=-1, tz="America/New_York", start=NOON),
]


class Counted(Cron):
    """A schedule that counts how often it was asked."""

    asked = 0

    def next_after(self, instant: datetime) -> datetime | None:
        Counted.asked += 1
        return super().next_after(instant)


@pytest.mark.parametrize("asleep", [timedelta(days=7), CENTURY])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_week_or_a_century_asleep_costs_the_same(policy: MisfirePolicy, asleep: timedelta) -> None:
    Counted.asked = 0
    made = plan(Counted("* * * * *"), NOON, NOON + asleep, policy)
    assert made.considered == NOON + asleep
    assert made.next_at == NOON + asleep + timedelta(minutes=1)
    assert Counted.asked < 1000 + 200


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("policy", POLICIES)
def test_after_a_century_asleep_the_last_fire_time_is_found(schedule: Schedule, policy: MisfirePolicy) -> None:
    now = NOON + CENTURY
    began = time.perf_counter()
    made = plan(schedule, NOON, now, policy, grace=0, max_catch_up=5)
    assert time.perf_counter() - began < 5
    assert schedule.next_after(NOON) == (made.skipped[0].first if policy != "all" else made.fire[0])
    assert made.considered <= now
    assert made.next_at is not None
    assert made.next_at > now
    assert made.next_at == schedule.next_after(made.considered)


@given(
    st.sampled_from(
        [Cron("*/7 * * * *", tz="Europe/Berlin"), Cron("30 2 * * *"), Every(431, start=NOON), Every(3600, start=NOON)]
    ),
    st.integers(0, 30_000),
    st.integers(0, 60_000),
    st.sampled_from(POLICIES),
    st.integers(0, 5_000),
    st.integers(1, 30),
)
def test_every_fire_time_is_served_or_stands_in_one_span(
    schedule: Schedule, begin: int, sleep: int, policy: MisfirePolicy, grace: int, most: int
) -> None:
    last, now = NOON + timedelta(seconds=begin), NOON + timedelta(seconds=begin + sleep)
    due = []
    found = schedule.next_after(last)
    while found is not None and found <= now:
        due.append(found.astimezone(UTC))
        found = schedule.next_after(found)
    made = plan(schedule, last, now, policy, grace=grace, max_catch_up=most)
    in_spans = [fire for fire in due if any(span.first <= fire <= span.last for span in made.skipped)]
    assert sorted([*made.fire, *in_spans]) == due
    assert list(made.fire) == sorted(made.fire)
    assert len(made.fire) <= most
    for span in made.skipped:
        inside = [fire for fire in due if span.first <= fire <= span.last]
        assert (inside[0], inside[-1]) == (span.first, span.last)
        assert span.count in (len(inside), None)
        assert span.count is not None or len(inside) > most - len(made.fire)
    missed = [fire for fire in due if fire < now - timedelta(seconds=grace)]
    if policy == "skip":
        assert not set(missed) & set(made.fire)
    elif policy == "once" and missed:
        assert made.fire == (due[-1],)
    elif len(due) <= most:
        assert list(made.fire) == due
    assert made.next_at == (None if found is None else found.astimezone(UTC))
    assert made.considered == (due[-1] if due else last)


@pytest.mark.parametrize("back", [timedelta(hours=12), timedelta(seconds=90)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_clock_set_back_never_fires_a_nominal_time_twice(policy: MisfirePolicy, back: timedelta) -> None:
    every = Every(20, start=NOON)
    fired: list[datetime] = []
    last, now = NOON, NOON
    for step in range(3 * 12 * 180):
        if step == 500:
            now -= back
        now += timedelta(seconds=20)
        made = plan(every, last, now, policy)
        assert made.next_at is not None
        assert made.next_at > max(last, now)
        last = made.considered
        fired += made.fire
    assert fired == [NOON + n * timedelta(seconds=20) for n in range(1, len(fired) + 1)]
    assert now - last < timedelta(seconds=20)  # it has caught up with the clock


def test_a_fire_time_in_the_repeated_hour_is_told_from_the_one_an_hour_before() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    half_hourly = Cron("*/30 * * * *", tz="Europe/Berlin")
    last = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    made = plan(half_hourly, last, datetime(2026, 10, 25, 2, 0, tzinfo=berlin, fold=1), "once")
    assert made.fire == (at("2026-10-25T01:00+00:00"),)
    assert made.next_at == at("2026-10-25T01:30+00:00")
    assert {instant.tzinfo for instant in (*made.fire, made.next_at, made.considered)} == {UTC}


@pytest.mark.parametrize("schedule", [Every(60), Months()])
def test_a_schedule_must_be_anchored_before_it_is_asked_what_it_missed(schedule: Schedule) -> None:
    with pytest.raises(InvalidOption, match=r"fix that with anchored\(created_at\)"):
        plan(schedule, minute(0), minute(5), "once")
    assert plan(schedule.anchored(minute(0)), minute(0), minute(5), "once").next_at is not None


@pytest.mark.parametrize(
    "options",
    [
        {"grace": -1}, {"grace": float("nan")}, {"grace": "5"}, {"grace": None}, {"grace": timedelta(days=-1)},
        {"max_catch_up": 0}, {"max_catch_up": 10_001}, {"max_catch_up": 1.5}, {"policy": "none"}, {"policy": []},
        {"now": datetime(2026, 1, 1)}, {"last": datetime(2026, 1, 1)}, {"last": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_misfire_options_are_checked(options: dict[str, Any]) -> None:
    given_options: dict[str, Any] = {"last": minute(0), "now": minute(1), "policy": "once", "grace": 0, **options}
    with pytest.raises(InvalidOption):
        misfires(Cron("* * * * *"), **given_options)


# --- overlap ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "answers"),
    [  # for (unfinished, queued) of these:   (0, 0)   (1, 0)   (2, 1)  (1, 1)  (0, 1)  (7, 0)
        ("skip", ["fire", "skip", "skip", "skip", "skip", "skip"]),
        ("queue_one", ["fire", "queue", "skip", "skip", "skip", "queue"]),
        ("allow", ["fire"] * 6),
    ],
)
def test_overlap_is_decided_by_what_is_unfinished(policy: OverlapPolicy, answers: list[str]) -> None:
    counts = [(0, 0), (1, 0), (2, 1), (1, 1), (0, 1), (7, 0)]
    assert [overlap(policy, unfinished=unfinished, queued=queued) for unfinished, queued in counts] == answers


@pytest.mark.parametrize("policy", get_args(OverlapPolicy))
def test_a_schedule_never_jams(policy: OverlapPolicy) -> None:
    assert overlap(policy, unfinished=0, queued=0) == "fire"


def test_a_long_body_on_a_short_interval_overlaps_as_its_policy_says() -> None:
    # One fire each second, bodies of 2.5 s; what is unfinished is counted anew each time, so that nothing can leak.
    started: dict[OverlapPolicy, list[float]] = {"skip": [], "queue_one": [], "allow": []}
    for policy, starts in started.items():
        waiting = False
        for tick in range(61):
            if waiting and starts[-1] + 2.5 <= tick:
                starts.append(starts[-1] + 2.5)
                waiting = False
            unfinished = sum(1 for start in starts if start + 2.5 > tick)
            answer = overlap(policy, unfinished=unfinished, queued=int(waiting))
            if answer == "fire":
                starts.append(tick)
            waiting = waiting or answer == "queue"
    assert started["skip"] == list(range(0, 61, 3))
    assert started["queue_one"] == [n * 2.5 for n in range(25)]
    assert started["allow"] == list(range(61))


def test_an_unknown_overlap_policy_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"^overlap: 'queue' is not one of 'skip', 'queue_one', 'allow'"):
        overlap("queue", unfinished=0, queued=0)  # type: ignore[arg-type]  # what is wrong is the point


# --- jitter -----------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e9), st.floats(0, 1, exclude_max=True))
def test_jitter_only_delays_and_only_within_its_bound(jitter: float, draw: float) -> None:
    late = jittered(NOON, jitter_seconds=jitter, draw=draw) - NOON
    assert timedelta(0) <= late <= timedelta(seconds=jitter)


def test_jitter_is_real_time() -> None:
    before_the_gap = datetime(2026, 3, 29, 1, 59, tzinfo=ZoneInfo("Europe/Berlin"))
    assert jittered(before_the_gap, jitter_seconds=240, draw=0.5) == at("2026-03-29T03:01+02:00")
    assert jittered(NOON, jitter_seconds=0, draw=0.99) == NOON
    end = datetime.max.replace(tzinfo=UTC)
    assert jittered(end, jitter_seconds=60, draw=0.5) == end


@pytest.mark.parametrize("jitter", [-1, float("inf"), "5", True, None, 10**5000], ids=lambda value: repr(type(value)))
def test_jitter_is_bounded(jitter: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^jitter: "):
        jittered(NOON, jitter_seconds=jitter, draw=0.5)
