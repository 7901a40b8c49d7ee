"""What the checks of the store contract are made with: rows, and the moves that the engine makes with them.

Checks say `expect` and not `assert`, so that they also hold under `python -O`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from attrs import asdict, evolve

from taskengine.core.lifecycle import FINAL, LEASED, State, Trigger, step
from taskengine.core.model import HistoryRow, HoldRow, HoldScope, OwnerRow, TaskFilter, TaskRow, TaskWrite
from taskengine.ports import Reader, Store, Transaction

StoreMaker: TypeAlias = Callable[[], Store]

EVERYTHING = TaskFilter()
OWNER = "owner-1"
NOW = 1_700_000_000_000_000
"""An instant, in microseconds."""


class Checks:
    """Base of the groups of checks."""

    def __init__(self, make_store: StoreMaker) -> None:
        self._make_store = make_store

    @contextmanager
    def _opened(self) -> Iterator[Store]:
        store = self._make_store()
        store.open()
        try:
            yield store
        finally:
            store.close()


def expect(condition: bool, promise: str) -> None:
    """Raise AssertionError with `promise` unless it is kept."""
    if not condition:
        raise AssertionError(promise)


def expect_equal(actual: Any, expected: Any, promise: str) -> None:
    """Raise AssertionError that shows both unless they are equal."""
    if actual != expected:
        raise AssertionError(f"{promise}: expected {expected!r}, got {actual!r}")


class expect_error:
    """Raise AssertionError unless the block raises `kind`. A class, so that type checkers know that it catches."""

    def __init__(self, kind: type[BaseException], promise: str) -> None:
        self._kind = kind
        self._promise = promise

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            raise AssertionError(f"{self._promise}: {self._kind.__name__} was not raised")
        return isinstance(error, self._kind)


def make_row(id_: str, state: State = State.QUEUED, **values: Any) -> TaskRow:
    """Make a task as it is submitted, without a key."""
    values = {"name": "mail", "args": "[[],{}]", "due_at": NOW, "created_at": NOW, **values}
    return TaskRow(key=0, id=id_, state=state, **values)


def make_owner(id_: str = OWNER, **values: Any) -> OwnerRow:
    """Make an owner's row."""
    values = {"boot_id": "b", "pid_namespace": "n", "pid": 7, "process_started": "1", "beat": 0, **values}
    return OwnerRow(id=id_, started_at=NOW, **values)


def make_hold(target: str, scope: HoldScope = HoldScope.TAG, **values: Any) -> HoldRow:
    """Make a hold of many."""
    values = {"actor": "user", "reason": None, "until": None, "created_at": NOW, **values}
    return HoldRow(scope=scope, target=target, **values)


def submit(tx: Transaction, *rows: TaskRow) -> list[TaskRow]:
    """Store new tasks with everything that belongs to it."""
    head = tx.head(None)
    history = []
    for row in rows:
        row.key, row.version = head.next_key, 1
        head.next_key += 1
        later = row.state is State.SCHEDULED
        trigger = Trigger.USER_SUBMIT_LATER if later else Trigger.USER_SUBMIT
        history.append(HistoryRow(row.key, 1, State.PENDING, row.state, row.created_at, trigger, "user", None, 0, None))
    tx.insert(rows)
    record(tx, [(row.name, move) for row, move in zip(rows, history, strict=True)])
    head.next_position += len(history)
    tx.save_head(head)
    return list(rows)


def record(tx: Transaction, moves: Sequence[tuple[str, HistoryRow]]) -> None:
    """Append moves, given with the names of their tasks, and count them; the head is the caller's to save."""
    tx.append([move for _, move in moves], tx.head(None).next_position)
    states: Counter[tuple[str, State]] = Counter()
    for name, move in moves:
        states[name, move.target] += 1
        if move.source is not State.PENDING:
            states[name, move.source] -= 1
    tx.tally(states, Counter(move.trigger for _, move in moves))


def make_write(row: TaskRow, trigger: Trigger, **values: Any) -> TaskWrite:
    """Make the guarded write of one move; `values` are columns that it changes besides."""
    state = step(row.state, trigger)
    write = TaskWrite(
        key=row.key,
        expected_attempt=row.attempt,
        expected_version=row.version,
        state=state,
        version=row.version + 1,
        charged=row.charged,
        crashes=row.crashes,
        rank=row.rank,
        due_at=row.due_at,
        started_at=row.started_at,
        finished_at=NOW if state in FINAL else None,
        owner=row.owner if state in LEASED else None,
        wish=row.wish,
        held=row.held,
        result=row.result,
        failure=row.failure,
    )
    return write._replace(**values)


def move(tx: Transaction, task_id: str, trigger: Trigger, **values: Any) -> TaskRow:
    """Make one move of a task with everything that belongs to it; return the row as it is now."""
    row = one(tx.find(ids=[task_id]))
    write = make_write(row, trigger, **values)
    expect_equal(tx.update([write]), {row.key}, "a write whose guard holds is applied")
    history = HistoryRow(
        row.key, write.version, row.state, write.state, NOW, trigger, "user", None, row.attempt, write.failure
    )
    append(tx, row.name, history)
    return one(tx.find(ids=[task_id]))


def append(tx: Transaction, name: str, *history: HistoryRow) -> None:
    """Append history rows of one task name, count them and save the head."""
    head = tx.head(None)
    record(tx, [(name, move) for move in history])
    head.next_position += len(history)
    tx.save_head(head)


def claim(tx: Transaction, *task_ids: str, owner: str = OWNER) -> list[TaskRow]:
    """Claim queued tasks with everything that belongs to it; return the rows as they are now."""
    rows = tx.find(ids=task_ids)
    tx.claim([row.key for row in rows], owner)
    for row in rows:
        history = HistoryRow(
            row.key,
            row.version + 1,
            row.state,
            State.STARTING,
            NOW,
            Trigger.CLAIMER_CLAIM,
            "engine",
            None,
            row.attempt + 1,
            None,
        )
        append(tx, row.name, history)
    return tx.find(ids=task_ids)


def one(rows: Sequence[TaskRow]) -> TaskRow:
    """Return the only row."""
    expect_equal(len(rows), 1, "exactly one task is found")
    return rows[0]


def ids(rows: Iterable[TaskRow]) -> list[str]:
    """Return the ids, in order."""
    return [row.id for row in rows]


def columns(row: TaskRow | None, **changes: Any) -> dict[str, Any] | None:
    """Return every column of a row, since rows do not compare by value."""
    return None if row is None else asdict(evolve(row, **changes))


def contents(reader: Reader) -> dict[str, Any]:
    """Return everything that a reader can see, to be compared."""
    rows = reader.select(EVERYTHING, limit=10_000)
    states, triggers = reader.tallies()
    return {
        "tasks": [columns(row) for row in rows],
        "claim order": ids(reader.select(EVERYTHING, limit=10_000, claim_order=True)),
        "events": reader.events(0, 10_000),
        "histories": {row.id: reader.history(row.id) for row in rows},
        "position": reader.last_position(),
        "states": {key: n for key, n in states.items() if n},
        "triggers": {key: n for key, n in triggers.items() if n},
        "owners": sorted(asdict(owner)["id"] + str(owner.beat) for owner in reader.owners()),
        "ownerless": sorted(reader.ownerless()),
        "held": reader.held(None),
        "tagged": [reader.held(None, [tag]) for tag in ("a", "b")],
        "holds": reader.holds(),
        "sides": reader.sides([row.key for row in rows]),
        "logs": {row.id: reader.logs(row.id, limit=10_000) for row in rows},
    }
