from typing import Any

import pytest

from taskengine.core.errors import InvalidOption
from taskengine.tasks.headers import check_headers, check_method


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer abc"},
        {"X-Note": "a b\tc"},
        {"X-Name": "Zoë"},
        {"X-Empty": ""},
        {"User-Agent": "me", "content-type": "text/plain", "Accept-Encoding": "gzip"},
    ],
)
def test_ordinary_headers_pass(headers: dict[str, str]) -> None:
    check_headers(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"": "x"},
        {"a b": "x"},
        {"a:": "x"},
        {"ä": "x"},
        {"a\r\nb": "x"},
        {1: "x"},
        {"A": "canary\r\nX-Evil: 1"},
        {"A": "canary\n"},
        {"A": "canary\x00"},
        {"A": "canary\x7f"},
        {"A": " canary"},
        {"A": "canary "},
        {"A": "canary\u2028"},
        {"A": "canary\ud800"},
        {"A": 1},
        {"A": None},
        {"A": "1", "a": "2"},
        {f"A{n}": "" for n in range(101)},
        {"A": "x" * 20_000},
        ["A"],
        "A: b",
    ],
)
def test_headers_that_must_not_be_sent_are_refused_without_their_value(headers: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        check_headers(headers)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["Host", "HOST", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive"])
def test_headers_that_frame_the_exchange_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        check_headers({name: "x"})


@pytest.mark.parametrize("name", ["TE", "Trailer", "Upgrade", "Expect", "Proxy-Authorization", "proxy-x"])
def test_headers_of_the_connection_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        check_headers({name: "x"})


@pytest.mark.parametrize("name", ["webhook-id", "Webhook-Signature", "X-Task-Id", "x-task-attempt", "Idempotency-Key"])
def test_headers_that_are_ours_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        check_headers({name: "x"})


@pytest.mark.parametrize("method", ["POST", "get", "PATCH", "M-SEARCH"])
def test_ordinary_methods_pass(method: str) -> None:
    check_method(method)


@pytest.mark.parametrize("method", ["", "A B", "POST\r\n", "connect", "TRACE", "É", "A" * 33, None, 1])
def test_methods_that_cannot_be_sent_are_refused(method: object) -> None:
    with pytest.raises(InvalidOption):
        check_method(method)
