import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from taskengine import Engine, MemoryStore, State, StoreUnavailable
from taskengine.cli import top
from taskengine.cli.top import Frame, read_frame
from tests.cli.bodies import report, step
from tests.cli.conftest import BesideMaker, CommandLine, await_progress

URL = "http://a.example/"


def test_one_frame_shows_counters_slots_holds_and_what_is_at_work(cli: CommandLine, beside: BesideMaker) -> None:
    there = beside(report, step)
    paused, running = there.run(step.bind()), there.run(report.bind(), label="shown")
    there.portal.call(await_progress, there.engine, running)
    cli("pause", paused)
    cli.submit(URL)
    cli("hold", "--tag", "[x]", "--reason", "a fire")
    out = cli("top", "--once").out
    counters, slots, holds, store, blank, header, *rows = out.splitlines()
    assert counters.split("  ")[1:] == ["queued 1", "running 1", "paused 1"]
    assert slots == "slots    2 in use, in all processes; 1 of them by paused bodies"
    assert holds == "holds    tag [x] by cli: a fire"
    assert (store, blank) == ("store    no failure", "")
    assert header.split()[:3] == ["TASK_ID", "NAME", "BUCKET"]
    assert [row.split()[0] for row in rows] == [running, paused]
    assert "3/10 files reading\\x1b[2J" in rows[0]


def test_one_frame_is_one_document(cli: CommandLine, beside: BesideMaker) -> None:
    task_id = beside(step).run(step.bind())
    cli("hold")
    frame = cli("top", "--json").json
    assert (frame["by_state"]["running"], frame["slots_used"], frame["slots_paused"]) == (1, 1, 0)
    assert ([task["id"] for task in frame["running"]], frame["holds"][0]["scope"]) == ([task_id], "all")
    assert (frame["store_failures"], frame["store_last_error"]) == (0, None)


def test_idle_database_says_so_where_stdout_is_no_terminal(cli: CommandLine) -> None:
    cli("cancel", cli.submit(URL))
    out = cli("top").out
    assert "cancelled 1" in out
    assert "holds    none" in out
    assert out.endswith("nothing is at work\n")


async def test_frame_fits_its_terminal() -> None:
    async with Engine(MemoryStore(), tasks=[step], shutdown_grace=0) as engine:
        for _ in range(9):
            await engine.submit(step.bind())
        seen = 0
        async for event in engine.events(after=0):
            seen += event.target is State.RUNNING
            if seen == 9:
                break
        frame = await read_frame(engine)
        lines = list(frame.lines(80, 12))
        assert len(lines) == 12
        assert lines[-1] == "… and 4 more"
        assert len(list(frame.lines(80, 1))) == 8, "one task is always shown"


async def test_failure_of_the_store_is_shown_over_the_last_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Frame, str | None]] = []
    looks = 0

    async def look(engine: Engine) -> Frame:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise StoreUnavailable("the disk is gone")
        return await read_frame(engine)

    monkeypatch.setattr(top, "read_frame", look)
    with anyio.fail_after(60):
        async with Engine(MemoryStore()) as engine, anyio.create_task_group() as tg:

            def draw(frame: Frame, failure: str | None) -> None:
                drawn.append((frame, failure))
                if len(drawn) == 3:
                    tg.cancel_scope.cancel()

            tg.start_soon(top._draw_frames, engine, draw, 0.01)
    assert [failure for _, failure in drawn] == [None, "the disk is gone", "the disk is gone"]
    assert drawn[1][0] is drawn[0][0]
    assert drawn[2][0] is not drawn[1][0]
    assert "store    last failure: the disk is gone" in list(drawn[2][0].lines(failure=drawn[2][1]))


# --- on a terminal ----------------------------------------------------------------------------------------------


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: the end that we read, and the one that a program writes to."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        os.close(end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_view_ends_at_a_signal_with_0(
    cli: CommandLine, terminal: tuple[int, int], tmp_path: Path, number: signal.Signals
) -> None:
    cli.submit(URL)
    ours, theirs = terminal
    process = subprocess.Popen(
        [sys.executable, "-m", "taskengine", "--db", str(cli.db), "top", "--interval", "0.1"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"},
    )
    try:
        _read_until(ours, b"nothing is at work")
        cli.submit(URL)
        _read_until(ours, b"queued 2")
        process.send_signal(number)
        _read_until(ours, b"\x1b[?1049l")  # The terminal's own screen is back.
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
    finally:
        process.kill()
        process.communicate()


def _read_until(terminal: int, part: bytes) -> None:
    seen = b""
    while part not in seen:
        seen += os.read(terminal, 65_536)
