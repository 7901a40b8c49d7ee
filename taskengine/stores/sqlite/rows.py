"""Rows to SQL and back, a whole set at a time.

Sets go in as one JSON array that `jsonb_each` takes apart, and come out as one row holding a JSON array. The reason is
the GIL: SQLite gives it up at every step, and getting it back while the event loop is busy takes up to a switch
interval (5 ms), so a statement for each row, or a row for each step, would cost a hundred times the work itself.
"""

from typing import Any

import msgspec
from attrs import fields

from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import HistoryRow, TaskRow

TASK_COLUMNS = tuple(attribute.name for attribute in fields(TaskRow))

_STATES = {state.value: state for state in State}
_TRIGGERS = {trigger.value: trigger for trigger in Trigger}
_STATE_INDEX = TASK_COLUMNS.index("state")

_decode = msgspec.json.Decoder(list[list[Any]]).decode
_encode = msgspec.json.Encoder().encode


def encode_rows(rows: Any) -> str:
    """Encode a sequence of tuples or lists as the JSON text that `columns_of` takes apart."""
    return _encode(rows).decode()


def columns_of(count: int, alias: str = "v") -> str:
    """Write the SELECT that turns one JSON text parameter into rows with columns c0 … c<count-1>."""
    columns = ", ".join(f"value->>{index} AS c{index}" for index in range(count))
    return f"(SELECT {columns} FROM jsonb_each(?)) AS {alias}"


def gather(columns: str, source: str) -> str:
    """Write a query that returns all rows of `source` as one JSON array."""
    # As a blob: bytes need no decoding to str in between, and what is no UTF-8 at all can still be looked at.
    return f"SELECT CAST(json_group_array(json_array({columns})) AS BLOB) FROM {source}"


TASK_SELECT = ", ".join(TASK_COLUMNS)

TASK_SELECT_LIGHT = ", ".join(
    {"args": "''", "metadata": "NULL", "result": "NULL"}.get(column, column) for column in TASK_COLUMNS
)
"""Without what may be large: for moves that do not need it and may concern many rows."""


UNREADABLE = "\ufffd"
"""Stands for what is no UTF-8. As arguments it is no JSON, so that they are held and not run."""


def _decode_damaged(text: bytes) -> list[list[Any]]:
    """Read rows of which some have been damaged; arguments are never run in a form that nobody wrote."""
    rows = _decode(text.decode("utf-8", "replace"))
    at = TASK_COLUMNS.index("args")
    for row in rows:
        if len(row) == len(TASK_COLUMNS) and isinstance(row[at], str) and UNREADABLE in row[at]:
            row[at] = UNREADABLE
    return rows


def decode_tasks(text: bytes) -> list[TaskRow]:
    """Read what a `gather(TASK_SELECT, …)` query returned."""
    rows = decode_lists(text)
    states, at = _STATES, _STATE_INDEX
    tasks = []
    for row in rows:
        row[at] = states[row[at]]
        tasks.append(TaskRow(*row))
    return tasks


HISTORY_COLUMNS = HistoryRow._fields


def decode_lists(text: bytes) -> list[list[Any]]:
    """Read what a `gather` query returned."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        return _decode_damaged(text)


def history_row(values: list[Any]) -> HistoryRow:
    """Build a history row from its columns, in the order of `HISTORY_COLUMNS`."""
    key, version, source, target, at, trigger, actor, reason, attempt, failure = values
    return HistoryRow(
        key, version, _STATES[source], _STATES[target], at, _TRIGGERS[trigger], actor, reason, attempt, failure
    )
