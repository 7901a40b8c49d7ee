"""How much memory a backlog of a million costs: that of a process whose engine holds none of it."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.floor import SqlFloor
from benchmarks.measuring import Report, Setting, Target

TARGETS = {"growth_mib_at_1m_pending": Target(64.0, 64.0, is_floor=False)}


def _measure(path: Path, backend: str, work: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.resident", str(path), backend, str(work)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _fill(path: Path, count: int) -> None:
    with SqlFloor(path, name="count_down_then_stay", args=lambda _: "[[],{}]") as bare:
        bare.fill(count)


def run(setting: Setting) -> Report:
    """Compare an engine on an empty file with one that has run 5,000 of a million tasks and holds all its slots.

    Another process (this one) fills the file. Each measurement is a process of its own.
    """
    pending, work = setting.size(1_000_000, 20_000), setting.size(5_000, 500)
    empty, idle, worked = [], [], []
    with setting.database() as full_file:
        _fill(full_file, pending + setting.rounds * work)
        for _ in range(setting.rounds):
            with setting.database() as empty_file:
                empty.append(_measure(empty_file, setting.backend, 0))
            idle.append(_measure(full_file, setting.backend, 0))
            worked.append(_measure(full_file, setting.backend, work))

    def median(answers: list[dict[str, float]], key: str = "rss_mib") -> float:
        return statistics.median(answer[key] for answer in answers)

    report = Report("memory", setting.backend, targets=TARGETS)
    growths = [after["rss_mib"] - before["rss_mib"] for after, before in zip(worked, empty, strict=True)]
    report.results |= {
        "growth_mib_at_1m_pending": round(statistics.median(growths), 2),
        "growth_mib_rounds": [round(growth, 2) for growth in growths],
        "growth_mib_before_any_work": round(median(idle) - median(empty), 2),
        "empty_mib": round(median(empty), 1),
        "pending_mib": round(median(worked), 1),
        "pending_peak_mib": round(median(worked, "peak_mib"), 1),
        "pending": pending,
        "run_before": work,
    }
    report.ratios["empty_vs_pending"] = round(statistics.median(_quotients(empty, worked)), 3)
    return report


def _quotients(empty: list[dict[str, float]], worked: list[dict[str, float]]) -> list[float]:
    return [before["rss_mib"] / after["rss_mib"] for before, after in zip(empty, worked, strict=True)]
