import base64
import logging
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from taskengine.core.errors import AttemptFailed, DownstreamError, InvalidOption
from taskengine.core.retry import RetryPolicy, retry_wait
from taskengine.ports import HttpAnswer
from taskengine.tasks import HttpxDownstream, http_post
from taskengine.tasks.http import check_http_call
from taskengine.testing.downstream import TIMEOUT, FakeDownstream, Step
from tests.tasks.calls import call, fail, make_context
from tests.tasks.server import answer, serving

URL = "http://example.com/hook"


# --- what is sent -----------------------------------------------------------------------------------------------


async def test_json_is_sent_as_json_with_the_headers_of_the_task() -> None:
    fake = FakeDownstream()
    ctx = make_context(fake, attempt=3, idempotency_key="order-7")
    await http_post(ctx, URL, json={"ü": [1, None]}, headers={"X-Mine": "yes"})
    (request,) = fake.calls
    headers = {name.lower(): value for name, value in request.headers}
    assert (request.method, request.url, request.body) == ("POST", URL, '{"ü":[1,null]}'.encode())
    assert headers["content-type"] == "application/json"
    assert headers["accept-encoding"] == "identity"
    assert headers["x-mine"] == "yes"
    assert (headers["idempotency-key"], headers["x-task-id"], headers["x-task-attempt"]) == ("order-7", "task-1", "3")
    assert (request.timeout, request.max_bytes) == (5.0, 1024 * 1024)


async def test_bytes_are_sent_as_they_are() -> None:
    fake = FakeDownstream()
    await call(fake, URL, body=b"\x00\xff", method="put", timeout=0.5, headers={"content-type": "image/png"})
    (request,) = fake.calls
    assert (request.method, request.body, request.timeout) == ("PUT", b"\x00\xff", 0.5)
    assert [value for name, value in request.headers if name.lower() == "content-type"] == ["image/png"]


async def test_a_header_of_the_caller_replaces_a_default_in_any_spelling() -> None:
    fake = FakeDownstream()
    await call(fake, URL, json=1, headers={"CONTENT-TYPE": "a/b", "user-agent": "me", "ACCEPT": "c/d"})
    assert fake.header("Content-Type") == ["a/b"]
    assert fake.header("User-Agent") == ["me"]
    assert fake.header("Accept") == ["c/d"]


@pytest.mark.parametrize(
    ("key", "header"),
    [("a key:1", "a key:1"), ("", ""), ("é", "%C3%A9"), ("%C3%A9", "%25C3%25A9"), ("a\r\nX: y", "a%0D%0AX%3A%20y")],
)
async def test_any_idempotency_key_can_be_sent_and_no_two_become_one(key: str, header: str) -> None:
    fake = FakeDownstream()
    await http_post(make_context(fake, idempotency_key=key), URL)
    assert fake.header("Idempotency-Key") == [header]


# --- success ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_2xx_succeeds(status: int) -> None:
    fake = FakeDownstream(HttpAnswer(status=status, headers=(("content-type", "text/plain"),), body="ü".encode()))
    result = await call(fake, URL)
    assert result == {"status": status, "headers": {"content-type": "text/plain"}, "body": "ü"}


async def test_a_body_that_is_no_text_comes_in_base64() -> None:
    result = await call(FakeDownstream(HttpAnswer(status=200, body=b"\xff\x00")), URL)
    assert result["encoding"] == "base64"
    assert base64.b64decode(result["body"]) == b"\xff\x00"


async def test_repeated_headers_are_joined() -> None:
    headers = (("vary", "a"), ("set-cookie", "b=c, d"), ("vary", "e"), ("set-cookie", "f=g"))
    result = await call(FakeDownstream(HttpAnswer(status=200, headers=headers)), URL)
    assert result["headers"] == {"vary": "a, e", "set-cookie": "b=c, d\nf=g"}


async def test_the_facts_for_the_log_are_the_masked_url_and_the_status() -> None:
    ctx = make_context(FakeDownstream(202))
    await http_post(ctx, URL + "?token=canary")
    assert ctx.facts == {"url": URL + "?token=***", "http_status": 202}


# --- failure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(s, False) for s in (301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 413, 422, 451, 499)]
    + [(s, True) for s in (408, 425, 429, 500, 502, 503, 504, 529, 599)],
)
async def test_any_other_status_fails_and_its_class_says_whether_for_good(status: int, retryable: bool) -> None:
    ctx = make_context(FakeDownstream(HttpAnswer(status=status, body=b"because")))
    with pytest.raises(AttemptFailed) as caught:
        await http_post(ctx, URL)
    error = caught.value
    assert (error.kind, error.retryable, error.retry_after) == ("http_status", retryable, None)
    assert error.type_name == f"HTTP {status}"
    assert error.detail == {"status": status, "body": "because"}
    assert ctx.facts["http_status"] == status


async def test_the_head_of_a_long_error_answer_is_kept_and_marked_as_cut() -> None:
    error = await fail(FakeDownstream(HttpAnswer(status=500, body=b"\xff" + b"x" * 5000)), URL)
    assert error.detail == {"status": 500, "body": "\ufffd" + "x" * 2047, "body_is_cut": True}


async def test_where_a_redirect_leads_is_noted_without_its_secrets() -> None:
    headers = (("location", "https://user:canary@example.com/b?token=canary"),)
    error = await fail(FakeDownstream(HttpAnswer(status=302, headers=headers)), URL)
    assert error.detail == {"status": 302, "body": "", "location": "https://example.com/b?token=***"}


POLICY = RetryPolicy(base=0.2, factor=2, cap=8, jitter=0)


@pytest.mark.parametrize("status", [429, 503, 408, 425])
@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("3", 3.0),
        ("1.5", 2.0),
        ("-1", 0.2),
        ("-5", 0.2),
        ("0", 0.2),
        ("", 0.2),
        ("soon", 0.2),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.2),
        ("315360000", 3600.0),
        ("9" * 400, 0.2),
    ],
)
async def test_retry_after_is_honoured_within_reason(status: int, value: str, wait: float) -> None:
    error = await fail(FakeDownstream(HttpAnswer(status=status, headers=(("retry-after", value),))), URL)
    assert retry_wait(POLICY, 1, 0.0, error.retry_after, 3600.0) == wait
    assert error.detail is not None
    assert error.detail["retry_after"] == value[:100]


async def test_retry_after_as_a_date_is_waited_for() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    error = await fail(FakeDownstream(HttpAnswer(status=503, headers=(("retry-after", date),))), URL)
    assert error.retry_after is not None
    assert 80 < error.retry_after <= 90


@pytest.mark.parametrize("status", [400, 500, 302])
async def test_retry_after_means_nothing_with_other_statuses(status: int) -> None:
    error = await fail(FakeDownstream(HttpAnswer(status=status, headers=(("retry-after", "9"),))), URL)
    assert error.retry_after is None


@pytest.mark.parametrize(
    ("step", "kind", "retryable", "type_name"),
    [
        (TIMEOUT, "timeout_attempt", True, "DownstreamError"),
        (DownstreamError("reset"), "connection", True, "DownstreamError"),
        (DownstreamError("odd", kind="exception", retryable=False), "exception", False, "DownstreamError"),
    ],
)
async def test_no_answer_fails_as_the_downstream_says(step: Step, kind: str, retryable: bool, type_name: str) -> None:
    ctx = make_context(FakeDownstream(step))
    with pytest.raises(AttemptFailed) as caught:
        await http_post(ctx, URL)
    error = caught.value
    assert (error.kind, error.retryable, error.type_name) == (kind, retryable, type_name)
    assert "http_status" not in ctx.facts


async def test_refusals_carry_their_own_type_and_are_final() -> None:
    async with serving({"/": answer(200, b"x" * 2_000_000)}) as server:
        allowed = HttpxDownstream(allow_hosts=["127.0.0.1"])
        large = await fail(allowed, server.url("/"))
        denied = await fail(HttpxDownstream(), server.url("/"))
        assert len(server.received) == 1
    assert (large.kind, large.retryable, large.type_name) == ("exception", False, "ResponseTooLarge")
    assert (denied.kind, denied.retryable, denied.type_name) == ("exception", False, "AddressNotAllowed")


async def test_a_redirect_to_the_inside_reaches_nobody_on_any_attempt() -> None:
    async with serving({}) as inside:
        async with serving({"/": answer(302, headers={"Location": inside.url("/latest/user-data")})}) as server:
            downstream = HttpxDownstream(allow_hosts=[f"127.0.0.1:{server.port}"])
            for attempt in (1, 2):
                with pytest.raises(AttemptFailed) as caught:
                    await http_post(make_context(downstream, attempt=attempt), server.url("/"))
                assert (caught.value.kind, caught.value.retryable) == ("http_status", False)
            await downstream.aclose()
        assert inside.connections == 0


# --- the check at submit ----------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("ftp://example.com/", {}, "url"),
    ("http://user:canary@example.com/", {}, "url"),
    (URL, {"headers": {"Host": "canary"}}, "headers"),
    (URL, {"headers": {"A": "canary\r\nB: c"}}, "headers"),
    (URL, {"headers": "canary"}, "headers"),
    (URL, {"method": "CONNECT"}, "method"),
    (URL, {"json": {}, "body": b""}, "body"),
    (URL, {"body": "canary"}, "body"),
    (URL, {"timeout": 0}, "timeout"),
    (URL, {"timeout": -1}, "timeout"),
    (URL, {"timeout": float("nan")}, "timeout"),
    (URL, {"timeout": float("inf")}, "timeout"),
    (URL, {"timeout": 3601}, "timeout"),
    (URL, {"timeout": True}, "timeout"),
    (URL, {"timeout": "5"}, "timeout"),
]


@pytest.mark.parametrize(("url", "arguments", "option"), BAD)
def test_arguments_that_cannot_be_sent_are_refused_at_submit(url: str, arguments: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_http_call(url, **arguments)
    assert caught.value.option == option
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(("url", "arguments", "option"), BAD)
async def test_arguments_that_were_stored_all_the_same_fail_for_good(
    url: str, arguments: dict[str, Any], option: str
) -> None:
    fake = FakeDownstream()
    error = await fail(fake, url, **arguments)
    assert (error.kind, error.retryable, error.type_name) == ("exception", False, "InvalidOption")
    assert fake.calls == []


@pytest.mark.parametrize(
    "arguments",
    [{}, {"json": None}, {"json": []}, {"body": b""}, {"timeout": 0.001}, {"timeout": 3600}, {"headers": {}}],
)
def test_ordinary_arguments_pass(arguments: dict[str, Any]) -> None:
    check_http_call(URL, **arguments)


def test_the_task_is_declared_with_its_backoff_and_its_check() -> None:
    definition = http_post.definition
    assert definition.name == "http_post"
    assert definition.retry == RetryPolicy(base=0.2, factor=2, cap=8)
    assert definition.check is check_http_call
    with pytest.raises(InvalidOption):
        definition.encode_arguments(("gopher://x",), {})
    text = definition.encode_arguments((URL,), {"body": b"\xff", "headers": {"A": "b"}})
    assert definition.decode_arguments(text) == ((URL,), {"body": b"\xff", "headers": {"A": "b"}})


# --- secrets ----------------------------------------------------------------------------------------------------


async def test_no_secret_of_a_call_gets_into_logs_facts_errors_or_tracebacks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "can" + "ary"  # in two parts: a traceback quotes this file
    secrets: dict[str, Any] = {"headers": {"Authorization": f"Bearer {secret}"}, "json": {"password": secret}}
    async with serving({"/ok": answer(200), "/no": answer(500)}) as server:
        downstream = HttpxDownstream(allow_hosts=["127.0.0.1"])
        seen: list[str] = []
        for path in ("/ok", "/no"):
            ctx = make_context(downstream)
            try:
                await http_post(ctx, server.url(path) + f"?token={secret}", **secrets)
            except AttemptFailed as error:
                seen += [str(error), str(error.detail), *traceback.format_exception(error)]
            seen.append(str(ctx.facts))
        for url in (
            f"http://127.0.0.2/?t={secret}",
            f"http://user:{secret}@example.com/",
            f"http://127.0.0.1:1/?{secret}",
        ):
            failed = await fail(downstream, url, **secrets)
            seen += [str(failed), *traceback.format_exception(failed)]
        await downstream.aclose()
    assert len(server.received) == 2
    assert secret not in "".join(seen)
    assert secret not in caplog.text
