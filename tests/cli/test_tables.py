import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from taskengine.cli.output import instant, plain
from taskengine.cli.tables import HISTORY_COLUMNS, TASK_COLUMNS, duration, history_table, task_table
from taskengine.core.lifecycle import FINAL, LEASED, STORED, State, Trigger
from taskengine.core.model import Failure, FailureKind, Hold, Progress, Task, Transition

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def _task(**changes: Any) -> Task:
    fields: dict[str, Any] = {
        "id": "0" * 36,
        "name": "resize",
        "state": State.QUEUED,
        "attempt": 0,
        "charged": 0,
        "max_attempts": 3,
        "recover": None,
        "priority": 0,
        "version": 1,
        "created_at": NOW,
        "due_at": NOW,
    }
    return Task(**fields | changes)


def _failure(message: str) -> Failure:
    return Failure(kind=FailureKind.EXCEPTION, type="ValueError", message=message)


def _cells(task: Task) -> dict[str, str]:
    table = task_table([task], now=NOW)
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_columns_are_the_promised_ones() -> None:
    assert task_table([], now=NOW).columns == TASK_COLUMNS
    assert " ".join(TASK_COLUMNS) == "TASK_ID NAME BUCKET STATUS ATTEMPT ELAPSED PROGRESS FAILURE"
    assert " ".join(HISTORY_COLUMNS) == "VER FROM TO AT TRIGGER ACTOR REASON"


def test_task_that_has_not_begun_shows_nothing_where_nothing_is() -> None:
    cells = _cells(_task(max_attempts=None))
    assert cells["ATTEMPT"] == "0/-"
    assert [cells[column] for column in ("BUCKET", "ELAPSED", "PROGRESS", "FAILURE")] == ["-"] * 4


def test_task_at_work_shows_how_long_and_how_far() -> None:
    task = _task(
        state=State.RUNNING, charged=2, started_at=NOW - timedelta(seconds=75), progress=_said(done=1, total=3)
    )
    cells = _cells(task)
    assert (cells["STATUS"], cells["ATTEMPT"], cells["ELAPSED"], cells["PROGRESS"]) == (
        "running",
        "2/3",
        "1m15s",
        "33%",
    )


@pytest.mark.parametrize("state", sorted(STORED))
def test_time_is_told_while_a_body_is_at_work_and_of_what_has_ended(state: State) -> None:
    finished = NOW - timedelta(seconds=5) if state in FINAL else None
    cells = _cells(_task(state=state, started_at=NOW - timedelta(seconds=12), finished_at=finished))
    if state in FINAL:
        assert cells["ELAPSED"] == "7.0s"
    else:
        assert cells["ELAPSED"] == ("12.0s" if state in LEASED - {State.STARTING} else "-")


def _said(**said: Any) -> Progress:
    return Progress(at=NOW, **said)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "-"),
        ({"message": "begun"}, "begun"),
        ({"unit": "files", "total": 3}, "-"),
        ({"done": 29, "total": 100}, "29%"),
        ({"done": 999, "total": 1000}, "99%"),
        ({"done": 5, "total": 4, "message": "more than there was"}, "100% more than there was"),
        ({"done": -1, "total": 4}, "0%"),
        ({"done": 3, "total": 10, "unit": "files", "message": "reading"}, "3/10 files reading"),
        ({"done": 1_234_567, "unit": "rows"}, "1,234,567 rows"),
        ({"done": 0.5}, "0.50"),
        ({"done": 0, "total": 0, "unit": "rows"}, "0 rows"),
        ({"done": 1e300, "total": -1}, "1e+300"),
        ({"done": 1, "unit": "\x1b[31m", "message": "two\nlines"}, "1 \\x1b[31m two\\nlines"),
    ],
)
def test_progress_is_short(said: dict[str, Any], text: str) -> None:
    assert _cells(_task(progress=_said(**said)))["PROGRESS"] == text


def test_held_task_is_marked() -> None:
    assert _cells(_task(held=Hold(actor="somebody")))["STATUS"] == "queued (held)"


def test_what_stored_text_says_is_shown_and_never_obeyed() -> None:
    cells = _cells(_task(name="[bold]x[/]", failure=_failure("\x1b[31mred\nline\x00 \u202eleft")))
    assert cells["NAME"] == "[bold]x[/]"
    assert cells["FAILURE"] == "ValueError: \\x1b[31mred\\nline\\x00 \\u202eleft"


def test_terminal_gets_markup_as_text_and_whole_ids() -> None:
    out = io.StringIO()
    task = _task(name="[red]n[/red] :smile:", failure=_failure("long " * 60))
    Console(file=out, width=130, force_terminal=True).print(task_table([task], now=NOW), crop=False)
    header, line = out.getvalue().splitlines()
    assert "\x1b[1mTASK_ID" in header
    assert line.startswith("0" * 36 + "  [red]n[/red] :smile:  -")
    assert line.endswith("…")
    assert len(line) == 130


def test_narrow_terminal_keeps_the_id_whole() -> None:
    lines = list(task_table([_task(name="n" * 100)], now=NOW).lines(40))
    assert lines[1].startswith("0" * 36 + "  nnnnnnn…  -")


def test_file_gets_everything_and_no_blanks_at_the_end() -> None:
    lines = list(task_table([_task(failure=_failure("m" * 150)), _task(name="日本語")], now=NOW).lines())
    assert lines[1].endswith("m" * 150)
    assert all(line == line.rstrip() for line in lines)
    assert lines[2].split() == ["0" * 36, "日本語", "-", "queued", "0/3", "-", "-", "-"]


def test_history_is_a_row_for_each_move() -> None:
    move = Transition(
        position=9,
        task_id="x",
        name="resize",
        version=1,
        source=State.PENDING,
        target=State.QUEUED,
        at=NOW,
        trigger=Trigger.USER_SUBMIT,
        actor="user",
        reason=None,
        attempt=0,
    )
    (row,) = history_table([move]).rows
    assert row == ("1", "pending", "queued", "2026-01-02 03:04:05.000Z", "user:submit", "user", "-")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.04, "0.0s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (3599.4, "59m59s"),
        (3600, "1h00m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (1e6, "11d13h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_instants_are_utc_and_read_back() -> None:
    text = instant(NOW.astimezone())
    assert text == "2026-01-02T03:04:05.000000Z"
    assert datetime.fromisoformat(text) == NOW
    assert instant(None) is None


def test_plain_escapes_what_a_terminal_would_obey() -> None:
    assert plain("a\tb\u200b\ud800é😀") == "a\\tb\\u200b\\ud800é😀"
