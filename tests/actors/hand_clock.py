"""A clock that goes on only when a test says so."""

NOW = 1_700_000_000_000_000


class HandClock:
    """Both clocks of `ports.Clock`; the wall clock can jump by itself."""

    def __init__(self) -> None:
        self.wall = NOW
        self.seconds = 1_000.0

    def now(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += round(seconds * 1_000_000)
