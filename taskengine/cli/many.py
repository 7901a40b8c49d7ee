"""Which tasks a command is about: one by its id, or many by what they have in common."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import frozen

from taskengine.cli.options import Shared
from taskengine.cli.output import run_async, say, write_json
from taskengine.core.lifecycle import UNFINISHED

if TYPE_CHECKING:
    from taskengine.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])

ACTOR = "cli"


def actor_option(command: F) -> F:
    """Let the user say who asks."""
    return click.option("--actor", default=ACTOR, show_default=True, help="Who asks; kept in the history.")(command)


def reason_option(command: F) -> F:
    """Let the user say why."""
    return click.option("--reason", help="Why; kept in the history.")(command)


def selection_options(command: F) -> F:
    """Take an ID, or what many tasks have in common."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="Every unfinished task."),
        click.option("--state", "states", multiple=True, help="Unfinished tasks in this state; repeatable."),
        click.option("--name", help="Unfinished tasks of this name."),
        click.option("--tag", help="Unfinished tasks with this tag."),
    ):
        command = option(command)
    return click.argument("task_id", metavar="[ID]", required=False)(command)


@frozen(kw_only=True)
class Selection:
    """One task, or all unfinished ones that match."""

    task_id: str | None
    tag: str | None
    name: str | None
    states: tuple[str, ...]
    everything: bool

    def __attrs_post_init__(self) -> None:
        filters = bool(self.tag is not None or self.name is not None or self.states)
        if (self.task_id is not None) + filters + self.everything != 1:
            raise click.UsageError("say which: an ID, or --tag, --name and --state, or --all")

    @property
    def where(self) -> dict[str, Any]:
        """The filter of a request for many."""
        return given(tag=self.tag, name=self.name, states=self.states or sorted(UNFINISHED))


def given(**options: Any) -> dict[str, Any]:
    """Return those of the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def ask_many(shared: Shared, ask: "Callable[[Engine], Callable[..., Coroutine[Any, Any, int]]]", **options: Any) -> int:
    """Make a request for many, and print how many were asked.

    Args:
        ask: gives the engine's method.
        options: the filter, and what else the method takes.
    """

    async def request() -> int:
        async with shared.client() as engine:
            return await ask(engine)(**options)

    count = run_async(request)
    if shared.as_json:
        write_json({"requested": count})
    else:
        say(f"{count:,} requested")
    return 0
