"""`demo`: the classic story of a durable task engine, played with real parts in a temporary folder."""

from typing import TYPE_CHECKING, Any

import click

from taskengine.cli.options import EngineCommand, Shared, backend_option, shared_options
from taskengine.cli.output import closing, plain, run_async, say, write_json

if TYPE_CHECKING:
    from taskengine.cli.stories import Story, Verdict


class _QuietCommand(EngineCommand):
    # The stories are full of failures that belong to them.
    default_log_level = "critical"


@click.command(cls=_QuietCommand)
@shared_options
@backend_option
@click.pass_obj
def demo(shared: Shared, backend: str) -> int:
    """Show in a few seconds what this is good for: retries, idempotency, cancelling, recovery.

    A local server answers on loopback, and a database is made in a temporary folder; nothing of either is left. Exit 1
    if a story went otherwise than it should.
    """
    stories = run_async(lambda: _play_all(is_told=not shared.as_json, backend=backend), backend)
    is_ok = all(story["ok"] for story in stories)
    if shared.as_json:
        write_json({"ok": is_ok, "stories": stories})
    else:
        say("All of it went as it should." if is_ok else "Some of it went otherwise than it should.")
    return 0 if is_ok else 1


async def _play_all(*, is_told: bool, backend: str) -> list[dict[str, Any]]:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from taskengine.cli.local_downstream import serving
    from taskengine.cli.stories import SCRIPT, STORIES, Stage, play
    from taskengine.engine import Engine
    from taskengine.tasks.downstream import HttpxDownstream
    from taskengine.tasks.http import http_post

    told = []
    with TemporaryDirectory(prefix="taskengine-demo-") as name:
        folder = Path(name)
        downstream = HttpxDownstream(allow_hosts=["127.0.0.1"])
        async with serving(SCRIPT) as server:
            async with (
                closing(downstream),
                Engine(folder / "demo.db", tasks=[http_post], downstream=downstream) as engine,
            ):
                stage = Stage(engine, server, folder, backend)
                for number, story in enumerate(STORIES, 1):
                    if is_told:
                        say(f"{number}. {story.title}")
                    verdict, seconds = await play(story, stage)
                    told.append(_as_json(story, verdict, server.posts[story.path], seconds))
                    if is_told:
                        _tell(told[-1], verdict)
    return told


def _as_json(story: "Story", verdict: "Verdict", posts: int, seconds: float) -> dict[str, Any]:
    task = verdict.task
    return {
        "name": story.name,
        "state": task.state.value if task is not None else None,
        "attempt": task.attempt if task is not None else None,
        "posts": posts,
        "seconds": round(seconds, 3),
        "ok": not verdict.problems,
        "problems": verdict.problems,
    }


def _tell(story: dict[str, Any], verdict: "Verdict") -> None:
    posts = f"{story['posts']} request{'' if story['posts'] == 1 else 's'}"
    say(f"   {story['state']} at attempt {story['attempt']}, {posts}, {story['seconds']:.1f} s")
    for remark in verdict.remarks:
        say(f"   {plain(remark)}")
    for problem in verdict.problems:
        say(f"   WRONG: {plain(problem)}")
