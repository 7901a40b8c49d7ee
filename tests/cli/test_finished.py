import pytest

from tests.cli.conftest import CommandLine

URL = "http://a.example/"
REFUSED = "http://127.0.0.1:9/"
"""The address guard fails it at once."""


def _fail(cli: CommandLine, *arguments: str) -> str:
    task_id = cli.submit(REFUSED, *arguments)
    assert cli("worker", "--drain").code == 3
    return task_id


@pytest.mark.parametrize("keep_key", [False, True])
def test_finished_task_is_requeued_as_a_new_one(cli: CommandLine, keep_key: bool) -> None:
    task_id = cli.submit(URL)
    assert "has not ended" in cli("requeue", task_id).err
    cli("cancel", task_id)
    new = cli("requeue", task_id, "--json", *(("--keep-key",) if keep_key else ())).json
    assert new["requeued_from"] == task_id
    task = cli.state(new["id"])
    assert (task["state"], task["requeued_from"]) == ("queued", task_id)
    assert cli("requeue", task_id).out.strip() not in (task_id, new["id"])


def test_finished_task_is_deleted_and_stays_known_as_such(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    assert cli("delete", task_id).code == 1
    cli("cancel", task_id)
    assert cli("delete", task_id).out == "deleted\n"
    assert "was deleted" in cli("status", task_id).err
    assert cli("delete", task_id, "--json").code == 1


def test_dead_letters_are_listed_until_they_are_requeued(cli: CommandLine) -> None:
    first, second = _fail(cli, "--tag", "x"), _fail(cli)
    cli("cancel", cli.submit(URL))
    assert [task["id"] for task in cli("dead", "--json").json] == [second, first]
    assert [task["id"] for task in cli("dead", "--tag", "x", "--json").json] == [first]
    assert cli("dead", "--name", "resize", "--json").json == []
    result = cli("dead", "--limit", "1")
    assert (len(result.out.splitlines()), "AddressNotAllowed" in result.out) == (2, True)
    assert "only the newest 1 are shown" in result.err
    cli("requeue", first, "--actor", "eve")
    assert [task["id"] for task in cli("dead", "--json").json] == [second]


def test_dead_letters_are_requeued_together_and_only_once(cli: CommandLine) -> None:
    _fail(cli, "--tag", "x")
    _fail(cli, "--tag", "x")
    _fail(cli)
    assert cli("requeue", "--dead", "--tag", "x", "--json").json == {"requeued": 2}
    assert cli("requeue", "--dead", "--name", "http_post").out == "1 requeued\n"
    assert cli("requeue", "--dead").out == "0 requeued\n"
    assert len(cli("ps", "--state", "queued", "--json").json) == 3


@pytest.mark.parametrize("arguments", [(), ("x", "--dead"), ("x", "--tag", "y"), ("--name", "y")])
def test_what_is_to_be_requeued_must_be_said_in_one_way(cli: CommandLine, arguments: tuple[str, ...]) -> None:
    cli.submit(URL)
    result = cli("requeue", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "--dead" in result.err
