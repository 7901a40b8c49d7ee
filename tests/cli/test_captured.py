import json
import threading

import pytest

from taskengine import State, TaskContext, task
from tests.cli.bodies import complain, report, step
from tests.cli.conftest import BesideMaker, CommandLine, Processes


def test_lines_are_shown_to_people_and_never_obeyed(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(report)
    task_id = there.run(report.bind())
    cli("cancel", task_id)
    first, second, third = cli("logs", task_id).out.splitlines()
    assert first.endswith("Z  1  info     half of it")
    assert second == "    is done\\x1b[2J"
    assert third.endswith("Z  1  warning  odd")


def test_lines_of_all_attempts_or_of_one(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(complain)
    task_id = there.run(complain.bind())
    there.wait_until(task_id, State.FAILED)
    lines = cli("logs", task_id, "--json").json
    assert [(line["attempt"], line["number"]) for line in lines] == [(a, n) for a in (1, 2) for n in (1, 2, 3)]
    assert lines[0].keys() == {"attempt", "number", "at", "level", "message"}
    assert (lines[0]["level"], lines[0]["message"]) == ("INFO", "line 0 of attempt 1")
    second = cli("logs", task_id, "--attempt", "2", "--limit", "2", "--json").json
    assert [line["message"] for line in second] == ["line 1 of attempt 2", "line 2 of attempt 2"]
    # What has ended is followed to its end, which is now.
    assert cli("logs", task_id, "--follow", "--json").json == lines
    assert cli("logs", task_id, "-f", "--attempt", "1", "--json").json == lines[:3]


def test_task_that_logged_nothing_has_no_lines(cli: CommandLine, beside: BesideMaker) -> None:
    task_id = beside(step).run(step.bind())
    assert (cli("logs", task_id).out, cli("logs", task_id, "--json").json) == ("", [])


@pytest.mark.parametrize("form", ["text", "json"])
def test_lines_are_followed_until_the_task_has_ended(
    cli: CommandLine, beside: BesideMaker, processes: Processes, form: str
) -> None:
    gate = threading.Event()

    @task
    def count(ctx: TaskContext) -> None:
        ctx.log("line 0")
        assert gate.wait(60)
        for number in range(1, 251):  # more than one look asks for at first
            ctx.log("line %s", number)

    task_id = beside(count).run(count.bind())
    process = processes.start("logs", task_id, "--follow", *(("--json",) if form == "json" else ()))
    assert process.stdout is not None
    first = process.stdout.readline()
    assert "line 0" in first
    gate.set()
    rest, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    if form == "json":
        messages = [line["message"] for line in json.loads(first + rest)]
    else:
        messages = [line.rpartition("  ")[2] for line in (first + rest).splitlines()]
    assert messages == [f"line {number}" for number in range(251)]
