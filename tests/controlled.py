"""What tests of stop and pause share: where bodies run, and the bodies themselves."""

import pytest

from taskengine import RetryPolicy, TaskCall
from taskengine.clock import SystemClock
from tests.bodies import STAYING, STEPPING, Sign

PLACES = [("memory", "loop"), ("sqlite", "loop"), ("sqlite", "thread"), ("memory", "process")]
EVERYWHERE = pytest.mark.parametrize(("store", "executor"), PLACES, indirect=["store"])
"""Every executor, and not each of them on each store: starting a child takes most of a test's time."""
HERE = pytest.mark.parametrize(("store", "executor"), PLACES[:3], indirect=["store"])
SLOWLY = RetryPolicy(base=3600, cap=3600, max_attempts=5)


def stepping(executor: str, go: Sign) -> TaskCall[int]:
    return STEPPING[executor].bind(go.path)


def staying(executor: str, go: Sign) -> TaskCall[str]:
    return STAYING[executor].bind(go.path)


class JumpingClock(SystemClock):
    """The machine's clock, ahead by as much as a test says."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead
