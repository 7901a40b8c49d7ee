import gzip
import zlib

import pytest

from taskengine.tasks.inflate import ResponseTooLarge, inflate


def _bare_deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (gzip.compress(b"content"), "gzip"),
        (gzip.compress(b"con") + gzip.compress(b"tent"), "gzip"),
        (zlib.compress(b"content"), "deflate"),
        (_bare_deflate(b"content"), "deflate"),
    ],
)
def test_compressed_content_comes_back_whole(body: bytes, coding: str) -> None:
    assert inflate(body, coding, 7) == b"content"
    with pytest.raises(ResponseTooLarge):
        inflate(body, coding, 6)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"not compressed", "gzip"),
        (b"not compressed", "deflate"),
        (gzip.compress(b"content")[:-3], "gzip"),
        (gzip.compress(b"content") + b"behind it", "gzip"),
        (gzip.compress(b"") * 17, "gzip"),
    ],
)
def test_a_broken_body_is_an_error(body: bytes, coding: str) -> None:
    with pytest.raises(ValueError, match=coding):
        inflate(body, coding, 100)
