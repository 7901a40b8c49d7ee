"""A scripted Downstream: no network, a log of every call."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import anyio
import anyio.lowlevel
from attrs import field, frozen

from taskengine.core.errors import DownstreamError
from taskengine.ports import HttpAnswer, HttpRequest


@frozen
class Held:
    """A step that waits until the test says so; without an event it waits until it is cancelled."""

    until: anyio.Event | None = None
    then: "Step" = field(default=200)


HANG = Held()
"""Never answers."""

TIMEOUT = DownstreamError("no complete answer in time", kind="timeout_attempt")
"""What a real downstream raises past the request's timeout."""

Step: TypeAlias = "int | HttpAnswer | BaseException | Held | Callable[[HttpRequest], Step | Awaitable[Step]]"
"""One answer: a status, a whole answer, something to raise, a wait, or a function that chooses."""

Script: TypeAlias = "Step | Sequence[Step] | Mapping[str, Step | Sequence[Step]]"


class FakeDownstream:
    """Answers as scripted, and remembers what it was asked.

    ```python
    FakeDownstream()                                        # 200, always
    FakeDownstream([503, 200])                              # in turn; the last step stays
    FakeDownstream({"http://a/": [503, HttpAnswer(status=200, body=b"{}")], "*": 404})     # by URL
    FakeDownstream(lambda request: 200 if request.method == "GET" else TIMEOUT)
    ```

    A sequence is stepped through by call, whichever task makes it; give each task its own URL to script it alone. Use
    one in a single event loop.
    """

    def __init__(self, script: Script = 200) -> None:
        by_url = script if isinstance(script, Mapping) else {"*": script}
        self._script = {url: list(steps) if isinstance(steps, Sequence) else [steps] for url, steps in by_url.items()}
        self.calls: list[HttpRequest] = []
        """Every request, in the order in which they came, answered or not."""
        self.cancelled = 0
        """Calls that were cancelled before their answer."""
        self.in_flight = 0
        self.is_closed = False
        self._changed = anyio.Event()

    def count(self, url: str | None = None) -> int:
        """Return how many calls were made, to one URL or to all."""
        return sum(url is None or call.url == url for call in self.calls)

    def header(self, name: str, url: str | None = None) -> list[str | None]:
        """Return the value of one header in each call, such as `X-Task-Attempt` or `Idempotency-Key`."""
        return [
            next((value for key, value in call.headers if key.lower() == name.lower()), None)
            for call in self.calls
            if url is None or call.url == url
        ]

    async def wait_for_calls(self, number: int, url: str | None = None) -> None:
        """Wait until at least so many calls have come in."""
        while self.count(url) < number:
            await self._changed.wait()

    async def wait_for_cancelled(self, number: int) -> None:
        """Wait until at least so many calls were cancelled."""
        while self.cancelled < number:
            await self._changed.wait()

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Take the next step of the script for this URL.

        Raises:
            DownstreamError: the script says so, or has nothing for this URL.

        Cancellation: counted in `cancelled`.
        """
        self.calls.append(request)
        self.in_flight += 1
        self._notify()
        try:
            await anyio.lowlevel.checkpoint()
            return await self._perform(self._next_step(request.url), request)
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
            self._notify()

    async def _perform(self, step: Step, request: HttpRequest) -> HttpAnswer:
        while True:
            if isinstance(step, HttpAnswer):
                return step
            if isinstance(step, int):
                return HttpAnswer(status=step)
            if isinstance(step, BaseException):
                raise step.with_traceback(None)
            if isinstance(step, Held):
                await (anyio.sleep_forever() if step.until is None else step.until.wait())
                step = step.then
                continue
            chosen = step(request)
            step = await chosen if inspect.isawaitable(chosen) else chosen

    def _next_step(self, url: str) -> Step:
        steps = self._script.get(url) or self._script.get("*")
        if not steps:
            raise DownstreamError(f"the script has nothing for {url}", kind="exception", retryable=False)
        return steps.pop(0) if len(steps) > 1 else steps[0]

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def aclose(self) -> None:
        """Note that it was closed."""
        self.is_closed = True
