"""Folders in which attempts leave files: one for each attempt, below one for its task."""

import shutil
import tempfile
import threading
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.to_thread

from taskengine.diagnostics import diagnostics

logger = diagnostics("taskengine")

LONGEST_NAME = 200
"""Bytes of a folder's name; file systems end at 255."""


TRIES = 3
"""Of making a folder whose parent somebody may be removing."""


class ArtifactFolders:
    """Keeps artifacts below one root folder; the contract is `ports.ArtifactStore`.

    Args:
        root: made with the first folder in it; None makes a temporary one, which `aclose` removes.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def make(self, task_id: str, attempt: int) -> str:
        """See `ArtifactStore.make`."""
        folder = self._folder(task_id) / str(attempt)
        for _ in range(TRIES):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except FileNotFoundError:
                continue  # The task's own folder has just gone with what another attempt left.
            return str(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(folder)

    async def clean(self, task_id: str, attempt: int | None = None) -> None:
        """See `ArtifactStore.clean`."""
        if self._root is None and self._temporary is None:
            return
        folder = self._folder(task_id)
        if attempt is not None:
            folder = folder / str(attempt)
        await anyio.to_thread.run_sync(_remove, folder, attempt is not None)

    async def aclose(self) -> None:
        """Remove the root folder, if it was a temporary one.

        Cancellation: waits for what is under way.
        """
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            await anyio.to_thread.run_sync(temporary.cleanup)

    def _folder(self, task_id: str) -> Path:
        root = self._root
        if root is None:
            with self._lock:
                if self._temporary is None:
                    self._temporary = tempfile.TemporaryDirectory(prefix="taskengine-", ignore_cleanup_errors=True)
                root = Path(self._temporary.name)
        return root / folder_name(task_id)


def folder_name(task_id: str) -> str:
    """Make a folder's name of a task's id, whatever characters that holds; different ids give different names."""
    name = quote(task_id, safe="").replace(".", "%2E").replace("~", "%7E")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:100]}~{blake2b(task_id.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"


def _remove(folder: Path, and_parent: bool) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("what an attempt left in %s could not be removed", folder)
    if and_parent:
        with suppress(OSError):
            folder.parent.rmdir()  # The task's own folder, once it is empty.
