"""A small HTTP server on loopback for the demo: it answers as scripted and remembers who called."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import define, field, frozen

MAX_HEAD = 64 * 1024
MAX_BODY = 1024 * 1024

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}


@frozen
class Hold:
    """An answer that is long in coming: 200 after so many seconds, unless the caller goes away first."""

    seconds: float


Answer = int | Hold


@define(eq=False)
class LocalDownstream:
    """What the server has seen. Made by `serving`."""

    script: Mapping[str, Sequence[Answer]]
    """For each path its answers in turn; the last one stays."""
    port: int = 0
    posts: Counter[str] = field(factory=Counter)
    """Requests received, by path."""
    disconnects: Counter[str] = field(factory=Counter)
    """Callers that went away while they were held, by path."""
    _changed: anyio.Event = field(factory=anyio.Event)

    def url(self, path: str) -> str:
        """Return the address of a path."""
        return f"http://127.0.0.1:{self.port}{path}"

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was seen makes `condition` true."""
        while not condition():
            await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _serve(self, stream: SocketStream) -> None:
        async with stream:
            buffered = BufferedByteReceiveStream(stream)
            try:
                while True:
                    path = await self._receive(buffered)
                    status = await self._answer(path, stream)
                    head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Answer')}\r\nContent-Length: 0\r\n\r\n"
                    await stream.send(head.encode())
            except (anyio.EndOfStream, anyio.IncompleteRead, anyio.DelimiterNotFound):
                pass  # The caller has no more to ask.
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # It went away in the middle, which a kill -9 does as well.

    async def _receive(self, stream: BufferedByteReceiveStream) -> str:
        head = (await stream.receive_until(b"\r\n\r\n", MAX_HEAD)).decode("latin-1")
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length", "0")
        await stream.receive_exactly(min(int(length), MAX_BODY) if length.isdigit() else 0)
        return request.split(" ")[1] if request.count(" ") == 2 else "/"

    async def _answer(self, path: str, stream: SocketStream) -> int:
        answers = self.script.get(path, (404,))
        answer = answers[min(self.posts[path], len(answers) - 1)]
        self.posts[path] += 1
        self._notify()
        if isinstance(answer, int):
            return answer
        with anyio.move_on_after(answer.seconds):
            try:
                while True:
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                self.disconnects[path] += 1
                self._notify()
                raise anyio.EndOfStream from None
        return 200


@asynccontextmanager
async def serving(script: Mapping[str, Sequence[Answer]]) -> AsyncIterator[LocalDownstream]:
    """Serve on a free port of 127.0.0.1 until the block is left."""
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    server = LocalDownstream(script, port=listener.extra(SocketAttribute.local_port))
    async with listener, anyio.create_task_group() as connections:
        connections.start_soon(listener.serve, server._serve)
        try:
            yield server
        finally:
            connections.cancel_scope.cancel()
