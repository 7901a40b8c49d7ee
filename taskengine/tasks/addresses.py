"""Which addresses a task may talk to.

A task's URL comes from outside, and the engine often stands where the caller cannot reach: beside a database, a cloud's
metadata service, its own API. So only global unicast addresses are allowed, judged by the table below and not by
`ipaddress.is_global`, whose answer differs from one Python to the next.

The judgement is made at the connection, on every attempt: the name is looked up once, every address it has must pass,
and the connection goes to exactly those addresses. What was checked is what is dialled, so a name that changes its
answer between check and use (DNS rebinding) gains nothing, and odd spellings of an address don't either.
"""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

import anyio
from attrs import frozen

from taskengine.core.errors import DownstreamError, InvalidOption
from taskengine.tasks.urls import normalise_host

Address = IPv4Address | IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host name and a port, returns IP addresses as text; raises OSError where there are none."""

# IANA's special-purpose registries (RFC 6890 and its successors), written out; the words go into the error message.
_DENIED_V4 = (
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local, where cloud metadata lives"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "AMT"),
    ("192.88.99.0/24", "6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved or broadcast"),
)
_DENIED_V6 = (
    ("::1/128", "loopback"),
    ("::/96", "unspecified or IPv4-compatible"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("100::/64", "discard-only"),
    ("2001::/23", "protocol assignments, Teredo among them"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("2620:4f:8000::/48", "AS112"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "unique local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
DENIED: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(network), reason) for network, reason in _DENIED_V4 + _DENIED_V6
)
_GLOBAL_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")


class AddressNotAllowed(DownstreamError):
    """A host has an address that tasks may not talk to."""

    def __init__(self, *, host: str, address: str, reason: str) -> None:
        self.host = host
        self.address = address
        super().__init__(
            f"{host} is {address} ({reason}), which tasks may not call; allow it with allow_hosts=[{host!r}] "
            "if that is wanted",
            kind="exception",
            retryable=False,
        )


def parse_address(text: str) -> Address | None:
    """Read an IP address, IPv4 inside IPv6 unwrapped and a zone id dropped; None for anything else."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def why_denied(address: Address) -> str | None:
    """Tell why an address (as `parse_address` gives it) is denied by default, or None if it is not."""
    for network, reason in DENIED:
        if address.version == network.version and address in network:
            return reason
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST_V6:
        return "not global unicast"
    return None


@frozen
class Allowed:
    """One exception to the table: a name, or a network; on every port or on one."""

    name: str | None
    network: Network | None
    port: int | None

    def covers(self, host: str, port: int, address: Address) -> bool:
        if self.port is not None and self.port != port:
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return self.name == host.removesuffix(".")


def parse_allowed(entry: str) -> Allowed:
    """Read an entry of `allow_hosts`: `host`, `host:port`, an address (`[::1]:port` with a port) or a CIDR network.

    Raises:
        InvalidOption: it is none of these.
    """
    try:
        if "/" in entry:
            return Allowed(None, ipaddress.ip_network(entry), None)
        host, port = _split_port(entry)
        address = parse_address(host)
        if address is not None:
            return Allowed(None, ipaddress.ip_network(address), port)
        return Allowed(normalise_host(host).removesuffix("."), None, port)
    except ValueError:  # InvalidOption is one as well; its words are about a URL
        raise InvalidOption(
            "allow_hosts", f"{entry!r} is not a host, host:port, IP address or CIDR network without host bits"
        ) from None


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(entry)
        port = rest[1:] if rest else None
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    else:
        host, port = entry, None
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(port)
    return host, int(port)


async def resolve_by_system(host: str, port: int) -> list[str]:
    """Ask the system's resolver.

    Cancellation: the caller is free at once; the thread that asks ends when the resolver answers or gives up.
    """
    # As bytes: given text, anyio would put it through IDNA and refuse the odd spellings that libc understands.
    found = await anyio.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class AddressGuard:
    """Turns a host into addresses that may be dialled."""

    def __init__(self, allow_hosts: Iterable[str] = (), resolve: Resolver = resolve_by_system) -> None:
        if isinstance(allow_hosts, str):
            raise InvalidOption("allow_hosts", "expected a list of hosts, got one piece of text")
        self._allowed = tuple(parse_allowed(entry) for entry in allow_hosts)
        self._resolve = resolve

    async def addresses(self, host: str, port: int) -> list[str]:
        """Look a host up, once, and return its addresses if each of them is allowed.

        Raises:
            AddressNotAllowed: one is not.
            OSError: the name has no address, or the resolver failed.
        """
        literal = parse_address(host)
        found = [host] if literal is not None else await self._resolve(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        return [self._check(host, port, text) for text in found]

    def _check(self, host: str, port: int, text: str) -> str:
        address = parse_address(text)
        if address is None:
            raise AddressNotAllowed(host=host, address=text, reason="not an IP address")
        reason = why_denied(address)
        if reason is not None and not any(entry.covers(host, port, address) for entry in self._allowed):
            raise AddressNotAllowed(host=host, address=str(address), reason=reason)
        return str(address)
