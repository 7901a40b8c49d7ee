import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from taskengine.cli import stories
from taskengine.cli.stories import Stage, Story, Verdict
from tests.cli.conftest import CommandLine
from tests.cli.test_worker import BACKENDS

EXPECTED = [
    ("retry", "succeeded", 2, 2),
    ("same_key", "succeeded", 1, 1),
    ("bad_request", "failed", 1, 1),
    ("cancel", "cancelled", 1, 1),
    ("kill", "succeeded", 2, 2),
]


@BACKENDS
def test_demo_goes_as_it_should_in_a_process_of_its_own(tmp_path: Path, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "taskengine", "demo", "--json", "--backend", backend],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], done.stderr) == (0, True, ""), told
    seen = [(story["name"], story["state"], story["attempt"], story["posts"]) for story in told["stories"]]
    assert seen == EXPECTED
    assert all(story["seconds"] >= 0 for story in told["stories"])
    assert list(tmp_path.iterdir()) == []


async def _nothing(stage: Stage, verdict: Verdict) -> None:
    verdict.expect(False, "the moon is made of cheese")


async def _crash(stage: Stage, verdict: Verdict) -> None:
    raise OSError("no cheese")


async def _hang(stage: Stage, verdict: Verdict) -> None:
    await stage.server.wait_until(lambda: False)


@pytest.mark.parametrize(
    ("play", "problem"),
    [
        (_nothing, "not so: the moon is made of cheese"),
        (_crash, "OSError: no cheese"),
        (_hang, "not over after 0.05 s"),
    ],
)
def test_story_that_goes_otherwise_is_told_and_exits_with_1(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, play: Any, problem: str
) -> None:
    monkeypatch.setattr(stories, "STORIES", (Story("retry", "A story.", play),))
    monkeypatch.setattr(stories, "PATIENCE", 0.05)
    result = cli("demo", "--json")
    assert (result.code, result.json["ok"], result.json["stories"][0]["problems"]) == (1, False, [problem])
    told = cli("demo")
    assert told.code == 1
    assert f"WRONG: {problem}" in told.out


def test_stories_are_judged_by_what_was_seen(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server answers at once with 200 where the story needs a 503 first.
    monkeypatch.setitem(stories.SCRIPT, "/retry", (200,))
    monkeypatch.setattr(stories, "STORIES", stories.STORIES[:2])
    result = cli("demo", "--json")
    assert result.code == 1
    first, second = result.json["stories"]
    assert (first["ok"], first["attempt"], first["posts"]) == (False, 1, 1)
    assert second["ok"]


def test_demo_is_told_readably(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stories, "STORIES", stories.STORIES[:4])
    result = cli("demo")
    assert result.code == 0
    assert "1. A call is answered with 503, then with 200.\n   succeeded at attempt 2, 2 requests" in result.out
    assert "the server saw the disconnect" in result.out
    assert result.out.endswith("All of it went as it should.\n")
