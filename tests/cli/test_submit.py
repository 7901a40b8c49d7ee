import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskengine import StoreUnavailable
from taskengine.cli import submit
from tests.cli.conftest import CommandLine

URL = "http://a.example/"


def _file(folder: Path, *lines: dict[str, Any] | str) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_one_task_is_submitted_by_its_name(cli: CommandLine) -> None:
    task_id = cli.submit(
        URL, "--arg", 'json={"n": 1}', "--label", "a label", "--tag", "x", "--priority", "-3", "--max-attempts", "7"
    )
    task = cli.state(task_id)
    assert (task["name"], task["state"], task["label"], task["tags"]) == ("http_post", "queued", "a label", ["x"])
    assert (task["priority"], task["max_attempts"], task["charged"]) == (-3, 7, 0)


def test_delayed_task_is_scheduled(cli: CommandLine) -> None:
    assert cli.state(cli.submit(URL, "--delay", "60"))["state"] == "scheduled"


def test_same_key_is_the_same_task(cli: CommandLine) -> None:
    first = cli("submit", "http_post", "--arg", f"url={URL}", "--key", "k", "--json").json
    second = cli("submit", "http_post", "--arg", f"url={URL}", "--key", "k", "--json").json
    assert (first["created"], second["created"]) == (True, False)
    assert first["id"] == second["id"]
    conflict = cli("submit", "http_post", "--arg", "url=http://b.example/", "--key", "k")
    assert (conflict.code, conflict.out) == (1, "")
    assert "use a new key" in conflict.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--arg", "url=ftp://a.example/"), "must begin with http"),
        ((), "url"),
        (("--arg", f"url={URL}", "--arg", "nothing=1"), "nothing"),
        (("--arg", "no equals sign"), "name=value"),
        (("--arg", f"url={URL}", "--arg", f"url={URL}"), "given twice"),
        (("--arg", f"url={URL}", "--delay", "-1"), "delay"),
        (("--arg", f"url={URL}", "--priority", "99999999"), "priority"),
        (("--arg", f"url={URL}", "--max-attempts", "0"), "max_attempts"),
    ],
)
def test_arguments_are_checked_at_submit(cli: CommandLine, arguments: tuple[str, ...], problem: str) -> None:
    result = cli("submit", "http_post", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert problem in result.err


def test_values_are_json_or_else_text_and_never_code(cli: CommandLine, write_module: Callable[[str], str]) -> None:
    module = write_module(
        "import taskengine\n@taskengine.task\ndef echo(**given: object) -> dict[str, object]:\n    return given\n"
    )
    pairs = ("a=1", "b=[true, null]", "c=text", "d=__import__('os').getpid()", "e=", 'f="1"', "g=x=y", "h=NaN")
    result = cli("run", "echo", "--tasks", module, "--json", *(part for pair in pairs for part in ("--arg", pair)))
    assert result.json["result"] == {
        "a": 1,
        "b": [True, None],
        "c": "text",
        "d": "__import__('os').getpid()",
        "e": "",
        "f": "1",
        "g": "x=y",
        "h": "NaN",
    }


def test_name_that_is_not_known_here_is_stored_with_a_word_about_it(cli: CommandLine) -> None:
    result = cli("submit", "resize", "--arg", "path=cat.png")
    assert result.code == 0
    assert "resize is not known here" in result.err
    assert cli.state(result.out.strip())["name"] == "resize"


# --- files ------------------------------------------------------------------------------------------------------


def test_file_is_stored_and_twice_adds_nothing_for_keyed_lines(cli: CommandLine, tmp_path: Path) -> None:
    source = _file(tmp_path, *({"url": URL, "json": n, "idempotency_key": f"k{n}"} for n in range(25)), {"url": URL})
    first = cli("submit", "--from", source, "--json")
    assert (first.code, first.json) == (0, {"submitted": 26, "existing": 0, "rejected": []})
    second = cli("submit", "--from", source, "--json")
    assert (second.code, second.json) == (0, {"submitted": 1, "existing": 25, "rejected": []})
    assert cli("stats", "--json").json["by_state"]["queued"] == 27


def test_bad_lines_are_told_and_good_ones_stored(cli: CommandLine, tmp_path: Path) -> None:
    source = _file(
        tmp_path,
        {"url": URL, "idempotency_key": "taken"},
        "{not json",
        {"url": URL, "unknown": 1},
        {"url": 5},
        "",
        {"url": "ftp://user:secret@a.example/"},
        {"url": URL, "headers": {"Host": "x"}},
        {"url": URL, "delay": -1},
        {"url": "http://b.example/", "idempotency_key": "taken"},
        {"url": URL, "label": "good", "method": "PUT", "body": "x", "timeout": 3, "headers": {"A": "b"}},
    )
    result = cli("submit", "--from", source, "--json")
    assert result.code == 1
    assert (result.json["submitted"], result.json["existing"], result.err) == (2, 0, "")
    rejected = {item["line"]: item["error"] for item in result.json["rejected"]}
    assert list(rejected) == [2, 3, 4, 6, 7, 8, 9]
    assert "secret" not in result.out
    for line, word in ((2, "json"), (3, "unknown"), (4, "url"), (6, "url"), (7, "host"), (8, "delay"), (9, "new key")):
        assert word in rejected[line].lower(), rejected[line]
    assert [task["label"] for task in cli("ps", "--json").json] == ["good", None]


def test_bad_lines_are_lines_of_text_for_people(cli: CommandLine, tmp_path: Path) -> None:
    result = cli("submit", "--from", _file(tmp_path, "x", {"url": URL}))
    assert (result.code, result.out) == (1, "submitted 1, existing 0, rejected 1\n")
    assert result.err.startswith("line 1: not valid JSON")


def test_conflict_in_one_file_costs_only_its_own_line(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "CHUNK", 7)
    lines = [{"url": f"{URL}{n}", "idempotency_key": f"k{n}"} for n in range(20)]
    lines[11] = {"url": f"{URL}else", "idempotency_key": "k3"}
    lines[12] = {"url": f"{URL}else", "idempotency_key": "k10"}
    result = cli("submit", "--from", _file(tmp_path, *lines), "--json").json
    assert (result["submitted"], [item["line"] for item in result["rejected"]]) == (18, [12, 13])


def test_stdin_is_a_file_too(cli: CommandLine) -> None:
    line = json.dumps({"url": URL}).encode()
    assert cli("submit", "--from", "-", stdin=line + b"\r\n" + line).out.startswith("submitted 2,")


def test_lines_of_a_slow_pipe_are_stored_as_they_come(cli: CommandLine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    stored: list[int] = []

    def write() -> None:
        with open(pipe, "wb", buffering=0) as stream:
            stream.write(b'{"url": "http://a.example/"}\n{"url"')
            while not stored:
                _wait_for_task(cli.db, stored)
            stream.write(b': "http://a.example/"}\n')

    writer = threading.Thread(target=write)
    writer.start()
    result = cli("submit", "--from", str(pipe))
    writer.join(30)
    assert (result.out, stored) == ("submitted 2, existing 0, rejected 0\n", [1])


def _wait_for_task(db: Path, stored: list[int]) -> None:
    import apsw

    try:
        ((number,),) = (
            apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READWRITE).execute("SELECT count(*) FROM task").fetchall()
        )
    except apsw.Error:
        return  # The file is being made.
    if number:
        stored.append(int(number))


def test_many_reports_do_not_stay_in_memory(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_SPOOL", 100)
    monkeypatch.setattr(submit, "BLOCK", 64)
    result = cli("submit", "--from", _file(tmp_path, *['{"url": "é"}'] * 50), "--json")
    assert [item["line"] for item in result.json["rejected"]] == list(range(1, 51))


def test_line_longer_than_any_task_is_rejected(cli: CommandLine) -> None:
    data = b'{"url": "' + b"x" * (9 * 1024 * 1024) + b'"}\n{"url": "http://a.example/"}\n'
    result = cli("submit", "--from", "-", "--json", stdin=data).json
    assert result["submitted"] == 1
    assert result["rejected"] == [{"line": 1, "error": "longer than 8,388,608 bytes"}]


def test_missing_file_is_told_and_no_database_made(cli: CommandLine) -> None:
    result = cli("submit", "--from", "nowhere.jsonl")
    assert (result.code, result.err) == (1, "taskengine: cannot read nowhere.jsonl: No such file or directory\n")
    assert not cli.db.exists()


@pytest.mark.parametrize("extra", [("http_post",), ("--arg", "a=1"), ("--key", "k"), ("--tag", "t")])
def test_file_and_options_of_one_task_exclude_each_other(cli: CommandLine, extra: tuple[str, ...]) -> None:
    assert cli("submit", "--from", "-", *extra, stdin=b"").code == 1


def test_store_that_fails_midway_tells_how_far_it_came(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from taskengine import Engine

    monkeypatch.setattr(submit, "CHUNK", 2)
    whole = Engine.submit_many
    calls = iter(range(10))

    async def fail_later(self: Engine, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:
            raise StoreUnavailable("the disk is gone")
        return await whole(self, *arguments, **options)

    monkeypatch.setattr(Engine, "submit_many", fail_later)
    result = cli("submit", "--from", _file(tmp_path, *[{"url": URL}] * 9))
    assert (result.code, result.out) == (1, "")
    assert result.err == "taskengine: the disk is gone; everything up to line 4 was dealt with\n"
