"""How a benchmark is run: rounds, medians, percentiles, and where its files lie.

A ratio is the median of rounds in which ours and its floor take turns, so that a machine that slows down slows both.
Before each turn the garbage is collected, and during it the collector works as it does in any program.
"""

import gc
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

ROUNDS = 5
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@frozen(kw_only=True)
class Setting:
    """What one run of a benchmark is to do."""

    backend: str
    is_quick: bool
    """Small sizes and two rounds: to see that it works, not how fast it is."""
    folder: Path
    """On a disk; empty at first."""
    _numbers: "count[int]" = field(factory=count, init=False)

    @property
    def rounds(self) -> int:
        """Counted rounds; one more that is not counted comes before them unless it is a quick run."""
        return 2 if self.is_quick else ROUNDS

    def size(self, full: int, quick: int) -> int:
        """Choose a size."""
        return quick if self.is_quick else full

    @contextmanager
    def database(self) -> Iterator[Path]:
        """Give a path for a new SQLite file, and delete what was made there."""
        path = self.folder / f"{next(self._numbers)}.db"
        try:
            yield path
        finally:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)


@frozen
class Target:
    """What a figure should reach on two cores."""

    asyncio: float
    trio: float
    is_floor: bool = True
    """False: the figure should stay below it."""

    def of(self, backend: str) -> float:
        """Return the target on a backend."""
        return self.trio if backend == "trio" else self.asyncio

    def is_reached(self, value: float, backend: str) -> bool:
        """Tell whether a figure is as it should be."""
        return value >= self.of(backend) if self.is_floor else value < self.of(backend)


@define
class Report:
    """What a benchmark found."""

    name: str
    backend: str
    results: dict[str, Any] = field(factory=dict)
    ratios: dict[str, float] = field(factory=dict)
    targets: dict[str, Target] = field(factory=dict)
    """By the name of a result or a ratio."""

    def add_ratio(self, name: str, rounds: "Rounds") -> None:
        """Note a ratio, and each round's beside the results, so that the spread can be seen."""
        self.add_ratio_of(name, rounds.ratios)

    def add_ratio_of(self, name: str, ratios: Sequence[float]) -> None:
        """Note the median of the rounds' ratios, and each of them beside the results."""
        self.ratios[name] = round(statistics.median(ratios), 3)
        self.results[f"{name}_rounds"] = [round(ratio, 3) for ratio in ratios]

    def as_dict(self) -> dict[str, Any]:
        """Lay it out as the JSON document that is promised."""
        return {"name": self.name, "backend": self.backend, "results": self.results, "ratios": self.ratios}


@define
class Rounds:
    """Figures of interleaved rounds, such as lives a second."""

    ours: list[float] = field(factory=list)
    floor: list[float] = field(factory=list)

    @property
    def ratios(self) -> list[float]:
        """Return ours by the floor, round by round."""
        return [ours / floor for ours, floor in zip(self.ours, self.floor, strict=True)]

    @property
    def ratio(self) -> float:
        """Return the median."""
        return statistics.median(self.ratios)


def interleave(setting: Setting, ours: Callable[[], float], floor: Callable[[], float]) -> Rounds:
    """Let ours and the floor take turns; both return a rate."""
    rounds = Rounds()
    if not setting.is_quick:
        for turn in (ours, floor):
            _take_turn(turn)
    for _ in range(setting.rounds):
        rounds.ours.append(_take_turn(ours))
        rounds.floor.append(_take_turn(floor))
    return rounds


def interleave_all(setting: Setting, turns: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Let several take turns; return what each of them measured, round by round."""
    rounds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(setting.rounds + (not setting.is_quick)):
        for name, turn in turns.items():
            figure = _take_turn(turn)
            if number or setting.is_quick:  # The first round of a full run warms up.
                rounds[name].append(figure)
    return rounds


def _take_turn(turn: Callable[[], float]) -> float:
    gc.collect()
    return turn()


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` (0 to 1) of all do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def describe_samples(name: str, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Lay out times measured in rounds, in milliseconds.

    `<name>_p50_ms` and `<name>_p99_ms` are medians of the rounds' own percentiles, as ratios are, so that one round in
    which the machine did something else does not decide; `<name>_p99_ms_of_all` and `<name>_max_ms` hide nothing.
    """
    every = [sample for samples in rounds for sample in samples]
    own_p99 = [percentile(samples, 0.99) for samples in rounds]
    return {
        f"{name}_p50_ms": round(statistics.median(percentile(samples, 0.5) for samples in rounds), 3),
        f"{name}_p99_ms": round(statistics.median(own_p99), 3),
        f"{name}_p99_ms_rounds": [round(value, 3) for value in own_p99],
        f"{name}_p99_ms_of_all": round(percentile(every, 0.99), 3),
        f"{name}_max_ms": round(max(every), 3),
    }


@contextmanager
def folder_on_disk(chosen: Path | None) -> Iterator[Path]:
    """Make a folder for database files, and delete it. A sync costs nothing in memory, so that it must be on a disk.

    Args:
        chosen: where to make it; None tries the system's folder for temporary files, then the current one.
    """
    parent = chosen
    if parent is None:
        candidates = (Path(tempfile.gettempdir()), Path.cwd())
        parent = next((path for path in candidates if _file_system(path) not in _IN_MEMORY), candidates[0])
    with tempfile.TemporaryDirectory(prefix="taskengine-bench-", dir=parent) as name:
        yield Path(name)


def _file_system(path: Path) -> str:
    """Name the type of the file system that holds `path`; "" where the system does not tell."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    resolved, best, kind = os.fspath(path.resolve()), -1, ""
    for line in mounts:
        _, place, its_kind, *_ = line.split(" ")
        is_above = resolved == place or resolved.startswith(place.rstrip("/") + "/")
        if is_above and len(place) >= best:
            best, kind = len(place), its_kind
    return kind
