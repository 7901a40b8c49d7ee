"""The command line: `taskengine`, or `python -m taskengine`. Needs the extra `cli` (click and rich)."""

import sys
from collections.abc import Sequence

_NEEDED = ("click", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: without the program's name; default is this process's own.

    Returns:
        The exit code: 0 worked; 1 the command failed, or its arguments were wrong; 3 it worked, but the task has ended
        otherwise than succeeded.
    """
    try:
        from taskengine.cli.app import run  # Late: it loads click.
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        print(
            f"taskengine: the command line needs {error.name}, which is not installed; "
            "run: pip install 'taskengine[cli]'",
            file=sys.stderr,
        )
        return 1
    return run(sys.argv[1:] if arguments is None else arguments)


__all__ = ["main"]
