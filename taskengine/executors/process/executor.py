"""Bodies in child processes: for work that needs a processor of its own, that may crash, or that must be endable.

Children are reused, one call at a time, and each is ended with all that it has started. One that was interrupted, that
crashed or that ran out of memory is never reused. Nothing runs here between the calls: a child that waits for its next
call needs nobody, and the spare is started by the call that took the last one.
"""

from collections import deque

import anyio

from taskengine.core.errors import InvalidOption, UsageError
from taskengine.executors.process.body import ProcessBody
from taskengine.executors.process.children import Child
from taskengine.ports import Call


class ProcessExecutor:
    """Runs bodies in child processes; the contract is `ports.Executor`. One child more than bodies run at once.

    Args:
        max_tasks_per_child: calls after which a child is replaced.
        memory_limit: bytes of address space that a child, and each process it starts, may have (RLIMIT_AS); the
            interpreter alone takes some hundred megabytes of it. A body that wants more gets a MemoryError.
        cpu_limit: seconds of processor time that one body may use (RLIMIT_CPU); then the kernel ends the child.
        warm_spare: keep one child ready beyond those that are needed, so that a call need not wait for one to start.

    Raises:
        InvalidOption: a number is none, or not above 0.
    """

    wants_facts = True

    def __init__(
        self,
        *,
        max_tasks_per_child: int = 100,
        memory_limit: int | None = None,
        cpu_limit: int | None = None,
        warm_spare: bool = True,
    ) -> None:
        for option, value in (
            ("max_tasks_per_child", max_tasks_per_child),
            ("memory_limit", 1 if memory_limit is None else memory_limit),
            ("cpu_limit", 1 if cpu_limit is None else cpu_limit),
        ):
            if type(value) is not int or not 0 < value < 2**63:
                raise InvalidOption(option, f"{value!r} is not a whole number above 0")
        self.memory_limit = memory_limit
        self.cpu_limit = cpu_limit
        self._max_tasks_per_child = max_tasks_per_child
        self._warm_spare = warm_spare
        self._idle: deque[Child] = deque()
        """Those used last at the right end, from which they are taken: the fewer are used, the warmer they are."""
        self._spares_to_come = 0
        self._left_behind: list[Child] = []
        """Killed, and not gone yet."""
        self._is_closed = False

    def start(self, call: Call) -> ProcessBody:
        """See `Executor.start`."""
        if call.facts is None:
            raise UsageError("a call for a child process needs its facts")
        return ProcessBody(self, call, call.facts)

    async def aclose(self) -> None:
        """End the idle children, each as a program ends, and within about a second; busy ones end with their body."""
        self._is_closed = True
        idle, self._idle = self._idle, deque()
        left_behind, self._left_behind = self._left_behind, []
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tg:
                for child in idle:
                    tg.start_soon(self._retire, child, name="taskengine child's end")
                for child in left_behind:
                    tg.start_soon(self.kill, child, 0, name="taskengine child's end")

    # --- for the bodies ---

    @property
    def has_idle(self) -> bool:
        """Whether a child waits for a call, as far as is known."""
        return bool(self._idle)

    async def take(self) -> Child:
        """Return a child that is free, or a new one.

        Cancellation: cannot be cancelled; it takes milliseconds.

        Raises:
            OSError: there is none, and none can be started.
        """
        while self._idle:
            child = self._idle.pop()
            if child.is_fit:
                return child
            await self.kill(child, 0)
        return await Child.start()

    async def take_back(self, child: Child) -> None:
        """Keep a child for the next call, if it is fit for one.

        Cancellation: cannot be cancelled; its length is bounded.
        """
        if not child.is_fit:
            await self.kill(child, 0)
        elif self._is_closed or child.calls >= self._max_tasks_per_child:
            await self._retire(child)
        else:
            self._idle.append(child)

    async def kill(self, child: Child, grace: float) -> None:
        """See `Child.kill`."""
        if not await child.kill(grace):
            self._left_behind.append(child)

    async def _retire(self, child: Child) -> None:
        if not await child.retire():
            self._left_behind.append(child)

    def reserve_spare(self) -> bool:
        """Tell a call that is about to take a child whether it is to start a spare meanwhile; it must, then."""
        if not self._warm_spare or self._is_closed or self._spares_to_come or len(self._idle) > 1:
            return False
        self._spares_to_come += 1
        return True

    async def start_spare(self) -> None:
        """Start a child ahead; one that cannot be started is met, and told of, by the call that needs it.

        Cancellation: cannot be cancelled; it takes milliseconds.
        """
        try:
            child = await Child.start()
        except OSError:
            return
        finally:
            self._spares_to_come -= 1
        if self._is_closed:
            await self._retire(child)
        else:
            self._idle.appendleft(child)
