"""One child process as its parent holds it: started, spoken to, ended, always with all that it has started itself."""

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio

from taskengine.executors.process.frames import FrameBuffer, FromChild, Quit, ToChild, encode, read_from_child

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, ByteSendStream, Process

_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from taskengine.executors.process.child import main; sys.argv[1:] = []; main()"
)
"""Not `-m`: that puts the working directory first on the path, where the parent may not have it at all."""

EXIT_SECONDS = 1.0
"""How long a child that is not needed any more may take to end as a program ends."""

KILL_SECONDS = 5.0
"""How long SIGKILL may take; it is longer only for a process that hangs in the kernel."""

HURRY_SECONDS = 0.2
"""The same for somebody who has waited too long already."""


class ChildGone(Exception):
    """The child does not speak any more; it has ended, or will."""


class Child:
    """A child process and the two pipes to it. Used by one call at a time."""

    def __init__(self, process: "Process") -> None:
        assert process.stdin is not None, "opened with pipes"
        assert process.stdout is not None, "opened with pipes"
        self.pid: int = process.pid
        self.calls = 0
        """How many calls it was given."""
        self.sys_path: list[str] | None = None
        """As it was told last."""
        self._process = process
        self._input: ByteSendStream = process.stdin
        self._output: ByteReceiveStream = process.stdout
        self._buffer = FrameBuffer()
        self._patience = anyio.CancelScope()
        self._is_hurried = False
        self._is_over = False

    @classmethod
    async def start(cls) -> "Child":
        """Start a process; it gets ready by itself while it is sent its first call.

        Cancellation: cannot be cancelled; it takes milliseconds.

        Raises:
            OSError: it cannot be started.
        """
        if not sys.executable:
            raise OSError("this Python does not know where its own program is (sys.executable)")
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [sys.executable, "-c", _PROGRAM, *map(os.fsdecode, import_path())], stderr=None, start_new_session=True
            )
        return cls(process)

    # --- speaking ---

    async def send(self, message: ToChild) -> None:
        """Send one message. If it is cancelled, the child is of no more use.

        Raises:
            ChildGone: nobody reads.
        """
        try:
            await self._input.send(encode(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise ChildGone from error

    def take(self, limit: int) -> FromChild | None:
        """Return the next message that has come in already.

        Raises:
            BrokenFrame: what has come in is none, or longer than `limit` bytes.
        """
        payload = self._buffer.take(limit)
        return None if payload is None else read_from_child(payload)

    async def receive_more(self) -> None:
        """Wait until something has come in.

        Raises:
            ChildGone: there is no more to come.

        Cancellation: loses nothing.
        """
        try:
            self._buffer.feed(await self._output.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            raise ChildGone from error

    @property
    def is_fit(self) -> bool:
        """Whether it can be given another call: it lives, and has said nothing that nobody asked for."""
        return self.exit_code is None and not len(self._buffer) and not self._is_hurried

    @property
    def exit_code(self) -> int | None:
        """As subprocess has it, negative for a signal; None as long as it lives."""
        return self._process.returncode

    # --- ending ---

    async def wait_for_exit(self, seconds: float) -> None:
        """Wait that long at most until it has ended, `hurry` aside.

        Cancellation: gives up waiting.
        """
        with anyio.move_on_after(min(seconds, HURRY_SECONDS) if self._is_hurried else seconds) as self._patience:
            await self._process.wait()

    def hurry(self) -> None:
        """Kill it now; whoever waits for its end does not wait much longer."""
        self._is_hurried = True
        if not self._is_over:
            self._signal(signal.SIGKILL)
        self._patience.cancel()

    async def retire(self) -> bool:
        """End it as a program ends, with its exit handlers, then kill what is left of its group; see `kill`."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(EXIT_SECONDS):
                with contextlib.suppress(ChildGone):
                    await self.send(Quit())
                await self.wait_for_exit(EXIT_SECONDS)
        return await self.kill(0)

    async def kill(self, grace: float) -> bool:
        """End it by force, with all that it has started.

        Args:
            grace: seconds between SIGTERM and SIGKILL; 0 is SIGKILL at once.

        Returns:
            False if it hangs in the kernel; it is left behind then, and may be killed again.

        Cancellation: cannot be cancelled; its length is bounded.
        """
        with anyio.CancelScope(shield=True):
            if grace > 0 and self.exit_code is None:
                self._signal(signal.SIGTERM)
                await self.wait_for_exit(grace)
            # Always: the child may have gone by SIGTERM and what it has started may not.
            self._signal(signal.SIGKILL)
            await self.wait_for_exit(KILL_SECONDS)
            if self.exit_code is not None:
                self._is_over = True
                await self._process.aclose()
        return self._is_over

    def _signal(self, number: signal.Signals) -> None:
        if self.exit_code is not None and _exists(self.pid):
            # The child was waited for, so that its number could be given to a stranger, and it was. (It cannot be
            # given away while anything of the child's group lives, so there is nothing of it to kill either.)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # By the group, and past the process object: on asyncio its own kill() races with the child watcher.
            os.killpg(self.pid, number)


def import_path() -> list[bytes]:
    """Return the entries of `sys.path` that can be handed to a child; imports pass over the others here as well."""
    found: list[bytes] = []
    entries: list[object] = list(sys.path)  # Typed as text, but anybody may put anything there.
    for entry in entries:
        if isinstance(entry, str) and "\x00" not in entry:
            with contextlib.suppress(UnicodeEncodeError):
                found.append(os.fsencode(entry))
    return found


def _exists(pid: int) -> bool:
    try:
        os.getpgid(pid)
    except ProcessLookupError:
        return False
    return True
