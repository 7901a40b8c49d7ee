"""One connection to one origin, carrying one HTTP/1.1 exchange at a time.

httpx's own engine, httpcore, speaks the protocol here; httpx's client and httpcore's pool are left out. The pool costs
more the more calls are in flight (with 100 it is slower than the calls themselves), and cookies, redirects, proxies,
netrc and the log line with the whole URL are nothing that a task may have. This module is imported when the first
connection is made, because httpcore is slow to load.
"""

import contextlib
import select
import socket
import ssl
from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import Never

import anyio
import anyio.lowlevel
import h11
import httpcore
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSStream

from taskengine.core.errors import DownstreamError
from taskengine.core.retry import status_is_success
from taskengine.ports import HttpAnswer, HttpRequest
from taskengine.tasks.inflate import INFLATED_CODINGS, ResponseTooLarge, inflate
from taskengine.tasks.urls import Target

Dial = Callable[[str, int], Awaitable[ByteStream]]
"""Connects to an IP address and port; raises OSError."""

HEAD_BYTES = 64 * 1024
"""Status line, headers and all 1xx answers together."""
# Small, because httpcore goes through the 1xx answers of one read without a pause: 4 KiB of them take some 10 ms.
_HEAD_READ = 4 * 1024
# A body in tiny chunks makes a long loop without a wait in it, and the program has other things to do.
_CHUNKS_PER_TURN = 64
_NEXT_ADDRESS_AFTER = 0.25
"""Seconds that an address has to answer before the next one is tried beside it (RFC 8305 section 8)."""


class StaleConnection(Exception):
    """The peer closed this idle connection before anything was sent on it."""


class _EnoughRead(Exception):
    """We want no more of this answer."""


class WireStream(httpcore.AsyncNetworkStream):
    """What httpcore reads from and writes to: a byte stream that counts, and that puts head and body in one write."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._socket: socket.socket | None = stream.extra(SocketAttribute.raw_socket, None)
        self._corked: bytes | None = None
        self._expects_body = False
        self._must_be_alive = False
        self.received = 0
        """Bytes since `begin`."""
        self.in_head = True
        self.is_enough = False
        """Set to have the next read end the exchange."""

    def begin(self, *, expects_body: bool, is_reused: bool) -> None:
        """Start counting for an exchange."""
        self.received = 0
        self.in_head = True
        self.is_enough = False
        self._corked = None
        self._expects_body = expects_body
        self._must_be_alive = is_reused

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self.is_enough:
            raise _EnoughRead
        if self.in_head:
            if self.received >= HEAD_BYTES:
                raise ResponseTooLarge("head", HEAD_BYTES)
            max_bytes = min(max_bytes, _HEAD_READ)
        try:
            data = await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise httpcore.ReadError(_reason(error, "the connection broke while reading")) from error
        self.received += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if self._must_be_alive:
            # Data or the end of the stream on an idle connection: either way the peer is done with it.
            if self._is_readable():
                raise StaleConnection
            self._must_be_alive = False
        if self._expects_body:
            self._expects_body = False
            self._corked = bytes(buffer)
            return
        if self._corked is not None:
            buffer, self._corked = self._corked + buffer, None
        try:
            await self._stream.send(buffer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise httpcore.WriteError(_reason(error, "the connection broke while writing")) from error

    def _is_readable(self) -> bool:
        if self._socket is None:
            return False
        if self._socket.fileno() < 0:
            return True
        if not hasattr(select, "poll"):
            return bool(select.select([self._socket], [], [], 0)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    async def aclose(self) -> None:
        await self._stream.aclose()


def _reason(error: BaseException, otherwise: str) -> str:
    for candidate in (error, error.__cause__):
        if isinstance(candidate, OSError) and candidate.strerror:
            return candidate.strerror
    return otherwise


class Connection:
    """An open connection; `exchange` until `is_reusable` says no, then `aclose`."""

    def __init__(self, target: Target, stream: ByteStream) -> None:
        self.origin = target.origin
        self.idle_since = 0.0
        self._wire = WireStream(stream)
        origin = httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port)
        self._http = httpcore.AsyncHTTP11Connection(origin=origin, stream=self._wire)
        self._uses = 0

    @property
    def received(self) -> int:
        """Bytes read in the current or last exchange."""
        return self._wire.received

    @property
    def is_reusable(self) -> bool:
        if not self._http.is_idle():
            return False
        # Bytes behind the end of the answer (a wrong Content-Length) would be taken for the next answer. httpcore has
        # no public word for them; a version without this attribute fails a test, and is safe meanwhile.
        state = getattr(self._http, "_h11_state", None)
        return isinstance(state, h11.Connection) and state.trailing_data == (b"", False)

    async def exchange(self, request: HttpRequest, target: Target) -> HttpAnswer:
        """Send a request and read the whole answer.

        Raises:
            StaleConnection: nothing was sent.
            DownstreamError: no answer, or one that is refused.

        Cancellation: closes the connection. So does every error.
        """
        try:
            self._wire.begin(expects_body=bool(request.body), is_reused=self._uses > 0)
            self._uses += 1
            answer = await self._http.handle_async_request(self._to_wire(request, target))
            self._wire.in_head = False
            return await self._read_answer(request, answer)
        except BaseException as error:
            await self.aclose()
            if isinstance(error, httpcore.NetworkError | httpcore.ProtocolError):
                _raise_translated(error)
            raise

    def _to_wire(self, request: HttpRequest, target: Target) -> httpcore.Request:
        headers = [(b"Host", target.authority.encode())]
        headers += [(name.encode("ascii"), value.encode("latin-1")) for name, value in request.headers]
        if request.body or request.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
            headers.append((b"Content-Length", b"%d" % len(request.body)))
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        return httpcore.Request(request.method.encode("ascii"), url, headers=headers, content=request.body)

    async def _read_answer(self, request: HttpRequest, answer: httpcore.Response) -> HttpAnswer:
        headers = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in answer.headers)
        # What an error says is kept in part at most: its status must not be lost over the size of its page.
        is_wanted_whole = status_is_success(answer.status)
        named = dict(headers)
        length = named.get("content-length", "")
        if is_wanted_whole and request.method != "HEAD" and length.isdigit() and int(length) > request.max_bytes:
            raise ResponseTooLarge("body", request.max_bytes)
        body, is_whole = await self._read_body(answer, request.max_bytes)
        if not is_whole and is_wanted_whole:
            raise ResponseTooLarge("body", request.max_bytes)
        await answer.aclose()
        coding = named.get("content-encoding", "").strip().lower()
        if body and coding in INFLATED_CODINGS:
            body = _inflate_answer(body, coding, request.max_bytes, is_wanted_whole)
        return HttpAnswer(status=answer.status, headers=headers, body=body)

    async def _read_body(self, answer: httpcore.Response, max_bytes: int) -> tuple[bytes, bool]:
        """Return the body, or its first `max_bytes`, and whether that is all of it."""
        assert isinstance(answer.stream, AsyncIterable)
        chunks: list[bytes] = []
        size = count = 0
        # Never left halfway: httpcore reads in nested generators, and one that is dropped unfinished is finalised by
        # the garbage collector, with a warning on trio. So the wire ends the loop, from below.
        with contextlib.suppress(_EnoughRead):
            async for chunk in answer.stream:
                if size <= max_bytes:
                    chunks.append(chunk)
                size += len(chunk)
                self._wire.is_enough = size > max_bytes
                count += 1
                if count % _CHUNKS_PER_TURN == 0:
                    await anyio.lowlevel.cancel_shielded_checkpoint()
        return b"".join(chunks)[:max_bytes], size <= max_bytes

    async def aclose(self) -> None:
        """Close at once.

        Cancellation: shielded; closing sends nothing and waits for nobody.
        """
        with anyio.CancelScope(shield=True):
            await self._http.aclose()


def _inflate_answer(body: bytes, coding: str, max_bytes: int, is_wanted_whole: bool) -> bytes:
    try:
        return inflate(body, coding, max_bytes)
    except ResponseTooLarge:
        if is_wanted_whole:
            raise
    except ValueError as error:
        if is_wanted_whole:
            raise DownstreamError(f"the answer cannot be read: {error}") from error
    return body


def _raise_translated(error: Exception) -> Never:
    cause = error.__cause__
    if isinstance(cause, h11.RemoteProtocolError) and cause.error_status_hint == 431:
        raise ResponseTooLarge("head", HEAD_BYTES) from error
    if isinstance(error, httpcore.LocalProtocolError):
        raise DownstreamError(f"the request cannot be sent: {error}", kind="exception", retryable=False) from error
    raise DownstreamError(f"no complete answer: {error}") from error


async def dial_by_system(address: str, port: int) -> ByteStream:
    """Open a TCP connection."""
    return await anyio.connect_tcp(address, port)


async def open_connection(
    target: Target, addresses: Sequence[str], dial: Dial, tls: Callable[[], ssl.SSLContext]
) -> Connection:
    """Connect to the first of `addresses` that answers, with TLS for https; the certificate must fit the *name*.

    Raises:
        DownstreamError: none answered, or the TLS handshake failed.

    Cancellation: closes what was opened.
    """
    try:
        stream = await _dial_any(addresses, target.port, dial)
    except OSError as error:
        raise DownstreamError(f"cannot connect to {target.authority}: {_reason(error, str(error))}") from error
    if target.scheme == "https":
        stream = await _start_tls(stream, target, tls())
    return Connection(target, stream)


async def _start_tls(stream: ByteStream, target: Target, context: ssl.SSLContext) -> ByteStream:
    try:
        return await TLSStream.wrap(
            stream,
            server_side=False,
            hostname=target.host.removesuffix("."),
            ssl_context=context,
            standard_compatible=False,
        )
    except BaseException as error:
        await anyio.aclose_forcefully(stream)
        if isinstance(error, OSError | anyio.EndOfStream | anyio.BrokenResourceError):
            raise DownstreamError(f"no TLS with {target.authority}: {str(error) or 'it hung up'}") from error
        raise


async def _dial_any(addresses: Sequence[str], port: int, dial: Dial) -> ByteStream:
    if len(addresses) == 1:
        return await dial(addresses[0], port)
    won: list[ByteStream] = []
    errors: list[OSError] = []

    async def attempt(address: str, failed: anyio.Event) -> None:
        try:
            stream = await dial(address, port)
        except OSError as error:
            errors.append(error)
            failed.set()
            return
        if won:
            await anyio.aclose_forcefully(stream)
        else:
            won.append(stream)
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            for address in addresses:
                failed = anyio.Event()
                group.start_soon(attempt, address, failed, name=f"dial {address}")
                with anyio.move_on_after(_NEXT_ADDRESS_AFTER):
                    await failed.wait()
    except BaseException:
        for stream in won:
            await anyio.aclose_forcefully(stream)
        raise
    if not won:
        raise errors[0]
    return won[0]
