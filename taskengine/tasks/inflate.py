"""How large an answer may be, compressed ones included."""

import zlib

from taskengine.core.errors import DownstreamError

INFLATED_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})

_MAX_MEMBERS = 16
"""Parts of one gzip body. Each costs a fresh decompressor, so that a body of empty ones would be an attack."""


class ResponseTooLarge(DownstreamError):
    """The answer is larger than was asked for; the rest was not read."""

    def __init__(self, what: str, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the answer's {what} is larger than {limit} bytes", kind="exception", retryable=False)


def inflate(body: bytes, coding: str, max_bytes: int) -> bytes:
    """Decompress a whole body; never holds more than `max_bytes` (and one byte) of content.

    Args:
        coding: one of `INFLATED_CODINGS`, lower case.

    Raises:
        ResponseTooLarge: there is more content.
        ValueError: the body is not what `coding` says, or is cut off.
    """
    # "deflate" means the zlib format (RFC 9110 section 8.4.1.2), but some servers send the bare stream.
    formats = (zlib.MAX_WBITS, -zlib.MAX_WBITS) if coding == "deflate" else (16 + zlib.MAX_WBITS,)
    for wbits in formats:
        try:
            return _inflate_members(body, wbits, max_bytes)
        except zlib.error as error:
            problem = error
    raise ValueError(f"the {coding} body is broken: {problem}")


def _inflate_members(body: bytes, wbits: int, max_bytes: int) -> bytes:
    content = b""
    for _ in range(_MAX_MEMBERS):
        decompressor = zlib.decompressobj(wbits)
        content += decompressor.decompress(body, max_bytes + 1 - len(content))
        if len(content) > max_bytes:
            raise ResponseTooLarge("decompressed body", max_bytes)
        if not decompressor.eof:
            raise zlib.error("it ends too early")
        body = decompressor.unused_data
        if not body:
            return content
    raise zlib.error(f"it has more than {_MAX_MEMBERS} parts")
