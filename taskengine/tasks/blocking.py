"""HTTP for sync bodies: a call that blocks its thread, and that a stop or a cancel really ends.

A thread cannot be cancelled, so a call that merely blocks in it would go on after its task was said to be cancelled.
Here the exchange runs in an event loop of its own, inside the calling thread. The loop looks at the stop flag every
`POLL_SECONDS` and cancels the exchange, which closes the connection; only then does the body end. A loop lives for one
call, so there is nothing to close afterwards, and no connection is kept for the next one.

One thing cannot be ended from inside: the C library's look-up of a name. It is made in the calling thread on purpose,
where a helper thread would let the body end while something of it goes on. A look-up that hangs holds the body; the
engine then abandons the thread, and the task is `lost`, which is the truth.
"""

import functools
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from taskengine.context import TaskContext
from taskengine.core.errors import DownstreamError, TaskStopped, UsageError
from taskengine.eventloop import is_on_loop
from taskengine.ports import Downstream, HttpAnswer, HttpRequest
from taskengine.registry import task
from taskengine.tasks.addresses import Resolver, resolve_by_system
from taskengine.tasks.downstream import HttpxDownstream
from taskengine.tasks.http import (
    HTTP_RETRY,
    HttpResult,
    check_http_call,
    failure_without_answer,
    judge_answer,
    prepare_request,
)

if TYPE_CHECKING:
    from taskengine.tasks.connection import Dial

POLL_SECONDS = 0.05
"""How often a call in flight looks whether it is to end."""


class BlockingDownstream:
    """Carries HTTP exchanges for sync bodies, with the guards of `HttpxDownstream`.

    Usable from any number of threads at once. Each call opens a connection and closes it; there is nothing to close.

    Args:
        allow_hosts: exceptions to the address guard, as in `HttpxDownstream`.
        verify: how certificates are checked, as in `HttpxDownstream`.
        resolve: replaces the system's resolver (for tests).
        dial: replaces the TCP connect (for tests).
        through: carries the calls in place of the options above, which do not count then. Of an `HttpxDownstream` the
            settings are used and never its connections. Of any other the `send` is called in an asyncio loop of the
            calling thread, a new one for each call, and in several threads at once; it must bear that.
    """

    def __init__(
        self,
        *,
        allow_hosts: Iterable[str] = (),
        verify: bool | ssl.SSLContext = True,
        resolve: Resolver = resolve_by_system,
        dial: "Dial | None" = None,
        through: Downstream | None = None,
    ) -> None:
        if through is None:
            through = HttpxDownstream(allow_hosts=allow_hosts, verify=verify, resolve=resolve, dial=dial)
        self._through = through

    def send(self, request: HttpRequest, *, is_cancelled: Callable[[], bool]) -> HttpAnswer:
        """Send and read the whole answer; blocks the thread.

        Args:
            request: its timeout bounds the whole exchange, except that the system's look-up of a name cannot be
                interrupted: a timeout that passes meanwhile takes effect when the resolver is done.
            is_cancelled: whether the call is to end, such as `lambda: ctx.is_stop_requested`; asked before anything is
                sent and then every `POLL_SECONDS`.

        Raises:
            TaskStopped: `is_cancelled` said so. The connection is closed; the other side may have acted on the request.
            DownstreamError: no answer, or one that is refused.
            UsageError: this thread runs an event loop, which the call would block.
        """
        if is_on_loop():
            raise UsageError("a blocking call would block this thread's event loop; await HttpxDownstream.send there")
        if is_cancelled():
            raise TaskStopped
        import asyncio  # Late: a program on trio may never need it.

        # With a factory, because the runner would else change which loop this thread calls its own.
        with _no_loop_inherited(), asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            answer = runner.run(self._send(request, is_cancelled))
        if answer is None:
            raise TaskStopped
        return answer

    async def _send(self, request: HttpRequest, is_cancelled: Callable[[], bool]) -> HttpAnswer | None:
        """Return the answer, or None if the call was cancelled; in the private loop."""
        answer: HttpAnswer | None = None
        error: BaseException | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, is_cancelled, group.cancel_scope, name="watch the stop flag")
            downstream = self._through
            if isinstance(downstream, HttpxDownstream):
                downstream = downstream.for_one_call(system_resolver=_resolver(is_cancelled, group.cancel_scope))
            try:
                answer = await downstream.send(request)
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as raised:  # past the group, which would wrap it
                error = raised
            group.cancel_scope.cancel()
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame
        return answer


async def _watch(is_cancelled: Callable[[], bool], scope: anyio.CancelScope) -> None:
    while not is_cancelled():  # noqa: ASYNC110  # the flag is another thread's, and rings no bell here
        await anyio.sleep(POLL_SECONDS)
    scope.cancel()


def _resolver(is_cancelled: Callable[[], bool], scope: anyio.CancelScope) -> Resolver:
    async def resolve_in_thread(host: str, port: int) -> list[str]:
        found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
        # The flag may have been up for long, and the engine may have let go of this thread: nothing is sent any more.
        if is_cancelled():
            scope.cancel()
        await anyio.lowlevel.checkpoint()
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    return resolve_in_thread


@contextmanager
def _no_loop_inherited() -> Iterator[None]:
    """Hide from anyio that the engine runs in a loop: a body's context variables name it, though not of this thread."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is None:
        yield
        return
    token = sniffio.current_async_library_cvar.set(None)
    try:
        yield
    finally:
        sniffio.current_async_library_cvar.reset(token)


@task(retry=HTTP_RETRY, check=check_http_call, executor="thread")
def http_post_blocking(
    ctx: TaskContext,
    url: str,
    *,
    json: object = None,
    body: bytes | None = None,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    timeout: float | None = None,
) -> HttpResult:
    """Make one HTTP call in a thread or a child process; otherwise as `http_post`, with the same arguments.

    In a thread the call goes the way of the engine's downstream, see `BlockingDownstream(through=...)`. A child process
    has none: there the call goes out with the default guard, under which only public addresses may be called.

    Returns:
        As `http_post`.

    Raises:
        AttemptFailed: as `http_post`.
        TaskStopped: a stop or cancel was requested, and the call has ended.

    Cancellation: closes the connection within some `POLL_SECONDS`; the other side may have acted on the request. A
    look-up of a name that hangs in the C library cannot be ended.
    """
    request = prepare_request(ctx, url, json=json, body=body, method=method, headers=headers, timeout=timeout)
    ctx.checkpoint()  # a pause is kept here, before anything is sent
    try:
        answer = _way_out(ctx).send(request, is_cancelled=lambda: ctx.is_stop_requested)
    except TaskStopped:
        ctx.checkpoint()  # knows why
        raise
    except DownstreamError as error:
        raise failure_without_answer(ctx, request, error) from error
    return judge_answer(ctx, request, answer)


def _way_out(ctx: TaskContext) -> BlockingDownstream:
    try:
        downstream = ctx.downstream
    except UsageError:  # a child process has none
        return _default()
    return BlockingDownstream(through=downstream)


@functools.cache
def _default() -> BlockingDownstream:
    return BlockingDownstream()  # one for all calls, for its TLS context
