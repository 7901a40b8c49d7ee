import os
from datetime import UTC, datetime

import pytest

from taskengine import RetryPolicy, State, Timeouts
from tests.cli.bodies import complain, mourn, report, step
from tests.cli.conftest import BesideMaker, CommandLine, await_progress

URL = "http://a.example/"


def test_listing_shows_what_is_not_finished_and_all_on_demand(cli: CommandLine) -> None:
    kept, gone = cli.submit(URL), cli.submit(URL)
    cli("cancel", gone)
    assert [task["id"] for task in cli("ps", "--json").json] == [kept]
    assert [task["id"] for task in cli("ps", "--json", "--all").json] == [gone, kept]
    assert [task["id"] for task in cli("ps", "--json", "--state", "cancelled").json] == [gone]


def test_listing_is_filtered(cli: CommandLine) -> None:
    one = cli.submit(URL, "--tag", "x")
    two = cli("submit", "resize").out.strip()
    assert [task["id"] for task in cli("ps", "--json", "--tag", "x").json] == [one]
    assert [task["id"] for task in cli("ps", "--json", "--name", "resize").json] == [two]
    assert cli("ps", "--json", "--tag", "x", "--name", "resize").json == []


def test_listing_is_limited_and_says_so(cli: CommandLine) -> None:
    cli("submit", "--from", "-", stdin=b'{"url": "http://a.example/"}\n' * 2300)
    assert len(cli("ps", "--json").json) == 100
    result = cli("ps", "--limit", "2299")
    assert (result.out.count("\n"), result.err) == (
        2300,
        "only the newest 2,299 are shown; there are more (--limit N)\n",
    )
    whole = cli("ps", "--limit", "5000", "--json")
    assert (len({task["id"] for task in whole.json}), whole.err) == (2300, "")
    assert cli("ps", "--limit", "0").code == 1


def test_objects_have_the_promised_fields(cli: CommandLine) -> None:
    cli.submit(URL, "--delay", "60")
    (task,) = cli("ps", "--json").json
    assert {"id", "name", "state", "attempt", "charged", "max_attempts", "created_at", "finished_at"} <= task.keys()
    assert (task["state"], task["attempt"], task["charged"], task["finished_at"]) == ("scheduled", 0, 0, None)
    created, due = (datetime.fromisoformat(task[name]) for name in ("created_at", "due_at"))
    assert created.tzinfo == UTC
    assert (due - created).total_seconds() == 60


@pytest.mark.parametrize(("word", "hint"), [("completed", "did you mean 'succeeded'"), ("odd", "states are:")])
def test_state_that_does_not_exist_is_explained(cli: CommandLine, word: str, hint: str) -> None:
    cli.submit(URL)
    result = cli("ps", "--state", word)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert hint in result.err


def test_table_has_one_line_a_task(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    header, line = cli("ps").out.splitlines()
    assert header.split() == ["TASK_ID", "NAME", "BUCKET", "STATUS", "ATTEMPT", "ELAPSED", "PROGRESS", "FAILURE"]
    assert line.split() == [task_id, "http_post", "-", "queued", "0/3", "-", "-", "-"]


def test_status_tells_everything_but_the_arguments(cli: CommandLine) -> None:
    task_id = cli.submit(URL, "--arg", 'headers={"Authorization": "Bearer hush"}', "--label", "a\nlabel\x1b[31m[red]")
    result = cli("status", task_id)
    assert (result.code, result.err) == (0, "")
    assert "label:         a\\nlabel\\x1b[31m[red]\n" in result.out
    whole = cli("status", task_id, "--json")
    assert whole.json["label"] == "a\nlabel\x1b[31m[red]"
    assert "hush" not in result.out + whole.out


def test_status_tells_timeouts_callbacks_deadline_and_progress(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(report, mourn)
    task_id = there.run(
        report.bind(), timeout=Timeouts(attempt=60, idle=0.5e3, total=3600, final=["idle"]), on_failure=mourn
    )
    there.portal.call(await_progress, there.engine, task_id)
    out = cli("status", task_id).out
    assert "timeouts:      attempt 60s, idle 500s (final), total 3600s\n" in out
    assert "callbacks:     on failure: mourn\n" in out
    assert "progress:      3/10 files reading\\x1b[2J\n" in out
    (task,) = cli("ps", "--json").json
    assert task["timeouts"] == {"start": None, "attempt": 60, "idle": 500, "total": 3600, "final": ["idle"]}
    assert task["callbacks"] == {"failure": "mourn"}
    deadline, created = (datetime.fromisoformat(task[name]) for name in ("deadline_at", "created_at"))
    assert (deadline - created).total_seconds() == 3600
    assert f"deadline:      {task['deadline_at']}\n" in out
    said = {"done": 3, "total": 10, "unit": "files", "message": "reading\x1b[2J", "fraction": 0.3}
    assert {key: value for key, value in task["progress"].items() if key != "at"} == said
    assert datetime.fromisoformat(task["progress"]["at"]) >= created
    assert cli("ps").out.splitlines()[1].split()[6:9] == ["3/10", "files", "reading\\x1b[2J"]


def test_status_tells_when_a_task_that_waits_is_due(cli: CommandLine, beside: BesideMaker) -> None:
    later = cli.submit(URL, "--delay", "60")
    assert f"due:           {cli.state(later)['due_at']}\n" in cli("status", later).out
    there = beside(complain)
    failing = there.run(complain.bind(), retry=RetryPolicy(max_attempts=2, base=3600))
    there.wait_until(failing, State.RETRY_WAIT)
    out = cli("status", failing).out
    assert f"due:           {cli.state(failing)['due_at']}\n" in out
    assert "elapsed:       -\n" in out


@pytest.mark.parametrize(("command", "ended"), [("stop", State.STOPPED), ("cancel", State.CANCELLED)])
def test_status_of_what_somebody_ended_tells_who_asked_and_why(
    cli: CommandLine, beside: BesideMaker, command: str, ended: State
) -> None:
    waiting = cli.submit(URL)
    working = beside(step).run(step.bind())
    for task_id in (waiting, working):
        cli(command, task_id, "--reason", "enough", "--actor", "eve")
        assert cli.state(task_id)["state"] == ended
        assert f"asked:         {command} by eve: enough\n" in cli("status", task_id).out
    assert cli("explain", working).out == f"it has ended: {ended.value}, asked by eve: enough\n"


def test_explanation_of_what_was_ended_without_a_body_tells_who_asked(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    cli("cancel", task_id, "--reason", "enough", "--actor", "eve")
    assert cli("explain", task_id).out == "it has ended: cancelled, asked by eve: enough\n"


def test_explanation_of_what_failed_tells_the_failure(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(complain)
    failed = there.run(complain.bind(), max_attempts=1)
    there.wait_until(failed, State.FAILED)
    assert cli("explain", failed).out == "it has ended: failed: ValueError: no\n"
    assert cli("explain", failed, "--json").json["data"] == {"state": "failed", "failure": "ValueError: no"}


def test_absent_parts_of_a_task_are_null_and_left_out(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    task = cli.state(task_id)
    assert [task[name] for name in ("progress", "held", "deadline_at", "timeouts", "wish")] == [None] * 5
    assert task["callbacks"] == {}
    out = cli("status", task_id).out
    assert not any(f"{word}:" in out for word in ("progress", "held by", "deadline", "timeouts", "callbacks", "asked"))


def test_explanation_is_one_sentence_or_data(cli: CommandLine, beside: BesideMaker) -> None:
    task_id = cli.submit(URL)
    assert cli("explain", task_id).out == "no process is running tasks of this store\n"
    beside(report)
    unknown = cli("submit", "resize").out.strip()
    found = cli("explain", unknown, "--json").json
    assert (found["code"], found.keys()) == ("unknown_name", {"code", "sentence", "data"})
    assert found["data"] == {"processes": [os.getpid()]}


def test_status_of_a_task_that_ended_otherwise_exits_with_3(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    assert cli("status", task_id).code == 0
    cli("cancel", task_id)
    assert cli("status", task_id).code == 3
    assert cli("status", task_id, "--json").code == 3


def test_history_is_every_move(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    cli("cancel", task_id, "--reason", "no more\nneeded")
    moves = cli("history", task_id, "--json").json
    assert [(move["version"], move["from"], move["to"], move["trigger"]) for move in moves] == [
        (1, "pending", "queued", "user:submit"),
        (2, "queued", "cancelled", "user:cancel"),
    ]
    assert (moves[1]["actor"], moves[1]["reason"]) == ("cli", "no more\nneeded")
    lines = cli("history", task_id).out.splitlines()
    assert lines[0].split() == ["VER", "FROM", "TO", "AT", "TRIGGER", "ACTOR", "REASON"]
    assert lines[2].endswith("user:cancel  cli    no more\\nneeded")


def test_stats_count_by_state_and_name(cli: CommandLine) -> None:
    cli.submit(URL)
    cli("cancel", cli("submit", "resize").out.strip())
    stats = cli("stats", "--json").json
    assert (stats["by_state"]["queued"], stats["by_state"]["cancelled"], stats["by_state"]["failed"]) == (1, 1, 0)
    assert (stats["by_name"]["resize"], stats["submitted"], stats["unfinished"]) == ({"cancelled": 1}, 2, 1)
    out = cli("stats").out
    assert "NAME" in out
    assert "submitted 2" in out
