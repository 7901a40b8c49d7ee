"""HttpxDownstream against a real server on loopback."""

import gzip
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import anyio
import pytest

from taskengine.core.errors import DownstreamError
from taskengine.ports import Downstream, HttpRequest
from taskengine.tasks import HttpxDownstream, ResponseTooLarge
from taskengine.tasks.connection import HEAD_BYTES
from tests.tasks.server import (
    Handler,
    Unread,
    answer,
    endless,
    gzip_of_zeros,
    hang,
    in_turn,
    raw,
    reset_after,
    serving,
)

OK = answer(200, b"ok")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
async def downstream() -> AsyncIterator[HttpxDownstream]:
    downstream = HttpxDownstream(allow_hosts=["127.0.0.1"])
    yield downstream
    await downstream.aclose()


def ask(
    url: str, method: str = "POST", body: bytes = b"", timeout: float = 10.0, max_bytes: int = 65536
) -> HttpRequest:
    return HttpRequest(method=method, url=url, body=body, timeout=timeout, max_bytes=max_bytes)


async def failure(downstream: HttpxDownstream, request: HttpRequest) -> DownstreamError:
    with pytest.raises(DownstreamError) as caught:
        await downstream.send(request)
    return caught.value


async def test_it_is_a_downstream(downstream: HttpxDownstream) -> None:
    assert isinstance(downstream, Downstream)


@pytest.mark.parametrize("body", [b"", b"content", b"x" * 1_000_000])
@pytest.mark.parametrize("method", ["POST", "PUT", "GET", "DELETE"])
async def test_a_request_arrives_as_it_was_given(downstream: HttpxDownstream, method: str, body: bytes) -> None:
    async with serving({"/a": answer(201, b"made", {"X-Answer": "Zo\xeb"})}) as server:
        request = HttpRequest(
            method=method, url=server.url("/a?b=c#d"), headers=(("X-Asked", "yes"),), body=body, timeout=10
        )
        got = await downstream.send(request)
        (received,) = server.received
    assert (got.status, got.body, dict(got.headers)["x-answer"]) == (201, b"made", "Zo\xeb")
    assert (received.method, received.path, received.body) == (method, "/a?b=c", body)
    assert received.headers["host"] == f"127.0.0.1:{server.port}"
    assert received.headers["x-asked"] == "yes"
    assert not {"cookie", "authorization", "connection", "transfer-encoding"} & received.headers.keys()


@pytest.mark.parametrize("status", [200, 201, 204, 299, 300, 304, 400, 404, 410, 429, 451, 500, 503, 599])
async def test_every_status_is_an_answer(downstream: HttpxDownstream, status: int) -> None:
    async with serving({"/": answer(status)}) as server:
        assert (await downstream.send(ask(server.url("/")))).status == status


async def test_interim_answers_are_passed_over(downstream: HttpxDownstream) -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    async with serving({"/": raw(hint + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")}) as server:
        assert (await downstream.send(ask(server.url("/")))).body == b"ok"


async def test_an_interim_answer_without_end_is_no_answer(downstream: HttpxDownstream) -> None:
    upgrade = raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
    async with serving({"/": upgrade}) as server:
        assert (await failure(downstream, ask(server.url("/")))).kind == "connection"


async def test_head_has_no_body_whatever_its_length_says(downstream: HttpxDownstream) -> None:
    head = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    async with serving({"/": head}) as server:
        for _ in range(2):
            assert (await downstream.send(ask(server.url("/"), "HEAD"))).body == b""
        assert server.connections == 1


# --- redirects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_nobody_follows_it(downstream: HttpxDownstream, status: int) -> None:
    async with serving({"/inside": OK}) as inside:
        async with serving({"/": answer(status, headers={"Location": inside.url("/inside")})}) as server:
            assert (await downstream.send(ask(server.url("/")))).status == status
        assert inside.connections == 0


async def test_proxies_of_the_environment_are_ignored(
    downstream: HttpxDownstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving({"/": OK}) as server, serving({}) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url(""))
        assert (await downstream.send(ask(server.url("/")))).body == b"ok"
        assert proxy.connections == 0


# --- the deadline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler",
    [
        hang,
        endless(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"x", pause=0.02),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", pause=0.02),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", pause=0.02),
        endless(b"HTTP/1.1 500 Oh\r\nContent-Length: 1000\r\n\r\n", b"x", pause=0.02),
    ],
    ids=["silence", "dripping body", "dripping headers", "endless 100", "dripping error"],
)
async def test_the_deadline_is_total_and_the_server_sees_the_disconnect(
    downstream: HttpxDownstream, handler: Handler
) -> None:
    async with serving({"/": handler}) as server:
        error = await failure(downstream, ask(server.url("/"), timeout=0.2))
        assert (error.kind, error.retryable) == ("timeout_attempt", True)
        await server.wait_until(lambda: server.disconnects == 1)


async def test_a_server_that_never_accepts_is_cut_at_the_deadline(downstream: HttpxDownstream) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        port = listener.getsockname()[1]
        error = await failure(downstream, ask(f"http://127.0.0.1:{port}/", timeout=0.2))
    assert error.kind == "timeout_attempt"


async def test_a_cancellation_from_outside_is_no_timeout_and_closes_the_connection(
    downstream: HttpxDownstream,
) -> None:
    ended: list[str] = []

    async def send(url: str) -> None:
        try:
            await downstream.send(ask(url))
        except anyio.get_cancelled_exc_class():
            ended.append("cancelled")
            raise

    async with serving({"/": hang, "/ok": OK}) as server:
        async with anyio.create_task_group() as group:
            group.start_soon(send, server.url("/"))
            await server.wait_until(lambda: len(server.received) == 1)
            group.cancel_scope.cancel()
        assert ended == ["cancelled"]
        await server.wait_until(lambda: server.disconnects == 1)
        assert (await downstream.send(ask(server.url("/ok")))).body == b"ok"
        assert server.connections == 2


async def test_an_outer_deadline_is_left_to_whoever_set_it(downstream: HttpxDownstream) -> None:
    async with serving({"/": hang}) as server:
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.1):
                await downstream.send(ask(server.url("/")))
        await server.wait_until(lambda: server.disconnects == 1)


# --- broken connections -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler",
    [
        reset_after(),
        reset_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
        reset_after(b"HTTP/1.1 200 O"),
        raw(b"", keep=False),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", keep=False),
        raw(CHUNKED + b"a\r\nhalf", keep=False),
        raw(b"\x00\xff garbage\r\n\r\n"),
        raw(b"HTTP/1.1 999999 OK\r\n\r\n"),
        raw(b"SSH-2.0-OpenSSH\r\n", keep=False),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        raw(CHUNKED + b"zz\r\n"),
        answer(200, b"no gzip", {"Content-Encoding": "gzip"}),
    ],
    ids=[
        "reset",
        "reset in body",
        "reset in head",
        "no answer",
        "short body",
        "short chunk",
        "garbage",
        "status",
        "ssh",
        "negative",
        "two",
        "chunk",
        "gzip",
    ],
)
async def test_half_an_answer_is_a_retryable_connection_failure(downstream: HttpxDownstream, handler: Handler) -> None:
    async with serving({"/": handler}) as server:
        error = await failure(downstream, ask(server.url("/")))
        assert (error.kind, error.retryable) == ("connection", True)
        assert server.posts == 1


async def test_nobody_listening_is_a_retryable_connection_failure(downstream: HttpxDownstream) -> None:
    async with serving({}) as server:
        pass
    error = await failure(downstream, ask(server.url("/")))
    assert (error.kind, error.retryable) == ("connection", True)
    assert "cannot connect" in str(error)


async def test_an_answer_before_the_body_was_read_counts(downstream: HttpxDownstream) -> None:
    async with serving({"/": Unread(raw(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n", keep=False))}) as server:
        got = await downstream.send(ask(server.url("/"), body=b"x" * 1000))
    assert got.status == 413


# --- connections kept alive -------------------------------------------------------------------------------------


async def test_calls_in_turn_share_a_connection_and_calls_at_once_do_not(downstream: HttpxDownstream) -> None:
    async with serving({"/": OK}) as server:
        for _ in range(3):
            await downstream.send(ask(server.url("/")))
        assert server.connections == 1
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(downstream.send, ask(server.url("/")))
        assert server.connections == 5


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_idle_connection_that_the_peer_closed_is_replaced_before_anything_is_sent(
    downstream: HttpxDownstream, method: str
) -> None:
    close_after = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", keep=False)
    async with serving({"/": close_after}) as server:
        for number in range(1, 4):
            assert (await downstream.send(ask(server.url("/"), method))).body == b"ok"
            assert len(server.received) == number


@pytest.mark.parametrize(("method", "requests"), [("GET", 3), ("PUT", 3), ("POST", 2)])
@pytest.mark.parametrize("break_off", [raw(b"", keep=False), reset_after()], ids=["closed", "reset"])
async def test_a_reused_connection_that_breaks_without_a_byte_is_tried_again_only_where_that_is_safe(
    downstream: HttpxDownstream, method: str, requests: int, break_off: Handler
) -> None:
    async with serving({"/": in_turn(OK, break_off, OK)}) as server:
        await downstream.send(ask(server.url("/"), method))
        if method == "POST":
            assert (await failure(downstream, ask(server.url("/"), method))).kind == "connection"
        else:
            assert (await downstream.send(ask(server.url("/"), method))).body == b"ok"
        assert len(server.received) == requests


async def test_a_fresh_connection_that_breaks_is_not_tried_again(downstream: HttpxDownstream) -> None:
    async with serving({"/": raw(b"", keep=False)}) as server:
        await failure(downstream, ask(server.url("/"), "GET"))
        assert len(server.received) == 1


@pytest.mark.parametrize(
    "first",
    [
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 500 Poison\r\nContent-Length: 0\r\n\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"),
        raw(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        raw(b"HTTP/1.1 200 OK\r\n\r\nok", keep=False),
    ],
    ids=["more than its length", "connection: close", "HTTP/1.0", "until the end"],
)
async def test_a_connection_that_may_hold_something_else_is_not_used_again(
    downstream: HttpxDownstream, first: Handler
) -> None:
    async with serving({"/": in_turn(first, OK)}) as server:
        for _ in range(2):
            got = await downstream.send(ask(server.url("/")))
            assert (got.status, got.body) == (200, b"ok")
        assert server.connections == 2


async def test_idle_connections_are_bounded_in_number_and_age() -> None:
    async with serving({"/": OK}) as server, serving({"/": OK}) as other:
        downstream = HttpxDownstream(allow_hosts=["127.0.0.1"], max_idle=1)
        await downstream.send(ask(server.url("/")))
        await downstream.send(ask(other.url("/")))
        await downstream.send(ask(other.url("/")))
        await downstream.send(ask(server.url("/")))
        assert (server.connections, other.connections) == (2, 1)
        await downstream.aclose()

        downstream = HttpxDownstream(allow_hosts=["127.0.0.1"], keepalive=-1)
        await downstream.send(ask(server.url("/")))
        await downstream.send(ask(server.url("/")))
        assert server.connections == 4


async def test_an_idle_connection_that_grew_too_old_is_not_used() -> None:
    downstream = HttpxDownstream(allow_hosts=["127.0.0.1"], keepalive=0.01)
    async with serving({"/": OK}) as server:
        await downstream.send(ask(server.url("/")))
        await anyio.sleep(0.02)  # the age is the thing under test
        await downstream.send(ask(server.url("/")))
        assert server.connections == 2
        await downstream.aclose()


# --- sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handler",
    [
        answer(200, b"x" * 101),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000),
        endless(CHUNKED, b"1\r\nx\r\n"),
        endless(CHUNKED, b"ffff\r\n" + b"x" * 65535 + b"\r\n"),
        endless(b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n"),
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        answer(200, gzip.compress(b"x" * 101), {"Content-Encoding": "gzip"}),
        answer(200, zlib.compress(b"x" * 101), {"Content-Encoding": "Deflate"}),
    ],
    ids=["length", "claim", "until the end", "tiny chunks", "chunks", "headers", "100", "gzip", "deflate"],
)
async def test_an_answer_that_is_too_large_is_refused_for_good(downstream: HttpxDownstream, handler: Handler) -> None:
    async with serving({"/": handler}) as server:
        error = await failure(downstream, ask(server.url("/"), max_bytes=100))
    assert isinstance(error, ResponseTooLarge)
    assert (error.kind, error.retryable) == ("exception", False)


async def test_an_answer_of_exactly_the_bound_passes(downstream: HttpxDownstream) -> None:
    async with serving({"/": answer(200, gzip.compress(b"x" * 100), {"Content-Encoding": "gzip"})}) as server:
        assert (await downstream.send(ask(server.url("/"), max_bytes=100))).body == b"x" * 100


@pytest.mark.parametrize(
    ("handler", "body"),
    [
        (answer(503, b"x" * 101), b"x" * 100),
        (endless(b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"), b"x" * 100),
        (answer(503, b"no gzip", {"Content-Encoding": "gzip"}), b"no gzip"),
    ],
    ids=["length", "endless", "not gzip"],
)
async def test_an_error_status_is_not_lost_over_its_page(
    downstream: HttpxDownstream, handler: Handler, body: bytes
) -> None:
    async with serving({"/": handler, "/ok": OK}) as server:
        got = await downstream.send(ask(server.url("/"), max_bytes=100))
        assert got.status == 503
        assert got.body.startswith(body[:7])
        assert len(got.body) <= 100
        assert (await downstream.send(ask(server.url("/ok")))).body == b"ok"


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "unheard-of"])
async def test_a_coding_that_is_not_understood_is_left_as_it_is(downstream: HttpxDownstream, coding: str) -> None:
    async with serving({"/": answer(200, b"\x01\x02", {"Content-Encoding": coding})}) as server:
        assert (await downstream.send(ask(server.url("/")))).body == b"\x01\x02"


@pytest.mark.parametrize("name", ["bomb", "stream", "headers"])
async def test_memory_does_not_jump_whatever_is_sent(downstream: HttpxDownstream, name: str) -> None:
    routes = {
        "/bomb": answer(200, gzip_of_zeros(64 * 1024 * 1024), {"Content-Encoding": "gzip"}),
        "/stream": endless(b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536)),
        "/headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 65536),
    }
    async with serving(routes) as server:
        tracemalloc.start()
        try:
            error = await failure(downstream, ask(server.url("/" + name), max_bytes=1024 * 1024))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert isinstance(error, ResponseTooLarge)
    assert peak < 16 * 1024 * 1024
    assert peak > HEAD_BYTES


# --- other refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["ftp://example.com/", "http://user:canary@127.0.0.1/", "nonsense"])
async def test_a_url_that_cannot_be_called_is_refused(downstream: HttpxDownstream, url: str) -> None:
    error = await failure(downstream, ask(url))
    assert (error.kind, error.retryable) == ("exception", False)
    assert "canary" not in str(error)


async def test_a_header_that_cannot_be_sent_is_refused(downstream: HttpxDownstream) -> None:
    async with serving({"/": OK}) as server:
        request = HttpRequest(method="POST", url=server.url("/"), headers=(("A", "b\r\nX: y"),))
        error = await failure(downstream, request)
        assert (error.kind, error.retryable) == ("exception", False)
        assert server.received == []


def test_httpx_is_loaded_with_the_first_call_only() -> None:
    code = (
        "import sys, taskengine, taskengine.tasks, taskengine.tasks.http, taskengine.tasks.downstream as d;"
        "d.HttpxDownstream(); print([n for n in ('httpx', 'httpcore', 'h11', 'idna', 'trio') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
