"""When an owner counts as dead: the observer's own clock, and only while its own beats are committed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.actors.settings import Settings
from taskengine.core.leases import LeaseWatch, ProcessIdentity, process_of
from taskengine.core.model import OwnerRow

LEASE = 30.0


def beat_until(watch: LeaseWatch, start: float, end: float, every: float = 5.0) -> float:
    """Commit the observer's own beats; return the instant of the last."""
    at = start
    while at <= end:
        watch.own_beat_committed(at)
        last = at
        at += every
    return last


def test_an_owner_whose_beat_stands_still_for_a_whole_lease_is_dead() -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(100.0)
    assert not watch.is_expired("them", 7)
    beat_until(watch, 105.0, 125.0)
    assert not watch.is_expired("them", 7)
    watch.own_beat_committed(130.0)
    assert watch.is_expired("them", 7)
    assert watch.is_expired("them", 7), "it stays dead until it beats"


def test_a_beat_starts_the_timer_anew() -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(0.0)
    assert not watch.is_expired("them", 1)
    beat_until(watch, 5.0, 25.0)
    assert not watch.is_expired("them", 2)
    beat_until(watch, 30.0, 50.0)
    assert not watch.is_expired("them", 2)
    watch.own_beat_committed(55.0)
    assert watch.is_expired("them", 2)
    assert not watch.is_expired("them", 3), "it lives after all"


def test_an_owner_that_is_seen_for_the_first_time_gets_a_whole_lease() -> None:
    watch = LeaseWatch(lease=LEASE)
    last = beat_until(watch, 0.0, 1000.0)
    assert not watch.is_expired("new", 0)
    beat_until(watch, last + 5, last + 25)
    assert not watch.is_expired("new", 0)
    watch.own_beat_committed(last + 30)
    assert watch.is_expired("new", 0)


def test_nobody_is_robbed_while_the_observer_cannot_beat_itself() -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(0.0)
    assert not watch.is_expired("them", 1)
    watch.own_beat_committed(10_000.0)  # The store was locked for hours.
    assert not watch.is_expired("them", 1)
    beat_until(watch, 10_005.0, 10_025.0)
    assert not watch.is_expired("them", 1)
    watch.own_beat_committed(10_030.0)
    assert watch.is_expired("them", 1)


def test_no_time_passes_without_own_beats() -> None:
    watch = LeaseWatch(lease=LEASE)
    assert not any(watch.is_expired("them", 1) for _ in range(1000))


def test_a_clock_that_stands_or_runs_backwards_lets_no_time_pass() -> None:
    watch = LeaseWatch(lease=LEASE)
    for at in (100.0, 100.0, 50.0, 55.0, 0.0):
        watch.own_beat_committed(at)
    assert not watch.is_expired("them", 1)
    watch.own_beat_committed(-1000.0)
    assert not watch.is_expired("them", 1)


def test_owners_have_timers_of_their_own_and_are_forgotten_with_their_row() -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(0.0)
    assert not watch.is_expired("a", 1)
    beat_until(watch, 5.0, 15.0)
    assert not watch.is_expired("b", 1)
    beat_until(watch, 20.0, 30.0)
    assert (watch.is_expired("a", 1), watch.is_expired("b", 1)) == (True, False)
    watch.forget_all_but({"b"})
    assert not watch.is_expired("a", 1), "whoever comes back begins with a whole lease"
    beat_until(watch, 35.0, 45.0)
    assert watch.is_expired("b", 1)


@pytest.mark.parametrize("lease", [1.0, 6.0, 30.0, 3600.0])
def test_the_slowest_beat_that_settings_allow_still_finds_a_dead_owner(lease: float) -> None:
    settings = Settings(lease=lease, beat=lease / 2)
    watch = LeaseWatch(lease=settings.lease)
    watch.own_beat_committed(0.0)
    assert not watch.is_expired("them", 1)
    for number in range(1, 4):  # Each a little late, as beats are.
        watch.own_beat_committed(number * settings.beat * 1.1)
    assert watch.is_expired("them", 1)


@given(
    gaps=st.lists(st.floats(0.0, 100.0), max_size=40),
    dies_after=st.integers(0, 40),
)
def test_an_owner_is_dead_exactly_when_a_lease_of_the_observer_s_own_time_has_passed(
    gaps: list[float], dies_after: int
) -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(0.0)
    now, stood_still, beat = 0.0, 0.0, 0
    watch.is_expired("them", beat)
    for number, gap in enumerate(gaps):
        now += gap
        watch.own_beat_committed(now)
        if number < dies_after:
            beat += 1
            stood_still = 0.0
        elif gap <= LEASE * 2 / 3:
            stood_still += gap
        expired = watch.is_expired("them", beat)
        if abs(stood_still - LEASE) > 1e-6:
            assert expired == (stood_still > LEASE)
        assert not (expired and number < dies_after), "an owner that beats is never dead"


@given(outages=st.lists(st.floats(LEASE, 1e6), min_size=1, max_size=5))
def test_an_outage_of_any_length_kills_nobody(outages: list[float]) -> None:
    watch = LeaseWatch(lease=LEASE)
    watch.own_beat_committed(0.0)
    watch.is_expired("them", 1)
    now = 0.0
    for outage in outages:
        now += outage
        watch.own_beat_committed(now)
        assert not watch.is_expired("them", 1)


def _process(boot_id: str, pid_namespace: str) -> ProcessIdentity:
    return ProcessIdentity(boot_id=boot_id, pid_namespace=pid_namespace, pid=1, started="1")


@pytest.mark.parametrize(
    ("other", "is_comparable"),
    [
        (_process("boot", "ns"), True),
        (_process("boot", "another ns"), False),
        (_process("another boot", "ns"), False),
        (_process("", ""), False),
    ],
)
def test_pids_mean_something_only_within_one_boot_and_namespace(other: ProcessIdentity, is_comparable: bool) -> None:
    assert _process("boot", "ns").is_comparable(other) is is_comparable


def test_where_the_kernel_tells_nothing_nothing_is_comparable() -> None:
    assert not _process("", "").is_comparable(_process("", ""))


def test_an_owner_s_row_tells_of_its_process() -> None:
    row = OwnerRow(
        id="o", boot_id="b", pid_namespace="n", pid=7, process_started="99", beat=3, started_at=0, names=("mail",)
    )
    assert process_of(row) == ProcessIdentity(boot_id="b", pid_namespace="n", pid=7, started="99")
