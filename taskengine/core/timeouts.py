"""The four timeouts of a task, and the instants that follow from them.

Each is its own failure kind, and the earliest wins. `start` and `total` are about the task, are stored as instants and
hold whether anybody runs it or not; they are always final. `attempt` and `idle` are about one body, are measured by its
runner on a clock that cannot jump, and are retried by policy unless they are named in `final`.
"""

from collections.abc import Iterable
from typing import Any

from attrs import field, frozen

from taskengine.core.errors import InvalidOption

LONGEST = 1e10
"""Seconds; 300 years, which still is an instant that a datetime can name."""

_MAY_BE_FINAL = ("attempt", "idle")


def _seconds(instance: object, attribute: Any, value: object) -> None:
    if value is not None and not _is_duration(value):
        raise InvalidOption("timeout", f"{attribute.name}={value!r} is not a number of seconds above 0, nor None")


def _is_duration(value: object) -> bool:
    # The comparison also refuses NaN, infinity and an int beyond every float.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST


def _final(value: object) -> frozenset[str]:
    words: Iterable[object] = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for word in words:
        if word not in _MAY_BE_FINAL:
            raise InvalidOption("timeout", f"final={word!r} is neither 'attempt' nor 'idle'; the others always are")
    return frozenset(str(word) for word in words)


@frozen(kw_only=True)
class Timeouts:
    """How long a task may take, in seconds; None is no limit.

    Raises:
        InvalidOption: a value is no number of seconds above 0, or `final` names something else.
    """

    start: float | None = field(default=None, validator=_seconds)
    """From the last due time until the first body begins. Always final."""
    attempt: float | None = field(default=None, validator=_seconds)
    """One body, from its begin; the time that it spends paused does not count."""
    idle: float | None = field(default=None, validator=_seconds)
    """Between two checkpoints of a body; neither progress nor a heartbeat is one. Paused time does not count."""
    total: float | None = field(default=None, validator=_seconds)
    """From the submit, delays, holds and retries included. Always final."""
    final: frozenset[str] = field(default=frozenset(), converter=_final)
    """Which of `attempt` and `idle` fail the task at once instead of being retried by its policy."""

    def deadline_at(self, created_at: int) -> int | None:
        """Return the instant at which the task as a whole is out of time, in microseconds."""
        return None if self.total is None else created_at + _micros(self.total)

    def start_within(self) -> int | None:
        """Return the microseconds after the due time in which a body must begin; at least 1."""
        return None if self.start is None else _micros(self.start)


NO_TIMEOUTS = Timeouts()


def to_timeouts(value: object) -> Timeouts | None:
    """Read what is given as `timeout`: a plain number of seconds is the timeout of each attempt.

    Raises:
        InvalidOption: it is neither a number of seconds above 0, nor Timeouts, nor None.
    """
    if value is None or isinstance(value, Timeouts):
        return value
    if isinstance(value, int | float) and _is_duration(value):
        return Timeouts(attempt=value)
    raise InvalidOption("timeout", f"{value!r} is neither a number of seconds above 0, nor Timeouts(...), nor None")


def _micros(seconds: float) -> int:
    return max(1, round(seconds * 1_000_000))
