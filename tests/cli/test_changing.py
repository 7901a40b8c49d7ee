import pytest

from taskengine.cli.local_downstream import Hold
from tests.cli.conftest import CommandLine, Processes, await_line
from tests.cli.test_worker import Serve

URL = "http://a.example/"


def test_waiting_task_is_cancelled_at_once_and_again(cli: CommandLine) -> None:
    task_id = cli.submit(URL)
    for _ in range(2):
        result = cli("cancel", task_id, "--reason", "no more needed")
        assert (result.code, result.out) == (0, "cancelled\n")
    assert len(cli("history", task_id, "--json").json) == 2


def test_cancelling_what_ended_otherwise_exits_with_3(cli: CommandLine) -> None:
    task_id = cli("run", "http_post", "--arg", "url=http://127.0.0.1:9/", "--json").json["id"]
    result = cli("cancel", task_id)
    assert (result.code, result.out) == (3, "failed\n")


def test_task_of_another_process_is_cancelled_by_its_owner(
    cli: CommandLine, serve: Serve, processes: Processes
) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--allow-host", "127.0.0.1")
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    result = cli("cancel", task_id, "--reason", "enough", "--json")
    assert (result.code, result.json["answer"], result.json["state"]) == (0, "cancelled", "cancelled")
    server.wait_until(lambda seen: seen.disconnects["/"] == 1)
    reasons = {move["trigger"]: move["reason"] for move in cli("history", task_id, "--json").json}
    assert reasons["user:cancel"] == "enough"
    worker.terminate()
    assert worker.wait(30) == 0


def test_cancel_that_nobody_carries_out_in_time_is_requested(
    cli: CommandLine, serve: Serve, processes: Processes
) -> None:
    server = serve({"/": (Hold(60),)})
    task_id = cli.submit(server.url(), "--arg", "timeout=60")
    worker = processes.start("worker", "--allow-host", "127.0.0.1")
    server.wait_until(lambda seen: seen.posts["/"] == 1)
    worker.kill()
    worker.wait(30)
    result = cli("cancel", task_id, "--wait", "0.2")
    assert (result.code, result.out) == (0, "requested\n")
    assert cli("worker", "--drain", "--allow-host", "127.0.0.1").code in (0, 3)
    assert cli.state(task_id)["state"] == "cancelled"
    assert server.seen.posts["/"] == 1


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


def test_worker_says_what_it_works_on(processes: Processes) -> None:
    worker = processes.start("worker")
    await_line(worker, "working on http_post")
    worker.terminate()
    assert worker.wait(30) == 0
