"""The group of commands, and the one place where what happens becomes an exit code.

0: it worked. 1: the command failed, or its arguments were wrong. 3: it worked, but the task has ended otherwise than
succeeded. An error is one line on stderr that names the fix, and never a traceback.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

import taskengine
from taskengine.cli.captured import logs
from taskengine.cli.changing import cancel, pause, resume, stop
from taskengine.cli.demo import demo
from taskengine.cli.finished import delete, requeue
from taskengine.cli.holding import hold, holds, release
from taskengine.cli.listing import dead, ps
from taskengine.cli.looking import explain, history, stats, status
from taskengine.cli.options import shared_options
from taskengine.cli.output import note, plain
from taskengine.cli.run import run_command
from taskengine.cli.submit import submit
from taskengine.cli.top import top
from taskengine.cli.worker import worker
from taskengine.core.errors import TaskEngineError

FAILED = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@shared_options
@click.version_option(taskengine.__version__, package_name="taskengine", message="%(prog)s %(version)s")
def cli() -> None:
    """Submit, run and look after durable tasks in a database file."""


_COMMANDS = (
    *(demo, submit, worker, run_command),
    *(ps, top, status, history, explain, logs, stats),
    *(stop, cancel, pause, resume, hold, release, holds),
    *(dead, requeue, delete),
)

for _command in _COMMANDS:
    cli.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; see `taskengine.cli.main`."""
    for stream in (sys.stdout, sys.stderr):
        # A label in letters that the terminal's encoding lacks must not end a listing.
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = cli.main(args=list(arguments), prog_name="taskengine", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as error:
        # click's own answer to a reader of our output that has gone away, such as `head`.
        return error.code if isinstance(error.code, int) else FAILED
    except (Exception, KeyboardInterrupt, BaseExceptionGroup) as error:
        _explain(list(_leaves(error)))
        return FAILED


def _explain(errors: list[BaseException]) -> None:
    """Say what went wrong, in one line for each thing that did."""
    if any(isinstance(error, BrokenPipeError) for error in errors):
        # Whoever read our output has seen enough (`| head`). Python would complain once more when it flushes at exit.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif any(isinstance(error, KeyboardInterrupt | click.Abort) for error in errors):
        note("taskengine: interrupted")
    else:
        for line in dict.fromkeys(map(_line, errors)):
            note(f"taskengine: {line}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: BaseException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return f"no command is given\n{error.format_message()}"
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "taskengine"
        return f"{plain(error.format_message())} (see `{where} --help`)"
    if isinstance(error, click.ClickException):
        return plain(error.format_message())
    words = [plain(part) for part in (error, *getattr(error, "__notes__", ())) if str(part)]
    if isinstance(error, TaskEngineError | OSError):
        return "; ".join(words)
    return ": ".join((type(error).__name__, *words))
