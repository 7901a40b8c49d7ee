"""Commands about the holds of many: `hold`, `release`, `holds`."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.listing import now
from taskengine.cli.many import actor_option, given
from taskengine.cli.options import EngineCommand, Shared, shared_options
from taskengine.cli.output import instant, plain, run_async, say, show, write_json

if TYPE_CHECKING:
    from taskengine.core.model import StandingHold


def _read_until(context: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = now() + timedelta(seconds=float(text)) if text.startswith("+") else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is neither an instant such as 2030-01-31T18:00:00Z nor seconds from now such as +600"
        ) from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone; write a Z behind it, or the offset such as +02:00")
    if at <= now():
        raise click.BadParameter(f"{text!r} is over already")
    return at


def _scope_options(command: Any) -> Any:
    for option in (
        click.option("--tag", help="All tasks with this tag."),
        click.option("--name", help="All tasks of this name."),
    ):
        command = option(command)
    return command


def _describe_scope(name: str | None, tag: str | None) -> str:
    if name is not None:
        return f"tasks named {plain(name)}"
    return "everything" if tag is None else f"tasks tagged {plain(tag)}"


def _scope_as_json(name: str | None, tag: str | None) -> dict[str, str | None]:
    if name is not None:
        return {"scope": "name", "target": name}
    return {"scope": "all" if tag is None else "tag", "target": tag}


def _refuse_both(name: str | None, tag: str | None) -> None:
    if name is not None and tag is not None:
        raise click.UsageError("give --name or --tag, and both in two commands; neither means everything")


@click.command(cls=EngineCommand)
@shared_options
@_scope_options
@click.option("--reason", help="Why; `holds` and `explain` tell it.")
@actor_option
@click.option(
    "--until", metavar="WHEN", callback=_read_until, help="ISO 8601 with a zone, or +SECONDS: it ends by itself."
)
@click.pass_obj
def hold(
    shared: Shared, name: str | None, tag: str | None, reason: str | None, actor: str, until: datetime | None
) -> int:
    """Hold everything, or the tasks of a name or with a tag: no process begins any of them until `release`.

    Bodies at work go on. A second hold of the same tasks takes the place of the first.
    """
    _refuse_both(name, tag)

    async def ask() -> None:
        async with shared.client() as engine:
            await engine.hold(**given(name=name, tag=tag, reason=reason, until=until), actor=actor)

    run_async(ask)
    if shared.as_json:
        write_json({**_scope_as_json(name, tag), "actor": actor, "reason": reason, "until": instant(until)})
    else:
        say(f"held: {_describe_scope(name, tag)}" + (f", until {instant(until)}" if until is not None else ""))
    return 0


@click.command(cls=EngineCommand)
@shared_options
@_scope_options
@click.pass_obj
def release(shared: Shared, name: str | None, tag: str | None) -> int:
    """End the hold of everything, of a name or of a tag; one that does not stand is no error."""
    _refuse_both(name, tag)

    async def ask() -> bool:
        async with shared.client() as engine:
            return await engine.release(name=name, tag=tag)

    was_there = run_async(ask)
    if shared.as_json:
        write_json({**_scope_as_json(name, tag), "released": was_there})
    else:
        say(("released: " if was_there else "there was no hold of ") + _describe_scope(name, tag))
    return 0


@click.command(cls=EngineCommand)
@shared_options
@click.pass_obj
def holds(shared: Shared) -> int:
    """List the holds of many, oldest first; `ps --held` lists the tasks that are held."""

    async def read() -> "list[StandingHold]":
        async with shared.client() as engine:
            return await engine.holds()

    found = run_async(read)
    if shared.as_json:
        write_json([hold_as_json(each) for each in found])
        return 0
    from taskengine.cli.tables import hold_table

    show(hold_table(found))
    return 0


def hold_as_json(hold: "StandingHold") -> dict[str, Any]:
    """Lay out a hold of many."""
    return {
        "scope": hold.scope,
        "target": hold.target,
        "actor": hold.actor,
        "reason": hold.reason,
        "until": instant(hold.until),
        "created_at": instant(hold.created_at),
    }
