import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.core.errors import InvalidOption
from taskengine.tasks.urls import MAX_URL, mask_url, parse_url


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://example.com", "example.com", "/"),
        ("HTTP://Example.COM:80/a", "example.com", "/a"),
        ("https://example.com:443/", "example.com", "/"),
        ("https://example.com:8443?q", "example.com:8443", "/?q"),
        ("http://example.com/a/../b?x=1&y=%20#part", "example.com", "/a/../b?x=1&y=%20"),
        ("http://bücher.de/ü?ü=é", "xn--bcher-kva.de", "/%C3%BC?%C3%BC=%C3%A9"),
        ("http://[2606:4700::1111]:81/", "[2606:4700::1111]:81", "/"),
        ("http://example.com./", "example.com.", "/"),
        ("http://2130706433/", "2130706433", "/"),
        ("http://a_b.example/?", "a_b.example", "/?"),
    ],
)
def test_a_url_is_taken_apart_for_the_wire(url: str, authority: str, path: str) -> None:
    target = parse_url(url)
    assert (target.authority, target.path) == (authority, path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "unix:///run/docker.sock",
        "http+unix://x/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http://:80/",
        "http://?q",
        "http://user:canary@example.com/",
        "http://canary@example.com/",
        "http://@example.com/",
        "http://example.com:0/",
        "http://example.com:/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:canary/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com/\r\nX: y",
        "http://example.com/\x00",
        "http://example.com/\ud800",
        "http://example.com\\@127.0.0.1/",
        "http://[::1/",
        "http://[nonsense]/",
        "http://[fe80::1%25eth0]/",
        "http://-example.com/",
        "http://a..b/",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 130 + "com/",
        "http://ex%61mple.com/",
        "http://\u2028/",
        "http://xn--\u00fc/",
        "http://example.com/" + "a" * MAX_URL,
        None,
        7,
        b"http://example.com/",
    ],
)
def test_a_url_that_cannot_be_called_is_refused_without_being_repeated(url: object) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_url(url)
    assert "canary" not in str(caught.value)


@given(st.text())
def test_parsing_any_text_gives_a_target_or_a_clear_refusal(text: str) -> None:
    try:
        target = parse_url("http://" + text)
    except InvalidOption:
        return
    assert target.path.isascii()
    assert target.authority.isascii()
    assert not set(target.path + target.authority) & set(" \r\n\0")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("http://example.com/a", "http://example.com/a"),
        ("http://user:canary@example.com:81/a", "http://example.com:81/a"),
        ("https://example.com/a?token=canary&page=canary#canary", "https://example.com/a?token=***&page=***"),
        ("https://example.com/?canary", "https://example.com/?***"),
        ("http://user:can/canary@example.com/", "http://***"),
        ("http://[::1]:8/x", "http://[::1]:8/x"),
        ("user:canary@example.com", "example.com"),
        ("http://h/\r\n\x1b[31m", "http://h/\ufffd\ufffd\ufffd[31m"),
        (None, "***"),
    ],
)
def test_masking_removes_what_may_be_secret(url: object, masked: str) -> None:
    assert mask_url(url) == masked


@given(st.text(alphabet="abc:/@?#&=[]%1", max_size=40))
def test_masking_is_total_and_leaves_no_query_value(text: str) -> None:
    masked = mask_url("http://host/?k=canary&" + text)
    assert "canary" not in masked
