"""`python -m benchmarks NAME [--backend asyncio|trio] [--json] [--quick]`."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import Report, Setting, folder_on_disk

NAMES = ("throughput", "latency", "backlog", "memory", "cancel", "http", "executors")
PROFILED = ("throughput", "single", "memory", "http")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine beside its floor.")
    parser.add_argument("name", choices=(*NAMES, "all", "profile"))
    parser.add_argument("target", nargs="?", choices=PROFILED, help="what to profile (default: throughput)")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--json", action="store_true", help="print JSON: a document, or for `all` a list of them")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--profile", action="store_true", help="show where the time goes instead of how much it is")
    parser.add_argument("--folder", type=Path, help="where the databases are made; should be on a disk")
    options = parser.parse_args(arguments)
    if options.target is not None and options.name != "profile":
        parser.error("only `profile` takes a target")
    if options.profile and options.name not in PROFILED:
        parser.error(f"--profile goes with {', '.join(PROFILED)}")
    return options


def _run(name: str, options: argparse.Namespace) -> Report:
    with folder_on_disk(options.folder) as folder:
        setting = Setting(backend=options.backend, is_quick=options.quick, folder=folder)
        report: Report = importlib.import_module(f"benchmarks.{name}").run(setting)
        return report


def _profile(target: str, options: argparse.Namespace) -> None:
    from benchmarks.profiling import profile

    with folder_on_disk(options.folder) as folder:
        profile(target, Setting(backend=options.backend, is_quick=options.quick, folder=folder))


def _show(report: Report) -> None:
    print(f"{report.name} on {report.backend}")
    for key, value in report.ratios.items():
        print(f"  {key:44} {value!s:>12}{_verdict(report, key, value)}   (median of the rounds)")
    for key, result in report.results.items():
        shown = "  ".join(f"{part:g}" for part in result) if isinstance(result, list) else f"{result:,}"
        print(f"  {key:44} {shown:>12}{_verdict(report, key, result)}")


def _verdict(report: Report, key: str, value: object) -> str:
    target = report.targets.get(key)
    if target is None or not isinstance(value, int | float):
        return ""
    word = "reached" if target.is_reached(value, report.backend) else "MISSED"
    return f"   {word}: {'at least' if target.is_floor else 'below'} {target.of(report.backend):g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    options = _parse(arguments)
    if options.name == "profile" or options.profile:
        target = options.target or ("throughput" if options.name == "profile" else options.name)
        _profile(target, options)
        return 0
    reports = []
    for name in NAMES if options.name == "all" else (options.name,):
        reports.append(_run(name, options))
        if not options.json:
            _show(reports[-1])
    if options.json:
        documents = [report.as_dict() for report in reports]
        print(json.dumps(documents if options.name == "all" else documents[0], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
