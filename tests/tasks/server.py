"""A real server on loopback that behaves as badly as it is told, in the test's own event loop."""

import contextlib
import gzip
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import anyio
from anyio.abc import SocketAttribute, SocketStream
from attrs import define, field, frozen

Handler = Callable[["Server", SocketStream], Awaitable[bool]]
"""Answers one request; True keeps the connection for the next one."""


@frozen
class Received:
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@frozen
class Unread:
    """A handler that gets the connection before the request's body is read."""

    handler: Handler


@define(eq=False)
class Server:
    routes: Mapping[str, Handler | Unread]
    """Path to behaviour; the query is left out of the look-up."""
    port: int = 0
    received: list[Received] = field(factory=list)
    connections: int = 0
    disconnects: int = 0
    """How often a peer went away while a handler was busy with it."""
    _changed: anyio.Event = field(factory=anyio.Event)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def posts(self) -> int:
        return sum(received.method == "POST" for received in self.received)

    def notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(10):
            while not condition():
                await self._changed.wait()

    async def serve(self, stream: SocketStream) -> None:
        self.connections += 1
        async with stream:
            try:
                while await self._serve_one(stream):
                    pass
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
                self.disconnects += 1
            self.notify()

    async def _serve_one(self, stream: SocketStream) -> bool:
        data = b""
        while b"\r\n\r\n" not in data:
            try:
                data += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return False
        head, _, body = data.partition(b"\r\n\r\n")
        request_line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = request_line.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        handler = self.routes[path.partition("?")[0]]
        if not isinstance(handler, Unread):
            while len(body) < int(headers.get("content-length", 0)):
                body += await stream.receive()
        self.received.append(Received(method, path, headers, body))
        self.notify()
        return await (handler.handler if isinstance(handler, Unread) else handler)(self, stream)


@contextlib.asynccontextmanager
async def serving(routes: Mapping[str, Handler | Unread]) -> AsyncIterator[Server]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    server = Server(routes, port=listener.extra(SocketAttribute.local_port))
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.serve)
        yield server
        group.cancel_scope.cancel()


def answer(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Handler:
    lines = {"Content-Length": str(len(body)), **(headers or {})}
    head = f"HTTP/1.1 {status} Word\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return raw(head.encode("latin-1") + b"\r\n" + body)


def raw(data: bytes, *, keep: bool = True) -> Handler:
    """Send bytes as they are."""

    async def handle(server: Server, stream: SocketStream) -> bool:
        await stream.send(data)
        return keep

    return handle


def in_turn(*handlers: Handler) -> Handler:
    """Another behaviour at each request, the last one again and again."""
    left = list(handlers)

    async def handle(server: Server, stream: SocketStream) -> bool:
        return await (left.pop(0) if len(left) > 1 else left[0])(server, stream)

    return handle


async def hang(server: Server, stream: SocketStream) -> bool:
    """Never answer; notice the disconnect."""
    while True:
        await stream.receive()


def endless(head: bytes, part: bytes, pause: float = 0.0) -> Handler:
    """Send a head, then one part for ever."""

    async def handle(server: Server, stream: SocketStream) -> bool:
        await stream.send(head)
        while True:
            await stream.send(part)
            await anyio.sleep(pause)

    return handle


def reset_after(data: bytes = b"") -> Handler:
    """Send some bytes, then a RST."""

    async def handle(server: Server, stream: SocketStream) -> bool:
        if data:
            await stream.send(data)
        sock = stream.extra(SocketAttribute.raw_socket)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return handle


def gzip_of_zeros(size: int) -> bytes:
    return gzip.compress(bytes(size))
