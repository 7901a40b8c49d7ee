"""What can be read of a store, and waiting for it to change.

Nothing here writes. Waiting is looking again after each commit; what is waited for is taken from the store, so that
it does not matter which process made it true.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from attrs import evolve

from taskengine import codec, records
from taskengine.actors.bulletin import Bulletin
from taskengine.core.errors import (
    EngineNotRunning,
    InvalidOption,
    InvalidResult,
    StoreClosed,
    TaskExpired,
    TaskNotFound,
)
from taskengine.core.explain import Explanation, OwnerFacts, Surroundings, covers, explain
from taskengine.core.leases import process_of
from taskengine.core.lifecycle import FINAL, UNFINISHED, WAITING, State, Trigger
from taskengine.core.model import (
    HistoryRow,
    HoldRow,
    HoldScope,
    LogLine,
    Outcome,
    OwnerRow,
    StandingHold,
    Stats,
    Task,
    TaskFilter,
    TaskPage,
    TaskRow,
    Transition,
    Wish,
    WishKind,
)
from taskengine.identity import is_gone, this_process
from taskengine.ports import Reader, StoreHost
from taskengine.registry import Registry, TaskDefinition

EVENTS_PAGE = 500
MAX_LIMIT = 10_000
IDS_CHUNK = 500
LOOK_AHEAD = 200
"""Tasks in front of one that are counted for its explanation; more are not told apart."""

_SUBMITS = (Trigger.USER_SUBMIT, Trigger.USER_SUBMIT_LATER, Trigger.PIPELINE_SUBMIT)


class EventStream:
    """Async iterator over the committed moves of all tasks, oldest first, for ever.

    It reads pages as they are taken, so that a slow reader makes nothing grow, and holds nothing that would have to be
    closed. It ends when the engine is left.

    Cancellation: while waiting for the next move; begin again behind the last position seen.
    """

    def __init__(self, host: StoreHost, bulletin: Bulletin, after: int | None) -> None:
        self._host = host
        self._bulletin = bulletin
        self._position = after
        self._page: deque[Transition] = deque()

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Transition:
        if self._position is None:
            self._position = await self._host.read(lambda reader: reader.last_position())
        while not self._page:
            is_last_look = self._bulletin.is_closed
            # Before looking, so that a commit that comes while we look is not missed.
            commit = self._bulletin.next_commit()
            try:
                rows = await self._host.read(partial(_events_behind, self._position))
            except (StoreClosed, EngineNotRunning):
                raise StopAsyncIteration from None  # The engine was left while this waited, and its store is closed.
            self._page.extend(records.transition_from_row(*row) for row in rows)
            if not rows:
                if is_last_look:
                    raise StopAsyncIteration
                await commit.wait()
        event = self._page.popleft()
        self._position = event.position
        return event


class Views:
    """The reading half of an engine."""

    def __init__(self, *, host: StoreHost, bulletin: Bulletin, registry: Registry, now: Callable[[], int]) -> None:
        self._now = now
        self._host = host
        self._bulletin = bulletin
        self._registry = registry

    # --- one task ---

    async def row(self, task_id: str) -> TaskRow:
        """Read one row.

        Raises:
            TaskNotFound: no task has this id. TaskExpired: one had it, and was deleted.
        """

        def look(reader: Reader) -> TaskRow | bool:
            return reader.get(task_id) or reader.was_deleted(task_id)

        found = await self._host.read(look)
        if isinstance(found, TaskRow):
            return found
        raise TaskExpired(task_id) if found else TaskNotFound(task_id)

    async def get(self, task_id: str) -> Task:
        """Read one task."""
        row = await self.row(task_id)
        sides = await self._host.read(lambda reader: reader.sides([row.key]))
        return records.task_from_row(row, sides.get(row.key))

    async def logs(self, task_id: str, *, attempt: int | None, limit: int) -> list[LogLine]:
        """Read what its bodies logged, the last `limit` lines, oldest first."""
        await self.row(task_id)
        lines = await self._host.read(lambda reader: reader.logs(task_id, attempt=attempt, limit=limit))
        return [records.log_line(line) for line in lines]

    async def explain(self, task_id: str) -> Explanation:
        """Tell why a task is not running."""
        row = await self.row(task_id)
        found = await self._host.read(partial(_surroundings, row))
        task = records.task_from_row(row)
        wish = task.wish
        if wish is None and row.state in (State.STOPPED, State.CANCELLED):
            # It had no body whose end was wished for; its last move tells who asked.
            move = (await self.history(task_id))[-1]
            kind = WishKind.STOP if row.state is State.STOPPED else WishKind.CANCEL
            wish = Wish(kind=kind, actor=move.actor, reason=move.reason)
        return explain(row, found, held=task.held, wish=wish, now=self._now(), failure=task.error)

    async def holds(self) -> list[StandingHold]:
        """Read the holds of many that stand."""
        rows = await self._host.read(lambda reader: reader.holds())
        now = self._now()
        return [
            records.standing_hold(row) for row in rows if not row.is_released and (row.until is None or row.until > now)
        ]

    async def history(self, task_id: str) -> list[Transition]:
        """Read one task's moves, oldest first."""
        row = await self.row(task_id)
        moves = await self._host.read(lambda reader: reader.history(task_id))
        return [records.transition_from_row(position, row.id, row.name, move) for position, move in moves]

    async def outcome(self, task_id: str, definition: TaskDefinition | None) -> Outcome[Any]:
        """Wait for a task's end.

        Cancellation: gives up waiting; the task goes on.
        """
        ending = self._bulletin.expect(task_id)
        try:
            row = await self.row(task_id)
            while row.state not in FINAL:
                await ending.event.wait()
                if ending.write is not None:
                    write = ending.write
                    return self._outcome(
                        task_id, row.name, write.state, write.result, write.failure, ending.attempt, definition
                    )
                if self._bulletin.is_closed:
                    raise EngineNotRunning("it was left while somebody waited for a task; the task goes on elsewhere")
                ending = self._bulletin.expect(task_id)
                row = await self.row(task_id)
        finally:
            self._bulletin.forget(task_id, ending)
        return self._outcome(task_id, row.name, row.state, row.result, row.failure, row.attempt, definition)

    def _outcome(
        self,
        task_id: str,
        name: str,
        state: State,
        result: str | None,
        failure: str | None,
        attempt: int,
        definition: TaskDefinition | None,
    ) -> Outcome[Any]:
        if definition is None and name in self._registry:
            definition = self._registry.get(name)
        value = None
        if state is State.SUCCEEDED and result is not None:
            value = self._value(name, result, definition)
        return Outcome(
            id=task_id,
            state=state,
            value=value,
            failure=records.readable_failure(failure, attempt),
            attempt=attempt,
        )

    def _value(self, name: str, result: str, definition: TaskDefinition | None) -> Any:
        try:
            return definition.decode_result(result) if definition is not None else codec.load(result)
        except codec.NotJson as error:
            raise InvalidResult(name, f"what is stored cannot be read: {error.problem}") from error

    # --- many tasks ---

    async def page(self, where: TaskFilter, *, limit: int, cursor: str | None, order: str) -> TaskPage:
        """Read a page of tasks, newest first or in claim order.

        Raises:
            InvalidOption: the limit, the cursor or the order is of no use.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
            raise InvalidOption("limit", f"{limit!r} is not a whole number from 1 to {MAX_LIMIT:,}")
        if order not in ("newest", "claim"):
            raise InvalidOption("order", f"{order!r} is neither 'newest' nor 'claim'")
        if order == "claim" and cursor is not None:
            raise InvalidOption("cursor", "a look at the claim order has no further pages; raise the limit")
        before = _read_cursor(cursor)
        rows = await self._host.read(
            lambda reader: reader.select(where, limit=limit + 1, before_key=before, claim_order=order == "claim")
        )
        more = len(rows) > limit and order == "newest"
        rows = rows[:limit]
        sides = await self._host.read(lambda reader: reader.sides([row.key for row in rows])) if rows else {}
        tasks = tuple(records.task_from_row(row, sides.get(row.key)) for row in rows)
        return TaskPage(tasks, f"{rows[-1].key}" if more and rows else None)

    async def matching(self, where: TaskFilter, *, limit: int, before_key: int | None) -> list[TaskRow]:
        """Read rows that match, newest first from below `before_key`."""
        return await self._host.read(lambda reader: reader.select(where, limit=limit, before_key=before_key))

    def events(self, after: int | None) -> "EventStream":
        """Return the committed moves behind the cursor `after`, for ever."""
        return EventStream(self._host, self._bulletin, after)

    # --- counters ---

    async def stats(
        self, *, slots_used: int, slots_total: int, slots_paused: int, outages: int, last_outage: str | None
    ) -> Stats:
        """Read the counters of the store, beside those of this engine."""
        states, triggers = await self._host.read(lambda reader: reader.tallies())
        by_state = dict.fromkeys((state.value for state in State if state is not State.PENDING), 0)
        by_name: dict[str, dict[str, int]] = {}
        for (name, state), n in states.items():
            by_state[state.value] += n
            if n:
                by_name.setdefault(name, {})[state.value] = n
        return Stats(
            by_state=by_state,
            by_name=by_name,
            submitted=sum(triggers.get(trigger, 0) for trigger in _SUBMITS),
            completed=by_state[State.SUCCEEDED],
            failed=by_state[State.FAILED] + by_state[State.LOST],
            retried=triggers.get(Trigger.ATTEMPT_RETRY, 0),
            unfinished=sum(by_state[state] for state in UNFINISHED),
            queued=by_state[State.QUEUED],
            slots_used=slots_used,
            slots_total=slots_total,
            slots_paused=slots_paused,
            store_failures=outages,
            store_last_error=last_outage,
        )

    # --- waiting ---

    async def until(self, look: "Callable[[Reader], bool]") -> None:
        """Look after each commit until `look` is true.

        Raises:
            EngineNotRunning: the engine was left in the meantime.
        """
        while True:
            commit = self._bulletin.next_commit()
            if await self._host.read(look):
                return
            if self._bulletin.is_closed:
                raise EngineNotRunning("it was left while somebody waited")
            await commit.wait()

    async def wait_all_ids(self, ids: Sequence[str]) -> None:
        """Wait until each of these tasks has ended."""
        for task_id in ids:
            await self.row(task_id)
        left = deque(dict.fromkeys(ids))

        def look(reader: Reader) -> bool:
            # All have ended when the first of them has, and then the next: in most looks one is asked for.
            size = 1
            while left:
                chunk = tuple(islice(left, size))
                finished = reader.finished(chunk)
                for task_id in chunk:
                    if task_id not in finished and not reader.was_deleted(task_id):
                        return False
                    left.popleft()
                size = min(4 * size, IDS_CHUNK)
            return True

        await self.until(look)

    async def wait_all_matching(self, where: TaskFilter) -> None:
        """Wait until no unfinished task matches."""
        wanted = UNFINISHED if where.states is None else UNFINISHED & where.states
        narrowed = evolve(where, states=wanted)
        await self.until(lambda reader: not reader.select(narrowed, limit=1))

    async def drained(self, names: Callable[[], Sequence[str]]) -> None:
        """Wait until no unheld, unfinished task of these names is left."""

        def look(reader: Reader) -> bool:
            known = set(names())
            states, _ = reader.tallies()
            left = {key: n for key, n in states.items() if key[0] in known and key[1] not in FINAL and n}
            return not left or _all_held(reader, left, self._now())

        await self.until(look)

    async def notice_foreign_ends(self) -> None:
        """Wake those whose task another process has ended."""
        awaited = list(self._bulletin.awaited)
        for start in range(0, len(awaited), IDS_CHUNK):
            chunk = awaited[start : start + IDS_CHUNK]
            for task_id in await self._host.read(partial(_gone_or_finished, chunk)):
                self._bulletin.announce_end(task_id, None, 0)


def _all_held(reader: Reader, left: dict[tuple[str, State], int], now: int) -> bool:
    """Tell whether of the given unfinished tasks, counted by name and state, none can ever run as things stand."""
    holds = [hold for hold in reader.holds() if not hold.is_released and (hold.until is None or hold.until > now)]
    names = {hold.target for hold in holds if hold.scope is HoldScope.NAME}
    if any(hold.scope is HoldScope.ALL for hold in holds):
        names = {name for name, _ in left}
    if any(name in names and state not in WAITING for name, state in left):
        return False  # A body is at work under a hold; it may yet end.
    free = {name for name, _ in left} - names
    count = sum(n for (name, _), n in left.items() if name in free)
    tags = tuple(hold.target for hold in holds if hold.scope is HoldScope.TAG)
    return count == (reader.held(tuple(free), tags) if free else 0)


def _surroundings(row: TaskRow, reader: Reader) -> Surroundings:
    stored = reader.owners()
    gone = frozenset(owner.id for owner in stored if _is_gone(owner))
    owners = [OwnerFacts(id=owner.id, pid=owner.pid, names=owner.names) for owner in stored if owner.id not in gone]
    holds = reader.holds()
    ahead = None
    if row.state is State.QUEUED and row.held is None:
        ahead = _count_ahead(row, reader, owners, [hold for hold in holds if not hold.is_released])
    return Surroundings(holds=holds, owners=owners, ahead=ahead, tags=records.tags_of(row), gone=gone)


def _is_gone(owner: OwnerRow) -> bool:
    """Tell whether an owner of this host is known to be dead, though nobody has settled its tasks yet."""
    them = process_of(owner)
    return this_process().is_comparable(them) and is_gone(them)


def _count_ahead(row: TaskRow, reader: Reader, owners: Sequence[OwnerFacts], holds: Sequence[HoldRow]) -> int:
    """Count, up to LOOK_AHEAD, what the processes that know this task would take before it."""
    able = [owner.names for owner in owners if row.name in owner.names]
    ahead = 0
    for name in sorted({name for names in able for name in names})[:LOOK_AHEAD]:
        heads = reader.select(TaskFilter(name=name), limit=LOOK_AHEAD, claim_order=True)
        ahead += sum(
            (head.rank, head.key) < (row.rank, row.key)
            and not any(covers(hold, head, records.tags_of(head)) for hold in holds)
            for head in heads
        )
    return min(ahead, LOOK_AHEAD)


def _events_behind(position: int, reader: Reader) -> list[tuple[int, str, str, HistoryRow]]:
    return reader.events(position, EVENTS_PAGE)


def _gone_or_finished(ids: Sequence[str], reader: Reader) -> set[str]:
    finished = reader.finished(ids)
    return finished | {task_id for task_id in ids if task_id not in finished and reader.was_deleted(task_id)}


def _read_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if type(cursor) is not str or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 19:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor; pass a page's `next`")
    return int(cursor)
