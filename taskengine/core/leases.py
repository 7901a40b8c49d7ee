"""When an owner counts as dead.

An owner is one start of an engine; its row carries a beat that it raises. Wall clocks of different processes are never
compared: an observer starts its own timer when it first sees a beat, and the owner is dead when that beat has stood
still for a whole lease, counting only time in which the observer's *own* beats were committed. If the store is
locked or full, nobody can beat, nobody's time runs, and nobody is robbed. (The idea of the timer at the observer is
that of the DynamoDB lock client.) On one host there is a shortcut: a process that is gone cannot beat.
"""

from attrs import define, field, frozen

from taskengine.core.model import OwnerRow


@frozen(kw_only=True)
class ProcessIdentity:
    """What tells one process of one boot of one host from all others."""

    boot_id: str
    pid_namespace: str
    pid: int
    started: str
    """Start time of the process as the kernel tells it, so that a reused pid is another process."""

    def is_comparable(self, other: "ProcessIdentity") -> bool:
        """Whether pids of the two mean the same processes."""
        return bool(self.boot_id) and (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)


def process_of(owner: OwnerRow) -> ProcessIdentity:
    """Return the process that an owner's row tells of."""
    return ProcessIdentity(
        boot_id=owner.boot_id, pid_namespace=owner.pid_namespace, pid=owner.pid, started=owner.process_started
    )


@define
class _Sighting:
    beat: int
    seen_at: float


@define
class LeaseWatch:
    """One observer's timers over all owners."""

    lease: float
    """Seconds."""
    _own_time: float = 0.0
    """Seconds in which this observer's own beats were committed."""
    _last_own_beat: float | None = None
    _sightings: dict[str, _Sighting] = field(factory=dict)

    def own_beat_committed(self, monotonic: float) -> None:
        """Let the observer's time run up to now: since the last committed beat it could have seen others' beats.

        A gap longer than two thirds of a lease was an outage or a suspended machine, and counts for nothing. (The
        slowest beat that settings allow is half a lease, and must count even when it comes a little late.)
        """
        if self._last_own_beat is not None:
            gap = monotonic - self._last_own_beat
            if 0.0 < gap <= self.lease * 2 / 3:
                self._own_time += gap
        self._last_own_beat = monotonic

    def is_expired(self, owner: str, beat: int) -> bool:
        """Tell whether `owner`, seen now with `beat`, has stood still for a whole lease."""
        sighting = self._sightings.get(owner)
        if sighting is None or sighting.beat != beat:
            self._sightings[owner] = _Sighting(beat=beat, seen_at=self._own_time)
            return False
        return self._own_time - sighting.seen_at >= self.lease

    def forget_all_but(self, owners: set[str]) -> None:
        """Drop the timers of owners that have no row any more."""
        for owner in self._sightings.keys() - owners:
            del self._sightings[owner]
