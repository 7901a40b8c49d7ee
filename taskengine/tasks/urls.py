"""URLs: one parser for the check at submit and for the sending, so that the two never disagree; and their masking."""

import ipaddress
import re
from urllib.parse import quote, urlsplit

from attrs import frozen

from taskengine.core.errors import InvalidOption

MAX_URL = 8192
"""Characters; more than any server accepts in a request line by default."""

DEFAULT_PORTS = {"http": 80, "https": 443}

_UNUSABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_MASK = "***"
# What may stand in a path and a query as it is; "%" too, because what the caller has escaped stays escaped.
_KEPT = "%/:@!$&'()*+,;=-._~[]|^?"


@frozen(kw_only=True)
class Target:
    """Where a request goes, ready for the wire."""

    scheme: str
    host: str
    """ASCII, lower case; an IPv6 address without brackets."""
    port: int
    path: str
    """Path and query, ASCII, at least "/"."""

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_url(url: object) -> Target:
    """Take a URL apart.

    Odd spellings of an address (`2130706433`, `0x7f.1`, `127.1`) are host names here: what counts is the address that
    they resolve to, and that is judged where the connection is made.

    Raises:
        InvalidOption: not an absolute http or https URL, credentials in it, a host or port that cannot be, characters
            that must be escaped. The message never repeats the URL, which may hold a secret.
    """
    if not isinstance(url, str):
        raise InvalidOption("url", f"expected text, got {type(url).__name__}")
    if len(url) > MAX_URL:
        raise InvalidOption("url", f"longer than {MAX_URL} characters")
    if _UNUSABLE.search(url):
        raise InvalidOption("url", "holds a space, a backslash or a control character; percent-encode it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidOption("url", "the host or port is malformed") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise InvalidOption("url", "must begin with http:// or https://")
    if "@" in parts.netloc:
        raise InvalidOption("url", "holds credentials (user:password@); send them in a header instead")
    if port == 0 or (port is None and parts.netloc.endswith(":")):
        raise InvalidOption("url", "the port must be from 1 to 65535")
    path = quote(parts.path or "/", safe=_KEPT.replace("?", ""))
    if parts.query or "?" in url.partition("#")[0]:
        path += "?" + quote(parts.query, safe=_KEPT)
    return Target(
        scheme=parts.scheme,
        host=_parse_host(parts.netloc, parts.hostname),
        port=port if port is not None else DEFAULT_PORTS[parts.scheme],
        path=path,
    )


def _parse_host(netloc: str, host: str | None) -> str:
    if not host:
        raise InvalidOption("url", "the host is missing")
    if netloc.startswith("["):
        # A zone id ("fe80::1%eth0") names an interface of this machine: nothing that a task may choose.
        try:
            return str(ipaddress.IPv6Address(host)) if "%" not in host else _refuse_host()
        except ValueError:
            _refuse_host()
    return normalise_host(host)


def normalise_host(host: str) -> str:
    """Return a host name in the one form that is compared and sent: ASCII (IDNA), lower case.

    Raises:
        InvalidOption: it cannot be a host name.
    """
    name = host.lower()
    if not name.isascii():
        import idna  # only here: its tables are big, and most names are ASCII

        try:
            name = idna.encode(name, uts46=True).decode("ascii")
        except (idna.IDNAError, UnicodeError):
            _refuse_host()
    labels = name.removesuffix(".").split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        _refuse_host()
    return name


def _refuse_host() -> str:
    raise InvalidOption("url", "the host is not a valid name or address")


def mask_url(url: object) -> str:
    """Return a URL without credentials, query values and fragment, fit for logs and messages; total.

    A secret in the *path* (as some webhook providers have it) can't be told from an ordinary path and stays.
    """
    if not isinstance(url, str):
        return _MASK
    text = "".join(char if char.isprintable() else "\ufffd" for char in url[:MAX_URL])
    head, _, query = text.partition("#")[0].partition("?")
    scheme, slashes, rest = head.partition("://")
    if slashes:
        netloc, slash, path = rest.partition("/")
        host = netloc.rpartition("@")[2]
        # What is no port may be the head of a password that holds a "/" or "?".
        is_plain = host.startswith("[") or re.fullmatch(r"[^:]*(:[0-9]{0,5})?", host)
        head = f"{scheme}://{host}{slash}{path}" if is_plain else f"{scheme}://{_MASK}"
    else:
        head = head.rpartition("@")[2]
    if not query:
        return head
    # A part without "=" may be a bare token: hidden whole.
    return (
        head
        + "?"
        + "&".join(f"{part.partition('=')[0]}={_MASK}" if "=" in part else _MASK for part in query.split("&"))
    )
