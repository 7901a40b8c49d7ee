"""The command line: `taskengine`, or `python -m taskengine`. Needs the extra `cli` (click and rich)."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

_NEEDED = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; default is this process's own.

    Returns:
        The exit code: 0 worked; 1 the command failed, or its arguments were wrong; 3 it worked, but the task has ended
        otherwise than succeeded.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(
            f"taskengine: the command line needs {' and '.join(missing)}, which is not installed; "
            "run: pip install 'taskengine[cli]'",
            file=sys.stderr,
        )
        return 1
    from taskengine.cli.app import run  # Late: it loads click.

    return run(sys.argv[1:] if arguments is None else arguments)


__all__ = ["main"]
