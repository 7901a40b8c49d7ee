"""Places for files of tests that get no `tmp_path`, since hypothesis runs them many times."""

import tempfile
from pathlib import Path


class TemporaryPath:
    """A path in a folder of its own, which goes with `close`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="taskengine-")
        self.name = Path(self._folder.name) / "tasks.db"

    def close(self) -> None:
        self._folder.cleanup()


def temporary_path() -> TemporaryPath:
    return TemporaryPath()
