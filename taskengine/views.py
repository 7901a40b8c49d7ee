"""What can be read of a store, and waiting for it to change.

Nothing here writes. Waiting is looking again after each commit; what is waited for is taken from the store, so that
it does not matter which process made it true.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from taskengine import codec, records
from taskengine.actors.bulletin import Bulletin
from taskengine.core.errors import EngineNotRunning, InvalidOption, InvalidResult, TaskExpired, TaskNotFound
from taskengine.core.lifecycle import FINAL, UNFINISHED, State, Trigger
from taskengine.core.model import HistoryRow, Outcome, Stats, Task, TaskFilter, TaskPage, TaskRow, Transition
from taskengine.ports import Reader, StoreHost
from taskengine.registry import Registry, TaskDefinition

EVENTS_PAGE = 500
MAX_LIMIT = 10_000
IDS_CHUNK = 500

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
            if self._bulletin.is_closed:
                raise StopAsyncIteration
            # Before looking, so that a commit that comes while we look is not missed.
            commit = self._bulletin.next_commit()
            rows = await self._host.read(partial(_events_behind, self._position))
            self._page.extend(records.transition_from_row(*row) for row in rows)
            if not rows:
                await commit.wait()
        event = self._page.popleft()
        self._position = event.position
        return event


class Views:
    """The reading half of an engine."""

    def __init__(self, *, host: StoreHost, bulletin: Bulletin, registry: Registry) -> None:
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
        return records.task_from_row(await self.row(task_id))

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
        return TaskPage(tuple(records.task_from_row(row) for row in rows), f"{rows[-1].key}" if more and rows else None)

    def events(self, after: int | None) -> "EventStream":
        """Return the committed moves behind the cursor `after`, for ever."""
        return EventStream(self._host, self._bulletin, after)

    # --- counters ---

    async def stats(self, *, slots_used: int, slots_total: int, outages: int, last_outage: str | None) -> Stats:
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
        left = list(dict.fromkeys(ids))

        def look(reader: Reader) -> bool:
            nonlocal left
            while left:
                chunk = left[:IDS_CHUNK]
                done = _gone_or_finished(chunk, reader)
                if len(done) < len(chunk):
                    left = [task_id for task_id in left if task_id not in done]
                    return False
                left = left[IDS_CHUNK:]
            return True

        await self.until(look)

    async def wait_all_matching(self, where: TaskFilter) -> None:
        """Wait until no unfinished task matches."""
        wanted = UNFINISHED if where.states is None else UNFINISHED & where.states
        narrowed = TaskFilter(
            ids=where.ids,
            states=wanted,
            name=where.name,
            tag=where.tag,
            created_after=where.created_after,
            created_before=where.created_before,
        )
        await self.until(lambda reader: not reader.select(narrowed, limit=1))

    async def drained(self, names: Callable[[], Sequence[str]]) -> None:
        """Wait until no unheld, unfinished task of these names is left."""

        def look(reader: Reader) -> bool:
            known = set(names())
            states, _ = reader.tallies()
            left = sum(n for (name, state), n in states.items() if name in known and state not in FINAL)
            return left == 0 or left == reader.held(tuple(known))

        await self.until(look)

    async def notice_foreign_ends(self) -> None:
        """Wake those whose task another process has ended."""
        awaited = list(self._bulletin.awaited)
        for start in range(0, len(awaited), IDS_CHUNK):
            chunk = awaited[start : start + IDS_CHUNK]
            for task_id in await self._host.read(partial(_gone_or_finished, chunk)):
                self._bulletin.announce_end(task_id, None, 0)


def _events_behind(position: int, reader: Reader) -> list[tuple[int, str, str, HistoryRow]]:
    return reader.events(position, EVENTS_PAGE)


def _gone_or_finished(ids: Sequence[str], reader: Reader) -> set[str]:
    return reader.finished(ids) | {task_id for task_id in ids if reader.was_deleted(task_id)}


def _read_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if type(cursor) is not str or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 19:
        raise InvalidOption("cursor", f"{cursor!r} is not a cursor; pass a page's `next`")
    return int(cursor)
