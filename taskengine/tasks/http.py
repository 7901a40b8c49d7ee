"""The HTTP task: one call, judged by its status.

What its twin for threads (`taskengine.tasks.blocking`) shares with it is here: the check of the arguments, the making
of the request, and the verdict on what came of it.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NotRequired, TypedDict
from urllib.parse import quote

import msgspec

from taskengine.context import TaskContext
from taskengine.core.errors import AttemptFailed, DownstreamError, InvalidOption
from taskengine.core.retry import (
    RETRY_AFTER_STATUS,
    RetryPolicy,
    parse_retry_after,
    status_is_retryable,
    status_is_success,
)
from taskengine.defaults import HTTP_TIMEOUT, MAX_HTTP_BYTES
from taskengine.ports import HttpAnswer, HttpRequest
from taskengine.registry import task
from taskengine.tasks.headers import check_headers, check_method
from taskengine.tasks.urls import mask_url, parse_url

MAX_TIMEOUT = 3600.0
"""Seconds; a call that takes longer is better polled for."""

HTTP_RETRY = RetryPolicy(base=0.2, factor=2, cap=8)

_ERROR_HEAD = 2048
"""Bytes of an error answer's body that are kept in the Failure."""


class HttpResult(TypedDict):
    """What a call that succeeded gives; a plain dict."""

    status: int
    headers: dict[str, str]
    """Names in lower case. A repeated header is joined by ", ", `set-cookie` by newlines."""
    body: str
    """Text, or base64 with `encoding` beside it when it is not UTF-8."""
    encoding: NotRequired[Literal["base64"]]


def check_http_call(
    url: object,
    *,
    json: object = None,
    body: object = None,
    method: object = "POST",
    headers: object = None,
    timeout: object = None,
) -> None:
    """Judge the arguments of `http_post` without sending anything; called at submit.

    Raises:
        InvalidOption: naming the argument. Neither the URL nor a header's value is repeated in the message.
    """
    parse_url(url)
    check_method(method)
    if headers is not None:
        check_headers(headers)
    if json is not None and body is not None:
        raise InvalidOption("body", "give either json or body, not both")
    if body is not None and not isinstance(body, bytes):
        raise InvalidOption("body", f"expected bytes, got {type(body).__name__}; for text use text.encode()")
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise InvalidOption("timeout", f"{timeout!r} is not a number of seconds above 0, up to {MAX_TIMEOUT:g}")


@task(retry=HTTP_RETRY, check=check_http_call)
async def http_post(
    ctx: TaskContext,
    url: str,
    *,
    json: object = None,
    body: bytes | None = None,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
) -> HttpResult:
    """Make one HTTP call; any 2xx is a success.

    Sent with it: `Idempotency-Key` (the same on every attempt), `X-Task-Id` and `X-Task-Attempt`.

    Args:
        url: http or https, without credentials in it.
        json: sent as JSON; None sends none.
        body: sent as it is, instead of `json`.
        method: in any case; CONNECT and TRACE are not supported.
        headers: yours; those that belong to the connection or to this library are refused.
        timeout: seconds for the whole exchange, from the look-up of the host to the last byte; default 5.

    Returns:
        `status`, `headers` and `body`, and `"encoding": "base64"` when the body is not UTF-8.

    Raises:
        AttemptFailed: kind `http_status` for any other status (redirects are not followed; 5xx, 408, 425 and 429 are
            retried, not before their Retry-After); `timeout_attempt` past the timeout; `connection` for no answer or
            half an answer; `exception` (not retried) for an answer that is too large, an address that may not be
            called, or arguments that cannot be sent.

    Cancellation: closes the connection; the other side may have acted on the request.
    """
    request = prepare_request(ctx, url, json=json, body=body, method=method, headers=headers, timeout=timeout)
    try:
        answer = await ctx.downstream.send(request)
    except DownstreamError as error:
        raise failure_without_answer(ctx, request, error) from error
    return judge_answer(ctx, request, answer)


def prepare_request(
    ctx: TaskContext,
    url: str,
    *,
    json: object,
    body: bytes | None,
    method: str,
    headers: Mapping[str, str] | None,
    timeout: float | None,
) -> HttpRequest:
    """Make the request that the arguments of `http_post` ask for, and note its URL, masked, among the facts.

    Raises:
        AttemptFailed: not retried; they cannot be sent, though they are stored.
    """
    ctx.facts["url"] = mask_url(url)
    try:
        check_http_call(url, json=json, body=body, method=method, headers=headers, timeout=timeout)
        return _build_request(ctx, url, json, body, method, headers or {}, timeout)
    except InvalidOption as error:
        raise AttemptFailed(str(error), retryable=False, type_name="InvalidOption") from None


def failure_without_answer(ctx: TaskContext, request: HttpRequest, error: DownstreamError) -> AttemptFailed:
    """Return what an exchange without an answer does to the attempt."""
    return AttemptFailed(
        f"{request.method} {ctx.facts['url']}: {error}",
        kind=error.kind,
        retryable=error.retryable,
        type_name=type(error).__name__,
    )


def judge_answer(ctx: TaskContext, request: HttpRequest, answer: HttpAnswer) -> HttpResult:
    """Return the result that an answer is, and note its status among the facts.

    Raises:
        AttemptFailed: kind `http_status`; it is no 2xx.
    """
    ctx.facts["http_status"] = answer.status
    if not status_is_success(answer.status):
        raise _failure(answer, f"{request.method} {ctx.facts['url']}")
    return _result(answer)


def _build_request(
    ctx: TaskContext,
    url: str,
    json: object,
    body: bytes | None,
    method: str,
    headers: Mapping[str, str],
    timeout: float | None,
) -> HttpRequest:
    sent = {
        "User-Agent": "taskengine",
        "Accept": "*/*",
        # Compressed answers would save little and need care; one that comes all the same is inflated within the bound.
        "Accept-Encoding": "identity",
    }
    if json is not None:
        sent["Content-Type"] = "application/json"
        body = msgspec.json.encode(json)
    given = {name.lower() for name in headers}
    sent = {name: value for name, value in sent.items() if name.lower() not in given}
    sent.update(headers)
    sent["Idempotency-Key"] = _as_header(ctx.idempotency_key)
    sent["X-Task-Id"] = _as_header(ctx.task_id)
    sent["X-Task-Attempt"] = str(ctx.attempt)
    return HttpRequest(
        method=method.upper(),
        url=url,
        headers=tuple(sent.items()),
        body=body or b"",
        timeout=HTTP_TIMEOUT if timeout is None else timeout,
        max_bytes=MAX_HTTP_BYTES,
    )


def _as_header(key: str) -> str:
    """Return a key as it is if a header can carry it, else percent-encoded; two keys never become one."""
    if key.isascii() and key.isprintable() and "%" not in key and key.strip() == key:
        return key
    return quote(key, safe="", errors="surrogatepass")


def _failure(answer: HttpAnswer, call: str) -> AttemptFailed:
    head = answer.body[:_ERROR_HEAD]
    detail: dict[str, Any] = {"status": answer.status, "body": head.decode("utf-8", errors="replace")}
    if len(answer.body) > len(head):
        detail["body_is_cut"] = True
    headers = dict(answer.headers)
    if "location" in headers:
        detail["location"] = mask_url(headers["location"])
    retry_after = None
    if "retry-after" in headers:
        detail["retry_after"] = headers["retry-after"][:100]
        if answer.status in RETRY_AFTER_STATUS:
            retry_after = parse_retry_after(headers["retry-after"], datetime.now(UTC))
    return AttemptFailed(
        f"{call} was answered with status {answer.status}",
        kind="http_status",
        retryable=status_is_retryable(answer.status),
        retry_after=retry_after,
        type_name=f"HTTP {answer.status}",
        detail=detail,
    )


def _result(answer: HttpAnswer) -> HttpResult:
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        if name not in headers:
            headers[name] = value
        else:
            # RFC 6265 section 3: cookies hold commas and cannot be folded.
            headers[name] += ("\n" if name == "set-cookie" else ", ") + value
    try:
        return {"status": answer.status, "headers": headers, "body": answer.body.decode("utf-8")}
    except UnicodeDecodeError:
        body = base64.b64encode(answer.body).decode("ascii")
        return {"status": answer.status, "headers": headers, "body": body, "encoding": "base64"}
