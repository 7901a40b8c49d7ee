"""Which headers and methods a task may send, judged at submit and not by a crash at the send."""

import re
from collections.abc import Mapping

from taskengine.core.errors import InvalidOption

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
"""Names and values together; servers refuse more than 8 to 32 KiB."""

# RFC 9110 section 5.6.2
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Visible characters of Latin-1 with single blanks or tabs inside: RFC 9110 section 5.5, without its blank edges.
_VALUE = re.compile(r"([\x21-\x7e\xa0-\xff]([\t\x20-\x7e\xa0-\xff]*[\x21-\x7e\xa0-\xff])?)?")

_REFUSED = {
    "host": "it follows from the URL",
    "content-length": "it follows from the body",
    "transfer-encoding": "the framing is not the caller's",
    "connection": "the connection is not the caller's",
    "keep-alive": "the connection is not the caller's",
    "te": "the connection is not the caller's",
    "trailer": "the framing is not the caller's",
    "upgrade": "the connection is not the caller's",
    "expect": "the exchange is one request and one answer",
    "idempotency-key": "it is the task's idempotency key; give that to submit()",
}
_REFUSED_PREFIXES = {
    "proxy-": "no proxy is used",
    "webhook-": "these are for signatures",
    "x-task-": "these tell the other side which task and attempt this is",
}


def check_headers(headers: object) -> None:
    """Refuse headers that are malformed, that would change the framing, or that are ours.

    Raises:
        InvalidOption: naming the header, never its value.
    """
    if not isinstance(headers, Mapping):
        raise InvalidOption("headers", f"expected a mapping of names to values, got {type(headers).__name__}")
    if len(headers) > MAX_HEADERS:
        raise InvalidOption("headers", f"more than {MAX_HEADERS}")
    seen: set[str] = set()
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise InvalidOption("headers", f"{name!r:.100} is not a header name")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise InvalidOption(
                "headers",
                f"the value of {name!r:.100} is not text in Latin-1 without control characters and blank edges",
            )
        lower = name.lower()
        why = _REFUSED.get(lower) or next((w for p, w in _REFUSED_PREFIXES.items() if lower.startswith(p)), None)
        if why is not None:
            raise InvalidOption("headers", f"{name!r:.100} cannot be set: {why}")
        if lower in seen:
            raise InvalidOption("headers", f"{name!r:.100} is given twice, in different spellings")
        seen.add(lower)
        size += len(name) + len(value)
    if size > MAX_HEADER_BYTES:
        raise InvalidOption("headers", f"more than {MAX_HEADER_BYTES} bytes in all")


def check_method(method: object) -> None:
    """Refuse what is no method, and those that are no plain request.

    Raises:
        InvalidOption: it cannot be sent.
    """
    if not isinstance(method, str) or len(method) > 32 or not _TOKEN.fullmatch(method):
        raise InvalidOption("method", f"{method!r:.100} is not an HTTP method")
    if method.upper() in ("CONNECT", "TRACE"):
        raise InvalidOption("method", f"{method} is not supported")
