"""From `NAME --arg k=v …` to a call, checked against the task's signature where that is known here."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

import click

from taskengine.core.errors import UnknownTask

F = TypeVar("F", bound=Callable[..., Any])


def submit_options(command: F) -> F:
    """What can be said of one submission."""
    for option in (
        click.option("--max-attempts", type=int, help="Charged attempts before it fails for good."),
        click.option("--label", help="For people."),
        click.option("--tag", "tags", multiple=True, help="For queries; repeatable."),
        click.option("--priority", type=int, help="Lower number first; default 0."),
        click.option("--delay", type=float, metavar="SECONDS", help="Not before so many seconds from now."),
        click.option("--key", metavar="KEY", help="Idempotency key: the same key is the same task."),
        click.option(
            "--arg",
            "arguments",
            metavar="K=V",
            multiple=True,
            help="Argument of the task; V is read as JSON if it is JSON, else as text. Repeatable.",
        ),
    ):
        command = option(command)
    return command


def given_options(
    *,
    key: str | None,
    delay: float | None,
    priority: int | None,
    tags: Sequence[str],
    label: str | None,
    max_attempts: int | None,
) -> dict[str, Any]:
    """Return the options of `Engine.submit` that were given."""
    options = {
        "idempotency_key": key,
        "delay": delay,
        "priority": priority,
        "tags": tuple(tags) or None,
        "label": label,
        "max_attempts": max_attempts,
    }
    return {name: value for name, value in options.items() if value is not None}


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `k=v` pairs; a value that is JSON is what it says, any other is text.

    Raises:
        ClickException: a pair has no `=`, or a name comes twice.
    """
    import msgspec

    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.ClickException(f"--arg {pair!r}: write it as name=value")
        if name in arguments:
            raise click.ClickException(f"--arg {name} is given twice; for a list write {name}='[1, 2]'")
        try:
            arguments[name] = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            arguments[name] = text
    return arguments


def known_tasks(modules: Sequence[ModuleType]) -> dict[str, Any]:
    """Return the definitions of `http_post` and of the modules' tasks by name; runs nothing.

    Raises:
        DuplicateTask: two tasks have one name.
    """
    from taskengine.engine import Engine
    from taskengine.stores.memory import MemoryStore
    from taskengine.tasks.http import http_post

    # A module's `register(engine)` hook needs an engine; this one is never entered.
    return dict(Engine(MemoryStore(), tasks=[http_post, *modules]).definitions)


def make_call(name: str, arguments: dict[str, Any], known: dict[str, Any], *, must_be_known: bool) -> Any:
    """Make a call of a task.

    Raises:
        UnknownTask: it must be known here and is not.
    """
    from taskengine.registry import TaskCall

    definition = known.get(name)
    if definition is None:
        if must_be_known:
            import difflib

            error = UnknownTask(name, tuple(sorted(known)))
            close = difflib.get_close_matches(name, known, n=1)
            raise click.ClickException(
                f"no task is named {name!r} here (known: {', '.join(sorted(known))}); pass its module with "
                f"--tasks MODULE{f'; did you mean {close[0]!r}?' if close else ''}"
            ) from error
        return TaskCall.of(name, **arguments)
    if name == "http_post" and isinstance(arguments.get("body"), str):
        arguments = {**arguments, "body": arguments["body"].encode()}
    return TaskCall(name, (), arguments, definition)
