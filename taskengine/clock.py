"""The one module that reads time."""

import time


class SystemClock:
    """The machine's clocks."""

    def now(self) -> int:
        """Wall clock in microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, not affected by changes of the wall clock."""
        return time.monotonic()
