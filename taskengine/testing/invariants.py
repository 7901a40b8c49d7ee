"""What must be true of every store at rest, checked through its reading side alone.

The seed of `taskengine verify`: call it after a test, after a crash and a restart, or on a copy of a store in use. On a
store that somebody is writing to, the reads see different moments and it may cry wolf.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from taskengine.codec import NotJson
from taskengine.core.lifecycle import FINAL, LEASED, TRANSITIONS, State, Trigger
from taskengine.core.model import HistoryRow, HoldScope, TaskFilter, TaskRow
from taskengine.ports import Reader, Store
from taskengine.records import load_hold

PAGE = 1_000
"""Rows read at once."""

_CRASHES = frozenset({Trigger.OWNER_REQUEUE, Trigger.OWNER_LOST})


def check_invariants(store: Store) -> list[str]:
    """Compare every task with its history, and the counters with both.

    Args:
        store: open, and not being written to.

    Returns:
        One line for each violation; empty if there is none.
    """
    reader = store.reader()
    problems: list[str] = []
    paths = _read_histories(reader, problems)
    rows = _Rows(standing={hold.mark for hold in reader.holds()})
    for row in _all_tasks(reader):
        path = paths.histories.pop(row.id, None) or _Path()
        problems.extend(f"task {row.id} ({row.name}, {row.state.value}): {text}" for text in _check_task(row, path))
        problems.extend(rows.note(row))
        problems.extend(f"task {row.id} {text}" for text in _check_sayings(reader, row))
    problems.extend(_check_holds(reader))
    problems.extend(f"task {task_id}: has a history and no row" for task_id in paths.histories)
    problems.extend(f"task {id_}: lives and has a tombstone" for id_ in rows.ids if reader.was_deleted(id_))
    problems.extend(_check_tallies(reader, rows.states, paths))
    return problems


@define(eq=False)
class _Path:
    """One task's history, folded as it is read."""

    length: int = 0
    end: State = State.PENDING
    claims: int = 0
    crashes: int = 0
    problems: list[str] = field(factory=list)

    def follow(self, row: HistoryRow) -> None:
        self.length += 1
        where = f"move {row.version} ({row.source.value} -> {row.trigger.value} -> {row.target.value})"
        if row.version != self.length:
            self.problems.append(f"{where} stands where move {self.length} belongs")
        if row.source is not self.end:
            self.problems.append(f"{where} begins in {row.source.value} and the task was {self.end.value}")
        if TRANSITIONS[row.source].get(row.trigger) is not row.target:
            self.problems.append(f"{where} is not in the table")
        self.claims += row.trigger is Trigger.CLAIMER_CLAIM
        self.crashes += row.trigger in _CRASHES
        if row.attempt != self.claims:
            self.problems.append(f"{where} names attempt {row.attempt} after {self.claims} claims")
        self.end = row.target


@define(eq=False)
class _Histories:
    """All histories, and what they add up to."""

    histories: dict[str, _Path] = field(factory=dict)
    triggers: Counter[Trigger] = field(factory=Counter)
    rows: int = 0
    last_position: int = 0


def _read_histories(reader: Reader, problems: list[str]) -> _Histories:
    found = _Histories(last_position=reader.last_position())
    position = 0
    while page := reader.events(position, PAGE):
        for at, task_id, _, row in page:
            if at <= position:
                problems.append(f"history position {at} follows {position}")
            position = max(position, at)
            found.rows += 1
            found.triggers[row.trigger] += 1
            found.histories.setdefault(task_id, _Path()).follow(row)
    if position > found.last_position:
        problems.append(f"history has position {position} and the counter says {found.last_position}")
    return found


def _all_tasks(reader: Reader) -> Iterator[TaskRow]:
    before = None
    while page := reader.select(TaskFilter(), limit=PAGE, before_key=before):
        yield from page
        before = page[-1].key


@define(eq=False)
class _Rows:
    """What must hold between tasks."""

    ids: set[str] = field(factory=set)
    keys: dict[str, str] = field(factory=dict)
    states: Counter[tuple[str, State]] = field(factory=Counter)
    standing: set[str] = field(factory=set)
    """The holds of many that tasks may carry a mark of."""

    def note(self, row: TaskRow) -> Iterator[str]:
        if row.id in self.ids:
            yield f"task {row.id}: is stored twice"
        self.ids.add(row.id)
        self.states[row.name, row.state] += 1
        if row.idempotency_key is not None:
            first = self.keys.setdefault(row.idempotency_key, row.id)
            if first != row.id:
                yield f"task {row.id}: shares idempotency key {row.idempotency_key!r} with {first}"
        if row.held is not None:
            yield from (f"task {row.id} {text}" for text in self._check_hold(row.held))

    def _check_hold(self, held: str) -> Iterator[str]:
        try:
            hold = load_hold(held)
        except NotJson as error:
            yield f"has a hold that cannot be read: {error.problem}"
            return
        # A mark with an end of its own is taken off then, whatever has become of the hold.
        if hold.by is not None and hold.until is None and hold.by not in self.standing:
            yield f"carries a mark of {hold.by!r}, and there is no such hold to release"


def _check_task(row: TaskRow, path: _Path) -> Iterator[str]:
    yield from path.problems
    if path.length != row.version:
        yield f"has version {row.version} and {path.length} moves in its history"
    if path.end is not row.state:
        yield f"its history ends in {path.end.value}"
    if row.attempt != path.claims:
        yield f"has attempt {row.attempt} and was claimed {path.claims} times"
    if not 0 <= row.charged <= row.attempt:
        yield f"charged {row.charged} is not between 0 and attempt {row.attempt}"
    if row.max_attempts is not None and row.charged > row.max_attempts:
        yield f"charged {row.charged} exceeds max_attempts {row.max_attempts}"
    if not path.crashes <= row.crashes <= row.attempt:
        yield f"crashes {row.crashes} is not between {path.crashes} (in its history) and attempt {row.attempt}"
    yield from _check_marks(row)


def _check_marks(row: TaskRow) -> Iterator[str]:
    """Compare what a row carries with its state."""
    is_final, is_leased = row.state in FINAL, row.state in LEASED
    marks = {
        "finished_at": (row.finished_at is not None, is_final),
        "an owner": (row.owner is not None, is_leased),
    }
    for mark, (is_there, is_due) in marks.items():
        if is_there != is_due:
            yield f"has {mark if is_there else 'not ' + mark}"
    if row.result is not None and row.state is not State.SUCCEEDED:
        yield "has a result"
    if row.failure is not None and row.state is State.SUCCEEDED:
        yield "has a failure"
    if row.wish is None and row.state is State.STOPPING:
        yield "nobody wished it"
    if row.wish is not None and not (is_leased or is_final):
        yield "still carries a wish"
    if row.held is not None and is_final:
        yield "is held though it has ended"
    if row.attempt and (row.max_attempts is None or row.recover is None):
        yield "was claimed without max_attempts or recover"


def _check_sayings(reader: Reader, row: TaskRow) -> Iterator[str]:
    """Compare what bodies said of themselves with the attempts that there were."""
    side = reader.sides([row.key]).get(row.key)
    if side is not None and not 1 <= side.attempt <= row.attempt:
        yield f"has side data of attempt {side.attempt} and was claimed {row.attempt} times"
    for line in reader.logs(row.id, limit=1):
        if not 1 <= line.attempt <= row.attempt:
            yield f"has captured lines of attempt {line.attempt} and was claimed {row.attempt} times"


def _check_holds(reader: Reader) -> Iterator[str]:
    for hold in reader.holds():
        if bool(hold.target) == (hold.scope is HoldScope.ALL):
            yield f"hold {hold.mark}: has {'a' if hold.target else 'no'} target"


def _check_tallies(reader: Reader, states: Counter[tuple[str, State]], paths: _Histories) -> Iterator[str]:
    kept_states, kept_triggers = reader.tallies()
    for name, state in sorted(states.keys() | kept_states.keys()):
        counted, kept = states[name, state], kept_states.get((name, state), 0)
        if counted != kept:
            yield f"{counted} tasks named {name!r} are {state.value} and the counter says {kept}"
    # Triggers count what has happened, also to tasks that were deleted with their history since.
    was_deleted_from = paths.rows != paths.last_position
    for trigger in sorted(paths.triggers.keys() | kept_triggers.keys()):
        counted, kept = paths.triggers[trigger], kept_triggers.get(trigger, 0)
        if counted > kept or (counted < kept and not was_deleted_from):
            yield f"the history has {counted} times {trigger.value} and the counter says {kept}"
    total = sum(kept_triggers.values())
    if total != paths.last_position:
        yield f"{total} moves were counted and the last position is {paths.last_position}"
