"""HTTP tasks as JSON lines: cutting a stream into lines, and lines into submissions."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from taskengine.core.model import SubmitOptions
from taskengine.handles import Submission
from taskengine.tasks.http import http_post

MAX_LINE = 8 * 1024 * 1024
"""Bytes; more than a task's arguments can have, however they are escaped. A longer line is skipped, not kept."""

_BOM = b"\xef\xbb\xbf"


class HttpLine(msgspec.Struct, forbid_unknown_fields=True):
    """What one line may say; the names are those of `http_post` and of `Engine.submit`."""

    url: str
    json: Any = None
    body: str | None = None
    """Text, sent as UTF-8."""
    method: str | None = None
    headers: dict[str, str] | None = None
    timeout: float | None = None
    idempotency_key: str | None = None
    max_attempts: int | None = None
    priority: int = 0
    delay: float | None = None
    tags: tuple[str, ...] = ()
    label: str | None = None


class BadLine(ValueError):
    """A line is no task; the message says why and never repeats the line, which may hold secrets."""


_decoder = msgspec.json.Decoder(HttpLine)


def read_line(line: bytes) -> Submission[Any]:
    """Turn one line into a submission. URL, headers and options are judged later, by the engine.

    Raises:
        BadLine: it is no JSON object, or has a field that does not exist or is of the wrong type.
    """
    try:
        given = _decoder.decode(line)
        body = given.body.encode() if given.body is not None else None
    except msgspec.ValidationError as error:
        raise BadLine(str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadLine(f"not valid JSON: {error}") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    arguments: dict[str, Any] = {
        "json": given.json,
        "body": body,
        "method": given.method,
        "headers": given.headers,
        "timeout": given.timeout,
    }
    # Only what was given: arguments as given are what an idempotency key stands for.
    call = http_post.bind(given.url, **{name: value for name, value in arguments.items() if value is not None})
    options = SubmitOptions(
        idempotency_key=given.idempotency_key,
        max_attempts=given.max_attempts,
        priority=given.priority,
        delay=given.delay,
        tags=given.tags,
        label=given.label,
    )
    return Submission(call, options)


async def numbered_lines(read: Callable[[], Awaitable[bytes]]) -> AsyncIterator[list[tuple[int, bytes | None]]]:
    """Cut what `read` gives (b"" at the end) into batches of (line number, line), blank lines left out.

    A batch is what one read has completed, so that a slow source's lines are passed on as they come. None stands for
    a line that is longer than MAX_LINE.
    """
    number = 0
    rest = b""
    is_skipping = False
    while True:
        data = await read()
        *lines, rest = (rest + data).split(b"\n")
        if not data and (rest or is_skipping):
            lines.append(rest)
        batch: list[tuple[int, bytes | None]] = []
        for line in lines:
            number += 1
            if number == 1:
                line = line.removeprefix(_BOM)
            if is_skipping or len(line) > MAX_LINE:
                batch.append((number, None))
                is_skipping = False
            elif line.strip():
                batch.append((number, line))
        if len(rest) > MAX_LINE:
            rest, is_skipping = b"", True
        if batch:
            yield batch
        if not data:
            return
