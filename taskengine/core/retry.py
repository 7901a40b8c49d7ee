"""When to try again, and how long to wait first: arithmetic and tables only.

Total: every input has an answer, huge attempt numbers saturate at the cap, and no function here draws or reads a
clock; the random draw in [0, 1) is an argument.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from attrs import field, frozen

from taskengine.core.errors import InvalidOption

ErrorNames = Sequence[str]
"""Qualified names of an exception's class and of its bases, nearest first."""


def error_names(error: type[BaseException]) -> tuple[str, ...]:
    """Name a class and its bases, so that a stored policy can match them without importing anything."""
    return tuple(f"{base.__module__}.{base.__qualname__}" for base in error.__mro__ if base is not object)


_Errors = Iterable[type[BaseException] | str] | type[BaseException] | str | None


def _as_names(errors: _Errors) -> tuple[str, ...] | None:
    if errors is None:
        return None
    given: Iterable[object] = (errors,) if isinstance(errors, str | type) else errors
    names: list[str] = []
    for error in given:
        if isinstance(error, str):
            names.append(error if "." in error else f"builtins.{error}")
        elif isinstance(error, type) and issubclass(error, BaseException):
            names.append(error_names(error)[0])
        else:
            raise InvalidOption("retry", f"{error!r} is neither an exception class nor the qualified name of one")
    return tuple(names)


@frozen(kw_only=True)
class RetryPolicy:
    """How often a task is tried and how long it waits in between.

    The wait before attempt n+1 is `base * factor ** (n - 1)` seconds, capped, with up to `jitter` of it taken off at
    random, so that many tasks that failed together do not return together.
    """

    max_attempts: int | None = None
    """Charged attempts before it fails for good; None means the engine's default (3)."""
    base: float = 1.0
    """First wait, in seconds; 0 retries at once."""
    factor: float = 2.0
    cap: float = 60.0
    """Longest wait, in seconds."""
    jitter: float = 0.5
    """Part of the wait that chance may take off, 0 to 1."""
    retry_on: tuple[str, ...] | None = field(default=None, converter=_as_names)
    """Exception classes (or their qualified names) that are retried; None means every Exception."""
    give_up_on: tuple[str, ...] | None = field(default=None, converter=_as_names)
    """Exception classes that are final, looked at first."""

    def __attrs_post_init__(self) -> None:
        attempts = self.max_attempts
        is_number = isinstance(attempts, int) and not isinstance(attempts, bool)
        if attempts is not None and not (is_number and 1 <= attempts <= 1_000_000):
            raise InvalidOption("max_attempts", f"{self.max_attempts!r} is not a number from 1 to 1,000,000")
        for name, low, high in (("base", 0, 1e9), ("factor", 0, 1e6), ("cap", 0, 1e9), ("jitter", 0, 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidOption(name, f"{value!r} is not a number from {low:g} to {high:g}")


def backoff(policy: RetryPolicy, failed_attempts: int, draw: float) -> float:
    """Seconds to wait after the `failed_attempts`-th failure (counted from 1), for a draw in [0, 1).

    Exponential growth with a cap and partial jitter, after Marc Brooker, "Exponential Backoff And Jitter" (AWS
    Architecture Blog, 2015). Never negative, never above the cap, never an overflow.
    """
    exponent = min(max(0, failed_attempts - 1), 1_000_000)
    try:
        wait = policy.base * math.pow(policy.factor, exponent)
    except OverflowError:
        wait = math.inf if policy.base > 0 else 0.0
    capped = min(wait, policy.cap)
    return min(max(0.0, capped * (1.0 - policy.jitter * draw)), policy.cap)


def is_retryable(policy: RetryPolicy, leaves: Sequence[ErrorNames]) -> bool:
    """Judge an exception by its leaves (one for a plain exception, each innermost one for a group).

    A group is retried only if every leaf would be. What is not an `Exception` (SystemExit, a cancellation that a body
    raised itself, …) is retried as well unless `retry_on` or `give_up_on` says otherwise: it is a failed attempt and
    nothing more.
    """
    return all(_leaf_is_retryable(policy, names) for names in leaves)


def _leaf_is_retryable(policy: RetryPolicy, names: ErrorNames) -> bool:
    if policy.give_up_on is not None and not set(policy.give_up_on).isdisjoint(names):
        return False
    if policy.retry_on is None:
        return True
    return not set(policy.retry_on).isdisjoint(names)


RETRIED_STATUS = frozenset({408, 425, 429})
"""Client errors that tell of a passing condition (RFC 9110 section 15.5.9, RFC 8470, RFC 6585)."""

RETRY_AFTER_STATUS = RETRIED_STATUS | {503}
"""Answers whose Retry-After is honoured (RFC 9110 section 10.2.3)."""


def status_is_success(status: int) -> bool:
    return 200 <= status <= 299


def status_is_retryable(status: int) -> bool:
    """Tell whether an answer with `status` is worth another attempt: any 5xx, and `RETRIED_STATUS`."""
    return 500 <= status <= 599 or status in RETRIED_STATUS


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header: seconds, rounded up, or an HTTP date (RFC 9110 section 10.2.3).

    Returns:
        Seconds from `now` (aware), 0.0 for a date in the past, or None for anything that is not understood
        (empty, negative, words), so that the ordinary backoff applies. Enormous values come back as they are; the
        caller clamps.
    """
    text = (value or "").strip()
    if not text or len(text) > 100 or not text.isascii():
        return None
    seconds = _parse_seconds(text)
    if seconds is not None:
        return seconds
    if not text[0].isalpha():
        return None
    from email.utils import parsedate_to_datetime  # Late: it loads a good part of `email`.

    try:
        date = parsedate_to_datetime(text)
        aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, (aware - now).total_seconds())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _parse_seconds(text: str) -> float | None:
    whole, _, fraction = text.partition(".")
    if not whole.isdigit() or (fraction and not fraction.isdigit()):
        return None
    return float(math.ceil(float(text)))


def retry_wait(policy: RetryPolicy, failed_attempts: int, draw: float, retry_after: float | None, cap: float) -> float:
    """Seconds until the next attempt: the backoff, or longer where the other side asked for it, up to `cap`."""
    wait = backoff(policy, failed_attempts, draw)
    if retry_after is None or math.isnan(retry_after):
        return wait
    return max(wait, min(max(0.0, retry_after), cap))
