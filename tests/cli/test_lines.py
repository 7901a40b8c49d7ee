import contextlib
import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.cli import lines
from taskengine.cli.lines import BadLine, numbered_lines, read_line


def _cut(blocks: list[bytes]) -> list[tuple[int, bytes | None]]:
    left = [block for block in blocks if block]

    async def read() -> bytes:
        return left.pop(0) if left else b""

    async def collect() -> list[tuple[int, bytes | None]]:
        return [line async for batch in numbered_lines(read) for line in batch]

    return anyio.run(collect)


@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"\xef", b"\n")), max_size=6))
def test_lines_do_not_depend_on_how_the_stream_is_cut(blocks: list[bytes]) -> None:
    whole = b"".join(blocks)
    expected = [(number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()]
    assert _cut(blocks) == expected
    assert _cut([whole[at : at + 1] for at in range(len(whole))]) == expected


def test_byte_order_mark_and_blank_lines_are_no_tasks() -> None:
    assert _cut([b'\xef\xbb\xbf{"a": 1}\r\n\r\n \n{}']) == [(1, b'{"a": 1}\r'), (4, b"{}")]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_line_that_is_too_long_is_named_and_those_behind_it_are_read(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    whole = b"a\n" + b"x" * 50 + b"\nb\n" + b"y" * 50
    assert _cut([whole[at : at + size] for at in range(0, len(whole), size)]) == [
        (1, b"a"),
        (2, None),
        (3, b"b"),
        (4, None),
    ]


def test_line_becomes_a_call_with_only_what_was_given() -> None:
    submission = read_line(b'{"url": "http://a.example/", "json": {"n": 1}, "delay": 5, "tags": ["a", "b"]}')
    assert submission.call.name == "http_post"
    assert (submission.call.args, dict(submission.call.kwargs)) == (("http://a.example/",), {"json": {"n": 1}})
    assert (submission.options.delay, submission.options.tags) == (5.0, ("a", "b"))


def test_text_body_becomes_utf_8() -> None:
    submission = read_line('{"url": "http://a.example/", "body": "é", "method": "PUT"}'.encode())
    assert dict(submission.call.kwargs) == {"body": "é".encode(), "method": "PUT"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{bad", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[1]", "Expected `object`"),
        (b"{}", "missing required field `url`"),
        (b'{"url": 1}', "$.url"),
        (b'{"url": "http://a.example/", "retries": 3}', "unknown field `retries`"),
        (b'{"url": "http://a.example/", "tags": "a"}', "$.tags"),
        (b'{"url": "http://a.example/", "json": NaN}', "not valid JSON"),
        (b'{"url": "http://a.example/", "body": "\\ud800"}', "not valid JSON"),
        (b'{"url": "http://a.example/", "json": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
    ],
)
def test_bad_line_says_why(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine) as caught:
        read_line(line)
    assert reason in str(caught.value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_no_json_value_breaks_the_reading(value: Any) -> None:
    for document in (value, {"url": value}, {"url": "http://a.example/", "json": value, "headers": value}):
        with contextlib.suppress(BadLine):
            read_line(json.dumps(document).encode())
