"""Who waits for what: the board on which commits are announced.

Waiters look again when something was committed; nothing is buffered for them, so nothing grows.
"""

import anyio

from taskengine.core.model import TaskWrite


class Ending:
    """One waiter's place for one task's end."""

    __slots__ = ("attempt", "event", "write")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.write: TaskWrite | None = None
        """The final write, where this engine made it; None: look it up."""
        self.attempt = 0


class Bulletin:
    """Announces commits to whoever waits in this process. Used on the event loop only."""

    def __init__(self) -> None:
        self._endings: dict[str, list[Ending]] = {}
        self._commit: anyio.Event | None = None
        self.is_closed = False

    # --- one task's end ---

    def expect(self, task_id: str) -> Ending:
        """Register a waiter; `forget` must follow."""
        ending = Ending()
        self._endings.setdefault(task_id, []).append(ending)
        return ending

    def forget(self, task_id: str, ending: Ending) -> None:
        waiting = self._endings.get(task_id)
        if waiting is not None and ending in waiting:
            waiting.remove(ending)
            if not waiting:
                del self._endings[task_id]

    @property
    def awaited(self) -> "dict[str, list[Ending]]":
        """Ids somebody waits for."""
        return self._endings

    def announce_end(self, task_id: str, write: TaskWrite | None, attempt: int) -> None:
        """Wake those who wait for this task."""
        for ending in self._endings.pop(task_id, ()):
            ending.write = write
            ending.attempt = attempt
            ending.event.set()

    # --- any commit ---

    def announce_commit(self) -> None:
        """Wake those who wait for anything."""
        if self._commit is not None:
            self._commit.set()
            self._commit = None

    def next_commit(self) -> anyio.Event:
        """Return the event of the next commit. Take it *before* looking, or a commit in between is missed."""
        if self._commit is None:
            self._commit = anyio.Event()
            if self.is_closed:
                self._commit.set()
        return self._commit

    def close(self) -> None:
        """Wake everybody for the last time."""
        self.is_closed = True
        self.announce_commit()
        for task_id in list(self._endings):
            self.announce_end(task_id, None, 0)
