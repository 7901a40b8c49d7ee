"""The `Downstream` port over httpx's engine: many small connections, one deadline, one address guard."""

import copy
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

import anyio

from taskengine.core.errors import DownstreamError, InvalidOption
from taskengine.ports import HttpAnswer, HttpRequest
from taskengine.tasks.addresses import AddressGuard, Resolver, resolve_by_system
from taskengine.tasks.urls import Target, parse_url

if TYPE_CHECKING:
    from taskengine.tasks.connection import Connection, Dial

MAX_IDLE = 100
"""Idle connections kept, over all origins."""
KEEPALIVE = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which common servers (Node's, say) close theirs."""

# RFC 9110 section 9.2.2: may be sent again when it is unknown whether the first one was received.
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class _Tls:
    """One TLS context for all connections: making one reads the whole list of authorities, some 20 ms.

    Used from several threads; that two of them make it at once is harmless.
    """

    def __init__(self, verify: bool | ssl.SSLContext) -> None:
        self._verify = verify
        self._context = verify if isinstance(verify, ssl.SSLContext) else None

    def context(self) -> ssl.SSLContext:
        if self._context is None:
            import httpx

            context = httpx.create_ssl_context(verify=self._verify, trust_env=False)
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context


class HttpxDownstream:
    """Carries HTTP exchanges; give it to the engine as `downstream=`.

    Each call in flight has a connection of its own, and connections are kept for the next call to the same origin;
    there are as many as there are calls at once. No proxies, no environment variables, no redirects, no cookies. One
    instance serves one event loop; after `aclose` it may serve another.

    Nothing is logged here, httpx's line with the whole URL included. A program that sets the logger `httpcore` to DEBUG
    sees the headers of answers there (never URLs, nor what was sent); keep it at WARNING where they may hold secrets.

    Args:
        allow_hosts: exceptions to the address guard: `host`, `host:port`, an IP address or a CIDR network. By default
            only global unicast addresses may be called (see `taskengine.tasks.addresses`).
        verify: True to check certificates against certifi's list, False not to check them, or a context of your own.
        max_idle: idle connections kept, over all origins.
        keepalive: seconds that an idle connection is kept.
        resolve: replaces the system's resolver (for tests).
        dial: replaces the TCP connect (for tests).
    """

    def __init__(
        self,
        *,
        allow_hosts: Iterable[str] = (),
        verify: bool | ssl.SSLContext = True,
        max_idle: int = MAX_IDLE,
        keepalive: float = KEEPALIVE,
        resolve: Resolver = resolve_by_system,
        dial: "Dial | None" = None,
    ) -> None:
        # Text is left for the guard to refuse; anything else may be readable only once.
        self._allow_hosts = allow_hosts if isinstance(allow_hosts, str) else tuple(allow_hosts)
        self._resolve = resolve
        self._guard = AddressGuard(self._allow_hosts, resolve)
        self._max_idle = max_idle
        self._keepalive = keepalive
        self._dial = dial
        self._tls = _Tls(verify)
        # The last one used is taken first, so that the others grow old and are closed.
        self._idle: dict[tuple[str, str, int], list[Connection]] = {}
        self._by_age: dict[Connection, None] = {}

    def for_one_call(self, *, system_resolver: Resolver = resolve_by_system) -> Self:
        """Return one with the same settings that keeps no connection: for one call, in whichever event loop.

        It is a shallow copy: a subclass keeps its methods and shares its attributes. There is nothing to close.

        Args:
            system_resolver: what asks the system; a `resolve` of your own is kept.
        """
        other = copy.copy(self)
        other._max_idle = 0
        other._idle = {}
        other._by_age = {}
        if self._resolve is resolve_by_system:
            other._resolve = system_resolver
            other._guard = AddressGuard(self._allow_hosts, system_resolver)
        return other

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send and read the whole answer, as the port says.

        A connection that the peer closed while it was idle is replaced before anything is sent. If it turns out to be
        closed only after the sending, with not a byte of an answer, the request goes out a second time only where its
        method allows that (RFC 9110 section 9.2.2); a POST fails as any broken connection does.

        Raises:
            DownstreamError: no answer, or one that is refused.

        Cancellation: closes the connection, so that the other side sees the disconnect.
        """
        try:
            target = parse_url(request.url)
        except InvalidOption as error:
            raise DownstreamError(str(error), kind="exception", retryable=False) from None
        with anyio.move_on_after(request.timeout):
            return await self._send(request, target)
        # Only our own deadline ends here: a cancellation from outside goes past.
        raise DownstreamError(f"no complete answer within {request.timeout:g} s", kind="timeout_attempt")

    async def _send(self, request: HttpRequest, target: Target) -> HttpAnswer:
        from taskengine.tasks.connection import StaleConnection

        while connection := await self._take_idle(target):
            try:
                answer = await connection.exchange(request, target)
            except StaleConnection:
                continue
            except DownstreamError as error:
                if connection.received or not error.retryable or request.method not in _IDEMPOTENT:
                    raise
                break
            await self._keep(connection)
            return answer
        connection = await self._connect(target)
        answer = await connection.exchange(request, target)
        await self._keep(connection)
        return answer

    async def _connect(self, target: Target) -> "Connection":
        from taskengine.tasks.connection import dial_by_system, open_connection

        try:
            addresses = await self._guard.addresses(target.host, target.port)
        except OSError as error:
            raise DownstreamError(f"cannot find {target.host}: {error.strerror or error}") from error
        return await open_connection(target, addresses, self._dial or dial_by_system, self._tls.context)

    async def _take_idle(self, target: Target) -> "Connection | None":
        while same_origin := self._idle.get(target.origin):
            connection = same_origin[-1]
            self._forget(connection)
            if connection.idle_since + self._keepalive >= anyio.current_time():
                return connection
            await connection.aclose()
        return None

    async def _keep(self, connection: "Connection") -> None:
        now = anyio.current_time()
        if connection.is_reusable:
            connection.idle_since = now
            self._idle.setdefault(connection.origin, []).append(connection)
            self._by_age[connection] = None
        else:
            await connection.aclose()
        while self._by_age:
            oldest = next(iter(self._by_age))
            if len(self._by_age) <= self._max_idle and oldest.idle_since + self._keepalive >= now:
                return
            self._forget(oldest)
            await oldest.aclose()

    def _forget(self, connection: "Connection") -> None:
        del self._by_age[connection]
        same_origin = self._idle[connection.origin]
        same_origin.remove(connection)
        if not same_origin:
            del self._idle[connection.origin]

    async def aclose(self) -> None:
        """Close idle connections. Those of calls in flight are closed when they are done or cancelled."""
        while self._by_age:
            connection = next(iter(self._by_age))
            self._forget(connection)
            await connection.aclose()
