import anyio
import pytest

from taskengine.core.errors import AttemptFailed, DownstreamError
from taskengine.ports import Downstream, HttpAnswer, HttpRequest
from taskengine.tasks import http_post
from taskengine.testing.downstream import HANG, FakeDownstream, Held, Step
from tests.tasks.calls import make_context


def ask(url: str = "http://a/", method: str = "POST") -> HttpRequest:
    return HttpRequest(method=method, url=url, headers=(("X-Task-Attempt", "1"),))


async def test_it_is_a_downstream_that_answers_200() -> None:
    fake = FakeDownstream()
    assert isinstance(fake, Downstream)
    assert await fake.send(ask()) == HttpAnswer(status=200)
    await fake.aclose()
    assert fake.is_closed


async def test_steps_are_taken_in_turn_and_the_last_one_stays() -> None:
    fake = FakeDownstream([503, HttpAnswer(status=201, body=b"x")])
    assert [(await fake.send(ask())).status for _ in range(3)] == [503, 201, 201]


async def test_each_url_has_its_own_script() -> None:
    fake = FakeDownstream({"http://a/": [500, 200], "http://b/": 404})
    assert [(await fake.send(ask(url))).status for url in ("http://a/", "http://b/", "http://a/")] == [500, 404, 200]
    with pytest.raises(DownstreamError, match="nothing for http://c/"):
        await fake.send(ask("http://c/"))
    assert (fake.count(), fake.count("http://a/")) == (4, 2)
    assert fake.header("x-task-attempt", "http://a/") == ["1", "1"]
    assert fake.header("missing") == [None] * 4


async def test_a_function_may_choose_the_step() -> None:
    async def choose(request: HttpRequest) -> Step:
        return DownstreamError("reset") if request.method == "PUT" else 204

    fake = FakeDownstream([lambda request: 201, choose])
    assert (await fake.send(ask())).status == 201
    assert (await fake.send(ask())).status == 204
    with pytest.raises(DownstreamError, match="reset"):
        await fake.send(ask(method="PUT"))


async def test_a_held_answer_waits_for_the_test() -> None:
    go = anyio.Event()
    fake = FakeDownstream(Held(go, then=202))
    answers: list[int] = []

    async def send() -> None:
        answers.append((await fake.send(ask())).status)

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        await fake.wait_for_calls(1)
        assert (answers, fake.in_flight) == ([], 1)
        go.set()
    assert (answers, fake.in_flight) == ([202], 0)


async def test_a_call_that_hangs_is_counted_when_it_is_cancelled() -> None:
    fake = FakeDownstream(HANG)
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(fake.send, ask())
        await fake.wait_for_calls(2)
        assert fake.cancelled == 0
        group.cancel_scope.cancel()
    await fake.wait_for_cancelled(2)
    assert (fake.cancelled, fake.in_flight) == (2, 0)


async def test_an_http_task_runs_on_it() -> None:
    fake = FakeDownstream([503, 200])
    with pytest.raises(AttemptFailed):
        await http_post(make_context(fake, attempt=1), "http://a/")
    assert (await http_post(make_context(fake, attempt=2), "http://a/"))["status"] == 200
    assert fake.header("X-Task-Attempt") == ["1", "2"]
    assert fake.header("Idempotency-Key") == ["key-1", "key-1"]
