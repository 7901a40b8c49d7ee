import contextvars
import gc
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
import sniffio
from anyio.abc import SocketAttribute

from taskengine import Engine, MemoryStore, State, TaskStopped
from taskengine.context import TaskContext
from taskengine.core.errors import AttemptFailed, DownstreamError, UsageError
from taskengine.ports import Downstream, HttpAnswer, HttpRequest
from taskengine.signals import Signals
from taskengine.tasks import BlockingDownstream, HttpxDownstream, http_post, http_post_blocking
from taskengine.tasks.http import check_http_call
from taskengine.testing import context
from taskengine.testing.context import RecordingVoice
from taskengine.testing.downstream import HANG, TIMEOUT, FakeDownstream, Step
from tests.tasks.server import Server, answer, endless, hang, serving

T = TypeVar("T")
URL = "http://example.com/hook"
LOCAL = ["127.0.0.1"]


def make_context(
    downstream: Downstream | None,
    *,
    signals: Signals | None = None,
    voice: RecordingVoice | None = None,
    attempt: int = 1,
) -> TaskContext:
    return context.make_context(
        name="http_post_blocking", attempt=attempt, signals=signals, voice=voice, downstream=downstream
    )


def never() -> bool:
    return False


def ask(url: str, *, timeout: float = 10.0, max_bytes: int = 65536, method: str = "POST") -> HttpRequest:
    return HttpRequest(method=method, url=url, timeout=timeout, max_bytes=max_bytes)


async def in_thread(function: Callable[[], T]) -> T:
    """Run it as the engine does: in a thread, with the context variables of the loop."""
    context = contextvars.copy_context()
    return await anyio.to_thread.run_sync(lambda: context.run(function))


async def send(downstream: BlockingDownstream, request: HttpRequest) -> HttpAnswer:
    return await in_thread(lambda: downstream.send(request, is_cancelled=never))


async def failure(downstream: BlockingDownstream, request: HttpRequest) -> DownstreamError:
    with pytest.raises(DownstreamError) as caught:
        await send(downstream, request)
    return caught.value


@pytest.fixture
async def hanging() -> AsyncIterator[Server]:
    routes = {"/": hang, "/slow": endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x", 0.01), "/ok": answer(200)}
    async with serving(routes) as server:
        yield server


# --- the exchange -----------------------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_given_and_the_answer_comes_back() -> None:
    async with serving({"/a": answer(201, b"made", {"X-Answer": "yes"})}) as server:
        request = HttpRequest(method="PUT", url=server.url("/a?b=c"), headers=(("X-Asked", "yes"),), body=b"content")
        got = await send(BlockingDownstream(allow_hosts=LOCAL), request)
        (received,) = server.received
    assert (got.status, got.body, dict(got.headers)["x-answer"]) == (201, b"made", "yes")
    assert (received.method, received.path, received.body) == ("PUT", "/a?b=c", b"content")
    assert received.headers["x-asked"] == "yes"


async def test_the_guards_of_the_async_downstream_hold() -> None:
    async with serving({"/inside": answer(200)}) as inside:
        routes = {
            "/": answer(302, headers={"Location": inside.url("/inside")}),
            "/large": answer(200, b"x" * 70_000),
            "/slow": endless(b"HTTP/1.1 200 OK\r\n\r\n", b"", 0.01),
        }
        async with serving(routes) as server:
            downstream = BlockingDownstream(allow_hosts=[f"127.0.0.1:{server.port}"])
            assert (await send(downstream, ask(server.url("/")))).status == 302
            large = await failure(downstream, ask(server.url("/large")))
            late = await failure(downstream, ask(server.url("/slow"), timeout=0.2))
            denied = await failure(BlockingDownstream(), ask(server.url("/")))
        assert inside.connections == 0
    assert (type(large).__name__, large.retryable) == ("ResponseTooLarge", False)
    assert (late.kind, late.retryable) == ("timeout_attempt", True)
    assert (type(denied).__name__, denied.retryable) == ("AddressNotAllowed", False)


async def test_the_answer_of_the_system_resolver_is_guarded_and_asked_for_in_the_calling_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[threading.Thread] = []

    def getaddrinfo(host: bytes, port: int, **_: Any) -> list[Any]:
        asked.append(threading.current_thread())
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", port))]

    def call() -> None:
        for downstream in (BlockingDownstream(), BlockingDownstream(through=HttpxDownstream())):
            with pytest.raises(DownstreamError, match=r"10\.0\.0\.1 \(private\)"):
                downstream.send(ask("http://example.com/"), is_cancelled=never)
        assert asked == [threading.current_thread()] * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    await in_thread(call)


async def test_a_name_without_an_address_is_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    error = await failure(BlockingDownstream(), ask("http://nobody.example/"))
    assert (error.kind, error.retryable, str(error)) == ("connection", True, "cannot find nobody.example: no such name")


async def test_a_resolver_of_the_callers_own_is_kept() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await anyio.lowlevel.checkpoint()
        return ["127.0.0.1"]

    async with serving({"/": answer(204)}) as server:
        given = HttpxDownstream(allow_hosts=(host for host in LOCAL), resolve=resolve)
        for downstream in (BlockingDownstream(through=given), BlockingDownstream(allow_hosts=LOCAL, resolve=resolve)):
            assert (await send(downstream, ask(f"http://some.example:{server.port}/"))).status == 204


async def test_calls_in_several_threads_do_not_disturb_each_other() -> None:
    async with serving({"/": answer(200, b"ok"), "/bad": answer(500)}) as server:
        downstream = BlockingDownstream(allow_hosts=LOCAL)
        statuses: list[int] = []

        async def call(path: str) -> None:
            statuses.append((await send(downstream, ask(server.url(path)))).status)

        async with anyio.create_task_group() as group:
            for path in ["/", "/bad"] * 4:
                group.start_soon(call, path)
    assert sorted(statuses) == [200] * 4 + [500] * 4


async def test_settings_are_taken_from_an_async_downstream_and_its_connections_are_not() -> None:
    async with serving({"/": answer(200)}) as server:
        shared = HttpxDownstream(allow_hosts=LOCAL)
        await shared.send(ask(server.url("/")))
        for _ in range(2):
            await send(BlockingDownstream(through=shared), ask(server.url("/")))
        await shared.send(ask(server.url("/")))
        assert server.connections == 3
        await shared.aclose()


async def test_a_subclass_keeps_its_own_way_to_send() -> None:
    class Signing(HttpxDownstream):
        async def send(self, request: HttpRequest) -> HttpAnswer:
            signed = (*request.headers, ("X-Signed", "yes"))
            return await super().send(HttpRequest(method=request.method, url=request.url, headers=signed))

    async with serving({"/": answer(200)}) as server:
        await send(BlockingDownstream(through=Signing(allow_hosts=LOCAL)), ask(server.url("/")))
        assert server.received[0].headers["x-signed"] == "yes"


async def test_the_list_of_authorities_is_read_once_for_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    create = httpx.create_ssl_context

    def counting(**options: Any) -> Any:
        made.append(True)
        return create(**options)

    monkeypatch.setattr(httpx, "create_ssl_context", counting)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, anyio.aclose_forcefully)  # hangs up on everybody
        url = f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/"
        given = HttpxDownstream(allow_hosts=LOCAL)
        for _ in range(2):
            assert "no TLS" in str(await failure(BlockingDownstream(through=given), ask(url)))
        group.cancel_scope.cancel()
    assert made == [True]


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_it_works_where_the_context_names_the_loop_of_another_thread(library: str) -> None:
    def call() -> HttpAnswer:
        sniffio.current_async_library_cvar.set(library)
        try:
            return BlockingDownstream(through=FakeDownstream(204)).send(ask(URL), is_cancelled=never)
        finally:
            assert sniffio.current_async_library_cvar.get() == library

    assert contextvars.copy_context().run(call).status == 204


async def test_on_an_event_loop_it_refuses_to_block_it() -> None:
    fake = FakeDownstream()
    with pytest.raises(UsageError, match="would block this thread's event loop"):
        BlockingDownstream(through=fake).send(ask(URL), is_cancelled=never)
    assert fake.calls == []


def test_what_another_downstream_raises_comes_as_it_is() -> None:
    for error in (ValueError("odd"), TaskStopped("own")):
        with pytest.raises(type(error)) as caught:
            BlockingDownstream(through=FakeDownstream(error)).send(ask(URL), is_cancelled=never)
        assert caught.value is error


# --- the end of a call that was asked to end --------------------------------------------------------------------


def test_a_call_that_is_cancelled_beforehand_sends_nothing() -> None:
    fake = FakeDownstream()
    with pytest.raises(TaskStopped):
        BlockingDownstream(through=fake).send(ask(URL), is_cancelled=lambda: True)
    assert fake.calls == []


@pytest.mark.parametrize("path", ["/", "/slow"])
async def test_a_cancel_closes_the_connection_before_the_call_returns(hanging: Server, path: str) -> None:
    flag = threading.Event()

    def call() -> None:
        with pytest.raises(TaskStopped):
            request = ask(hanging.url(path), timeout=60, max_bytes=1_000_000_000)
            BlockingDownstream(allow_hosts=LOCAL).send(request, is_cancelled=flag.is_set)

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, call)
        await hanging.wait_until(lambda: hanging.posts == 1)
        flag.set()
    await hanging.wait_until(lambda: hanging.disconnects == 1)


async def test_a_call_that_was_cancelled_during_its_look_up_connects_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may have abandoned the thread and called the task lost."""
    flag = threading.Event()

    def getaddrinfo(host: bytes, port: int, **_: Any) -> list[Any]:
        flag.set()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def call(url: str) -> None:
        with pytest.raises(TaskStopped):
            BlockingDownstream(allow_hosts=LOCAL).send(ask(url), is_cancelled=flag.is_set)

    async with serving({"/": answer(200)}) as server:
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        await in_thread(lambda: call(f"http://some.example:{server.port}/"))
        monkeypatch.undo()
        assert server.connections == 0


def test_any_downstream_is_cancelled_in_the_private_loop() -> None:
    fake = FakeDownstream(HANG)
    with pytest.raises(TaskStopped):
        BlockingDownstream(through=fake).send(ask(URL), is_cancelled=lambda: bool(fake.calls))
    assert (fake.cancelled, fake.in_flight, fake.is_closed) == (1, 0, False)


async def test_the_body_is_stopped_with_the_reason(hanging: Server) -> None:
    signals = Signals()
    ctx = make_context(HttpxDownstream(allow_hosts=LOCAL), signals=signals)
    reasons: list[str | None] = []

    def body() -> None:
        with pytest.raises(TaskStopped) as caught:
            http_post_blocking(ctx, hanging.url("/"), timeout=60)
        reasons.append(caught.value.reason)

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, body)
        await hanging.wait_until(lambda: hanging.posts == 1)
        signals.request_stop("changed my mind")
    await hanging.wait_until(lambda: hanging.disconnects == 1)
    assert reasons == ["changed my mind"]


async def test_a_pause_is_kept_before_anything_is_sent() -> None:
    signals, voice, fake = Signals(), RecordingVoice(), FakeDownstream()
    signals.request_pause()
    ctx = make_context(fake, signals=signals, voice=voice)
    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, lambda: http_post_blocking(ctx, URL))
        await anyio.to_thread.run_sync(voice.at_pause.wait)
        assert fake.calls == []
        signals.resume()
    assert len(fake.calls) == 1


async def test_nothing_is_left_behind(hanging: Server) -> None:
    def more_posts_than(posts: int) -> Callable[[], bool]:
        return lambda: hanging.posts > posts

    def end_in_each_way() -> None:
        threads = threading.active_count()
        downstream = BlockingDownstream(allow_hosts=LOCAL)
        assert downstream.send(ask(hanging.url("/ok")), is_cancelled=never).status == 200
        for path in ("/", "/slow"):
            with pytest.raises(TaskStopped):
                downstream.send(ask(hanging.url(path)), is_cancelled=more_posts_than(hanging.posts))
            with pytest.raises(DownstreamError):
                downstream.send(ask(hanging.url(path), timeout=0.1), is_cancelled=never)
        gc.collect()  # what was not closed would warn, and warnings are errors
        assert threading.active_count() == threads

    before = count_open_files()
    await in_thread(end_in_each_way)
    await hanging.wait_until(lambda: count_open_files() <= before)  # the peer's ends are in this process, too


def count_open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


# --- the task ---------------------------------------------------------------------------------------------------

ENDS: list[Step] = [
    200,
    204,
    HttpAnswer(status=200, body=b"\xff\x00"),
    HttpAnswer(status=200, headers=(("set-cookie", "a"), ("set-cookie", "b")), body="ü".encode()),
    301,
    404,
    HttpAnswer(status=503, headers=(("retry-after", "3"),), body=b"x" * 5000),
    TIMEOUT,
    DownstreamError("reset"),
    DownstreamError("odd", kind="exception", retryable=False),
]
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"json": {"ü": 1}, "headers": {"X-Mine": "yes"}, "method": "put", "timeout": 2},
    {"body": b"\xff"},
    {"json": 1, "body": b""},
    {"timeout": -1},
]


@pytest.mark.parametrize("step", ENDS)
async def test_every_end_is_the_one_of_the_async_task(step: Step) -> None:
    await _compare(step, {})


@pytest.mark.parametrize("arguments", ARGUMENTS)
async def test_every_call_is_the_one_of_the_async_task(arguments: dict[str, Any]) -> None:
    await _compare(200, arguments)


async def _compare(step: Step, arguments: dict[str, Any]) -> None:
    ours, theirs = FakeDownstream(step), FakeDownstream(step)
    our_ctx, their_ctx = make_context(ours, attempt=3), make_context(theirs, attempt=3)
    url = URL + "?token=canary"
    try:
        end: Any = await in_thread(lambda: http_post_blocking(our_ctx, url, **arguments))
    except AttemptFailed as error:
        end = _describe(error)
    try:
        expected: Any = await http_post(their_ctx, url, **arguments)
    except AttemptFailed as error:
        expected = _describe(error)
    assert end == expected
    assert ours.calls == theirs.calls
    assert our_ctx.facts == their_ctx.facts


def _describe(error: AttemptFailed) -> tuple[Any, ...]:
    return (str(error), error.kind, error.retryable, error.retry_after, error.type_name, error.detail)


async def test_without_a_downstream_as_in_a_child_process_the_default_guard_holds() -> None:
    async with serving({"/": answer(200)}) as server:
        for _ in range(2):
            with pytest.raises(AttemptFailed) as caught:
                await in_thread(lambda: http_post_blocking(make_context(None), server.url("/")))
            assert caught.value.type_name == "AddressNotAllowed"
        assert server.connections == 0


def test_the_task_is_declared_like_its_twin() -> None:
    ours, theirs = http_post_blocking.definition, http_post.definition
    assert (ours.name, ours.is_async, theirs.is_async) == ("http_post_blocking", False, True)
    assert ours.executor == "thread"  # on the loop itself it would refuse
    assert (ours.retry, ours.max_attempts, ours.check) == (theirs.retry, theirs.max_attempts, check_http_call)
    text = ours.encode_arguments((URL,), {"body": b"\xff", "headers": {"A": "b"}})
    assert ours.decode_arguments(text) == ((URL,), {"body": b"\xff", "headers": {"A": "b"}})


async def test_cancelling_the_task_really_ends_its_call(hanging: Server) -> None:
    downstream = HttpxDownstream(allow_hosts=LOCAL)
    async with Engine(MemoryStore(), tasks=[http_post_blocking], downstream=downstream) as engine:
        handle = await engine.submit(http_post_blocking.bind(hanging.url("/"), timeout=60))
        await hanging.wait_until(lambda: hanging.posts == 1)
        ended = await handle.cancel(reason="changed my mind")
        assert ended.state is State.CANCELLED
        await hanging.wait_until(lambda: hanging.disconnects == 1)
