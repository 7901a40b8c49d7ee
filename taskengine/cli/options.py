"""Options that every command has, whichever side of the command's name they stand on."""

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import define, field

if TYPE_CHECKING:
    from taskengine.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])

LOG_LEVELS = ("debug", "info", "warning", "error", "critical")

ENDED_OTHERWISE = 3
"""Exit code: it worked, but the task has ended otherwise than succeeded (of `cancel` and `stop`: than asked)."""

BACKENDS = ("asyncio", "trio")
EXECUTORS = ("thread", "process", "inline")


@define(eq=False)
class Shared:
    """What the shared options say; those behind the command's name overrule those before it."""

    db: str | None = None
    tasks: list[str] = field(factory=list)
    as_json: bool = False
    log_level: str | None = None
    log_format: str = "text"

    def path(self) -> str:
        """Return the database that is meant.

        Raises:
            ClickException: none was named.
        """
        path = self.db if self.db is not None else os.environ.get("TASKENGINE_DB")
        if not path:
            raise click.ClickException("no database is named; pass --db PATH or set TASKENGINE_DB")
        return path

    def existing_path(self) -> str:
        """Return the database that is meant, for a command that must not create one.

        Raises:
            ClickException: there is no such file.
        """
        path = self.path()
        if "://" not in path and not os.path.exists(path):
            raise click.ClickException(
                f"there is no database at {path}; check --db (a `submit` or `worker` creates one)"
            )
        return path

    def client(self) -> "Engine":
        """Make an engine that runs nothing, on a database that must exist."""
        from taskengine.engine import Engine

        return Engine(self.existing_path())

    def modules(self) -> list[ModuleType]:
        """Import the modules that `--tasks` names, looking in the current folder first.

        Only what was given on the command line is ever imported; nothing that is stored chooses a module.

        Raises:
            ClickException: one cannot be imported.
        """
        folder = str(Path.cwd())
        if self.tasks and folder not in sys.path:
            sys.path.insert(0, folder)
        return [_import(name) for name in dict.fromkeys(self.tasks)]


def _import(name: str) -> ModuleType:
    hint = ""
    if name.endswith(".py") or os.sep in name:
        hint = "; give the module's name (such as package.module), not its file"
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise click.ClickException(f"--tasks {name}: cannot be imported ({type(error).__name__}: {error}){hint}") from (
            error
        )


def _note(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is None or value is False or value == ():
        return
    shared = context.ensure_object(Shared)
    if parameter.name == "tasks":
        shared.tasks.extend(value)
    else:
        setattr(shared, parameter.name or "", value)


def shared_options(command: F) -> F:
    """Give a command (and the group before it) the options that all have."""
    for name, settings in _SHARED:
        command = click.option(*name, **settings, expose_value=False, callback=_note)(command)
    return command


# The last one stands first in a help text.
_SHARED: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--log-format",), {"type": click.Choice(("text", "json")), "help": "How log lines look."}),
    (("--log-level",), {"type": click.Choice(LOG_LEVELS), "help": "From which level on to log, to stderr."}),
    (("--json", "as_json"), {"is_flag": True, "help": "One JSON document on stdout, and nothing else there."}),
    (("--tasks",), {"metavar": "MODULE", "multiple": True, "help": "Module with tasks that can run; repeatable."}),
    (("--db",), {"metavar": "PATH", "help": "The database file; default is TASKENGINE_DB."}),
)


class EngineCommand(click.Command):
    """A command with logging set up around it."""

    default_log_level = "warning"

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        from taskengine.cli.logs import logging_to_stderr

        shared = ctx.ensure_object(Shared)
        with logging_to_stderr(shared.log_level or self.default_log_level, shared.log_format):
            return super().invoke(ctx)


def backend_option(command: F) -> F:
    """Let the user choose the event loop."""
    return click.option("--backend", type=click.Choice(BACKENDS), default="asyncio", show_default=True)(command)


def engine_options(command: F) -> F:
    """Options of the commands that run bodies."""
    for option in (
        click.option(
            "--durability",
            type=click.Choice(("full", "fast")),
            help='"full" (default) survives power loss, "fast" only the process.',
        ),
        click.option(
            "--stop-grace",
            type=click.FloatRange(min=0),
            metavar="SECONDS",
            help="How long a body has to reach a checkpoint after a stop, before force; default 10.",
        ),
        click.option(
            "--default-executor",
            type=click.Choice(EXECUTORS),
            help="Where sync functions run that name no executor; default thread.",
        ),
        click.option(
            "--allow-host",
            "allow_hosts",
            metavar="HOST",
            multiple=True,
            help="Host, host:port, IP or CIDR that HTTP tasks may call though it is not public; repeatable.",
        ),
    ):
        command = option(command)
    return backend_option(command)


def engine_settings(*, stop_grace: float | None, default_executor: str | None) -> dict[str, Any]:
    """Return the arguments of `Engine` that were given by these options."""
    settings = {"stop_grace": stop_grace, "default_executor": default_executor}
    return {name: value for name, value in settings.items() if value is not None}
