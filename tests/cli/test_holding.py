from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import CommandLine, Processes, await_line

URL = "http://127.0.0.1:9/"
"""The address guard fails it as soon as it runs."""


@pytest.mark.parametrize(
    ("scope", "words", "data"),
    [
        ((), "everything", {"scope": "all", "target": None}),
        (("--name", "http_post"), "tasks named http_post", {"scope": "name", "target": "http_post"}),
        (("--tag", "x"), "tasks tagged x", {"scope": "tag", "target": "x"}),
    ],
)
def test_what_is_held_does_not_run_until_it_is_released(
    cli: CommandLine, scope: tuple[str, ...], words: str, data: dict[str, str]
) -> None:
    task_id = cli.submit(URL, "--tag", "x")
    assert cli("hold", *scope, "--reason", "a fire", "--actor", "eve").out == f"held: {words}\n"
    drained = cli("worker", "--drain", "--json")
    assert drained.json["left"] == [{"name": "http_post", "unfinished": 1, "why": "held"}]
    mark = f"{data['scope']}:{data['target'] or ''}"
    assert cli.state(task_id)["held"] == {"actor": "eve", "reason": "a fire", "until": None, "by": mark}
    assert f"held by:       eve with {mark.removesuffix(':')}: a fire\n" in cli("status", task_id).out
    assert "queued (held)" in cli("ps").out
    assert cli("explain", task_id, "--json").json["code"] == f"held_{data['scope']}"
    result = cli("resume", task_id)
    assert (result.code, result.out) == (1, "")
    assert f"`{' '.join(('taskengine release', *scope))}` ends that" in result.err
    assert cli("release", *scope, "--json").json == {**data, "released": True}
    assert cli("release", *scope).out == f"there was no hold of {words}\n"
    assert cli("worker", "--drain").code == 3
    assert cli.state(task_id)["state"] == "failed"


def test_holds_are_listed(cli: CommandLine) -> None:
    cli.submit(URL)
    assert cli("holds", "--json").json == []
    first = cli("hold", "--json").json
    second = cli(
        "hold", "--tag", "[x]", "--reason", "two\nlines", "--until", "2999-01-31T18:00:00+02:00", "--json"
    ).json
    assert first == {"scope": "all", "target": None, "actor": "cli", "reason": None, "until": None}
    assert second["until"] == "2999-01-31T16:00:00.000000Z"
    listed = cli("holds", "--json").json
    assert [{key: value for key, value in hold.items() if key != "created_at"} for hold in listed] == [first, second]
    header, everything, tagged = cli("holds").out.splitlines()
    assert header.split() == ["SCOPE", "TARGET", "ACTOR", "SINCE", "UNTIL", "REASON"]
    assert everything.startswith("all    -       cli    20")
    assert tagged.endswith("2999-01-31 16:00:00.000Z  two\\nlines")
    assert cli("release").out == "released: everything\n"
    assert len(cli("holds", "--json").json) == 1


def test_end_of_a_hold_may_be_seconds_from_now(cli: CommandLine) -> None:
    cli.submit(URL)
    before = datetime.now(UTC)
    until = datetime.fromisoformat(cli("hold", "--until", "+3600", "--json").json["until"])
    assert timedelta(seconds=3600) <= until - before <= timedelta(seconds=3660)
    assert "held: everything, until 20" in cli("hold", "--until", "+1e3").out


@pytest.mark.parametrize(
    ("until", "hint"),
    [
        ("tomorrow", "neither an instant"),
        ("+soon", "neither an instant"),
        ("+1e300", "neither an instant"),
        ("+nan", "neither an instant"),
        ("2999-01-31T18:00:00", "no time zone"),
        ("2001-01-31T18:00:00Z", "is over already"),
    ],
)
def test_end_that_cannot_be_is_explained(cli: CommandLine, until: str, hint: str) -> None:
    cli.submit(URL)
    result = cli("hold", "--until", until)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert hint in result.err
    assert cli("holds", "--json").json == []


@pytest.mark.parametrize("command", ["hold", "release"])
def test_name_and_tag_are_two_holds(cli: CommandLine, command: str) -> None:
    cli.submit(URL)
    assert "give --name or --tag" in cli(command, "--name", "a", "--tag", "b").err


def test_command_that_ends_a_hold_can_be_pasted(cli: CommandLine) -> None:
    task_id = cli.submit(URL, "--tag", "two words")
    cli("hold", "--tag", "two words")
    assert "`taskengine release --tag 'two words'` ends that" in cli("resume", task_id).err


def test_held_tasks_are_listed_whatever_holds_them(cli: CommandLine) -> None:
    alone = cli.submit(URL, "--tag", "a")
    named = cli("submit", "resize").out.strip()
    tagged = cli.submit(URL, "--tag", "a", "--tag", "b")
    free = cli.submit(URL)
    cli("pause", alone)
    cli("hold", "--name", "resize")
    cli("hold", "--tag", "b")

    def held(*arguments: str) -> list[str]:
        return [task["id"] for task in cli("ps", "--held", *arguments, "--json").json]

    assert held() == [tagged, named, alone]
    assert held("--tag", "a") == [tagged, alone]
    assert held("--name", "resize") == [named]
    assert held("--name", "resize", "--tag", "b") == []
    assert held("--limit", "1") == [tagged]
    assert "only the newest 1 are shown" in cli("ps", "--held", "--limit", "1").err
    cli("hold")
    assert held() == [free, tagged, named, alone]
    assert "no --all or --state" in cli("ps", "--held", "--all").err


def test_run_of_a_held_task_says_what_it_waits_for(cli: CommandLine, processes: Processes) -> None:
    cli.submit(URL)
    cli("hold", "--name", "http_post", "--reason", "a fire")
    process = processes.start("run", "http_post", "--arg", f"url={URL}")
    await_line(process, "it will not begin before that ends: tasks named 'http_post' are held by cli: a fire")
    cli("release", "--name", "http_post")
    assert process.wait(60) == 3
