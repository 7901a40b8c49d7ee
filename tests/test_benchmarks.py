"""The benchmarks run, on both backends, and print what is promised. How fast anything is, is not asserted here."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import NAMES, PROFILED, main
from benchmarks.measuring import (
    Report,
    Rounds,
    Setting,
    Target,
    describe_samples,
    folder_on_disk,
    interleave,
    percentile,
)

PROMISED_RATIOS = {
    "throughput": {"bulk_full_vs_floor", "single_full_vs_floor", "memory_vs_pool"},
    "backlog": {"million_vs_5k"},
    "http": {"vs_bare_httpx"},
    "executors": {"thread_without_share_vs_to_thread", "process_without_share_vs_process_pool"},
}
PROMISED_RESULTS = {
    "throughput": {"bulk_full_lives_per_s", "bulk_full_one_attempt_lives_per_s", "bulk_full_floor_lives_per_s"},
    "latency": {"submit_to_start_p50_ms", "submit_to_start_p99_ms", "bare_commit_p50_ms"},
    "memory": {"growth_mib_at_1m_pending"},
    "cancel": {"inflight_p50_ms", "inflight_p99_ms"},
    "executors": {"inline_us", "thread_us", "process_us", "share_of_50_us", "to_thread_us", "process_pool_us"},
}


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_runs_in_its_quick_form_and_prints_what_is_promised(
    name: str, backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--quick", "--json", "--backend", backend, "--folder", str(tmp_path)]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"name", "backend", "results", "ratios"}
    assert (document["name"], document["backend"]) == (name, backend)
    assert document["ratios"].keys() >= PROMISED_RATIOS.get(name, set())
    assert document["results"].keys() >= PROMISED_RESULTS.get(name, set())
    assert all(math.isfinite(ratio) and ratio > 0 for ratio in document["ratios"].values())
    assert list(tmp_path.iterdir()) == [], "a benchmark deletes its files"


@pytest.mark.parametrize("target", PROFILED)
def test_each_profile_names_the_dearest_places(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", target, "--quick", "--folder", str(tmp_path)]) == 0

    assert "the event loop's thread" in capsys.readouterr().out


def test_the_command_line_works_from_a_clone_and_prints_a_table(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "cancel", "--quick", "--folder", str(tmp_path)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)

    assert done.stdout.startswith("cancel on asyncio\n")
    assert "inflight_p99_ms" in done.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["latency", "memory"], ["latency", "--profile"]])
def test_a_command_line_that_means_nothing_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)

    assert "usage:" in capsys.readouterr().err


def make_setting(folder: Path, **options: Any) -> Setting:
    return Setting(backend="asyncio", folder=folder, **{"is_quick": False, **options})


def test_rounds_take_turns_and_the_first_of_each_is_not_counted(tmp_path: Path) -> None:
    turns: list[str] = []

    def take(who: str) -> float:
        turns.append(who)
        return float(turns.count(who))

    rounds = interleave(make_setting(tmp_path), lambda: take("ours"), lambda: take("floor"))

    assert turns == ["ours", "floor"] * 6
    assert rounds.ours == rounds.floor == [2, 3, 4, 5, 6]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    rounds = Rounds([1, 2, 30, 4, 5], [10, 10, 10, 10, 10])
    report = Report("throughput", "asyncio")

    report.add_ratio("bulk", rounds)

    assert report.ratios == {"bulk": 0.4}
    assert report.results == {"bulk_rounds": [0.1, 0.2, 3.0, 0.4, 0.5]}


def test_a_percentile_is_a_sample_that_was_measured() -> None:
    samples = [float(number) for number in range(100, 0, -1)]

    assert percentile(samples, 0.5) == 50
    assert percentile(samples, 0.99) == 99
    assert percentile([7.0], 0.99) == 7


def test_times_are_medians_of_rounds_with_the_worst_beside_them() -> None:
    told = describe_samples("cancel", [[1.0, 2.0, 3.0], [1.0, 2.0, 4.0], [1.0, 5.0, 90.0]])

    assert told["cancel_p50_ms"] == 2
    assert told["cancel_p99_ms"] == 4
    assert told["cancel_p99_ms_rounds"] == [3, 4, 90]
    assert told["cancel_p99_ms_of_all"] == told["cancel_max_ms"] == 90


@pytest.mark.parametrize(
    ("target", "value", "is_reached"),
    [
        (Target(0.33, 0.28), 0.3, False),
        (Target(0.33, 0.28), 0.33, True),
        (Target(10.0, 10.0, is_floor=False), 9.9, True),
        (Target(10.0, 10.0, is_floor=False), 10.0, False),
    ],
)
def test_a_target_says_whether_it_is_reached(target: Target, value: float, is_reached: bool) -> None:
    assert target.is_reached(value, "asyncio") is is_reached
    assert Target(0.33, 0.28).is_reached(0.3, "trio")


def test_a_database_leaves_nothing_behind(tmp_path: Path) -> None:
    with make_setting(tmp_path).database() as path:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).touch()

    assert list(tmp_path.iterdir()) == []


def test_the_folder_is_where_it_was_asked_for_and_is_deleted(tmp_path: Path) -> None:
    with folder_on_disk(tmp_path) as folder:
        assert folder.parent == tmp_path
    assert not folder.exists()

    with folder_on_disk(None) as folder:
        assert folder.is_dir()
