"""What the engine asks of the world: small Protocols with their contracts.

A store is synchronous and knows no rules. It offers one atomic transaction made of set-based primitives; what is done
with them (which move, which order, which guard) is decided by `core` and sequenced by `actors.tick`. The same holds
for every adapter: a third party's store passes the suite in `taskengine.testing` and is then as good as ours.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any, Protocol, TypeVar, runtime_checkable

from attrs import define, field, frozen

from taskengine.core.facts import Fact
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import (
    CommandRow,
    Failure,
    HistoryRow,
    HoldRow,
    HoldScope,
    LogRow,
    OwnerRow,
    SideRow,
    TaskFilter,
    TaskRow,
    TaskWrite,
)
from taskengine.core.retry import ErrorNames
from taskengine.signals import Signals, Voice

T = TypeVar("T")


CLAIM_BYTES = 16 * 1024 * 1024
"""What one claim may bring into memory: arguments and metadata together, the last task not counted."""


@define
class Head:
    """The store's own counters, read at the start of a transaction and saved at its end."""

    next_key: int
    """Integer key of the next task; only grows."""
    next_position: int
    """Position of the next history row; only grows."""
    last_rank: int
    """Time part of the last rank given, in microseconds; only grows, whatever the wall clock does."""
    owner_known: bool
    """Whether the asking owner's row is there (True where no owner was asked for)."""
    other_owners: int
    """How many other owners have a row."""
    has_commands: bool
    """Whether commands wait for the asking owner."""
    holds_version: int = 0
    """Rises with every `put_hold` and `drop_hold`; only grows."""


class Transaction(Protocol):
    """One open write transaction. All or nothing; reads see its own writes. Methods are called in any order."""

    def head(self, owner: str | None) -> Head:
        """Read the counters."""

    def pending(self) -> int:
        """Count the tasks in a WAITING state, from the counters."""

    def save_head(self, head: Head) -> None:
        """Store `next_key`, `next_position` and `last_rank`."""

    def insert(self, rows: Sequence[TaskRow]) -> None:
        """Store new tasks, each with a key from `Head.next_key` on; ids and idempotency keys are unique.

        Raises:
            StoreError: an id, key or idempotency key is taken already.
        """

    def find(self, *, ids: Sequence[str] = (), idempotency_keys: Sequence[str] = ()) -> list[TaskRow]:
        """Return the tasks that have one of the ids or one of the keys, each once, in any order."""

    def deleted(self, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` that once belonged to a task and were deleted."""

    def requeued(self, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` from which some other task was made by a requeue."""

    def update(self, writes: Sequence[TaskWrite]) -> set[int]:
        """Apply each write whose row has the expected attempt and version.

        Returns:
            The keys that were changed; the others lost their guard, which is a normal answer.
        """

    def append(self, rows: Sequence[HistoryRow], first_position: int) -> None:
        """Append to the history, at consecutive positions from `first_position` on."""

    def tally(self, states: Mapping[tuple[str, State], int], triggers: Mapping[Trigger, int]) -> None:
        """Add to the counters kept for each (name, state) and each trigger."""

    def due(self, now: int, limit: int) -> list[TaskRow]:
        """Return tasks in a TIMED state whose `due_at` is not after `now`, soonest first.

        Their `args`, `metadata` and `result` may be left out: there may be many, and they may be large.
        """

    def expired(self, now: int, limit: int) -> list[TaskRow]:
        """Return tasks without a body whose time is over, in any order; large columns may be left out, as by `due`.

        These are the tasks in a WAITING state with `deadline_at` not after `now`, and those in a CLAIMABLE state with
        `started_at` None and `due_at + start_within` not after `now`.
        """

    def hold_ended(self, now: int, limit: int) -> list[TaskRow]:
        """Return tasks that are not final and carry a hold whose `until` is not after `now`, in any order, light."""

    def marked(self, by: str, limit: int) -> list[TaskRow]:
        """Return tasks that are not final and carry a hold whose `by` is the given one, in any order, light."""

    def next_due(self) -> int | None:
        """Return the soonest instant at which `due`, `expired` or `hold_ended` has something to return."""

    def tags_of(self, keys: Sequence[int], tags: Sequence[str]) -> dict[int, str]:
        """Return, of the tasks with these keys that have one of the tags, one such tag of each."""

    def claimable(self, names: Sequence[str], limit: int) -> list[TaskRow]:
        """Return queued, unheld tasks with one of the names, ordered by (rank, key), `limit` at most.

        May return fewer, so that no more than `CLAIM_BYTES` come with all but the last of them.

        Must cost no more with a million tasks of other names than with none.
        """

    def claim(self, keys: Sequence[int], owner: str) -> None:
        """Make the tasks `starting`: attempt, charged and version +1, `owner` set. Only for rows just read."""

    def set_defaults(self, key: int, max_attempts: int, recover: str, deadline_at: int | None) -> None:
        """Fill in what a client that does not know the task could not."""

    def extend(self, deadlines: Sequence[tuple[int, int, int]]) -> None:
        """Set `deadline_at` for each (key, attempt, deadline_at) whose task is at that attempt; not a move."""

    def put_sides(self, rows: Sequence[SideRow]) -> None:
        """Keep the newest side data of each task; a row with an older attempt than the one that is kept is ignored.

        Within one attempt, `progress` None leaves the kept progress as it is. Touches neither task nor version.
        """

    def append_logs(self, rows: Sequence[LogRow], keep: int) -> None:
        """Append captured lines; of each (task, attempt) among them only the `keep` highest numbers stay."""

    def owned(self, owner: str, limit: int) -> list[TaskRow]:
        """Return tasks in a LEASED state that `owner` holds; `args`, `metadata` and `result` may be left out."""

    def put_owner(self, owner: OwnerRow) -> None:
        """Store a new owner."""

    def get_owner(self, owner: str) -> OwnerRow | None:
        """Read one owner's row."""

    def beat(self, owner: str) -> bool:
        """Raise an owner's beat by one; False if its row is gone."""

    def drop_owner(self, owner: str) -> None:
        """Delete an owner's row, if it is there, and the commands meant for it."""

    def put_command(self, command: CommandRow) -> None:
        """Store a command for another owner; one with the same id is left as it is."""

    def commands(self, owner: str) -> list[CommandRow]:
        """Return the commands meant for `owner`, oldest first."""

    def drop_commands(self, ids: Sequence[str]) -> None:
        """Delete commands that were carried out."""

    def put_hold(self, hold: HoldRow) -> None:
        """Store a hold of many, in place of one with the same scope and target."""

    def drop_hold(self, scope: HoldScope, target: str) -> None:
        """Delete a hold of many, if it is there."""

    def holds(self) -> list[HoldRow]:
        """Return every hold of many, released ones among them, oldest first."""

    def delete(self, keys: Sequence[int]) -> None:
        """Delete tasks with their history, side data and captured lines, and leave a tombstone of each id."""


class Reader(Protocol):
    """Committed facts. Reading changes nothing, and never waits for a writer."""

    def get(self, task_id: str) -> TaskRow | None: ...

    def was_deleted(self, task_id: str) -> bool: ...

    def select(
        self, where: TaskFilter, *, limit: int, before_key: int | None = None, claim_order: bool = False
    ) -> list[TaskRow]:
        """Return matching tasks, newest first from below `before_key`; or the queued ones in claim order."""

    def history(self, task_id: str) -> list[tuple[int, HistoryRow]]:
        """Return (position, row) of one task, oldest first."""

    def events(self, after: int, limit: int) -> list[tuple[int, str, str, HistoryRow]]:
        """Return (position, task id, name, row) behind `after`, oldest first."""

    def last_position(self) -> int: ...

    def tallies(self) -> tuple[dict[tuple[str, State], int], dict[Trigger, int]]: ...

    def held(self, names: Sequence[str] | None, tags: Sequence[str] = ()) -> int:
        """Count unfinished tasks, of the given names or of all, that carry a hold, or wait and have one of the tags."""

    def holds(self) -> list[HoldRow]:
        """Return every hold of many, released ones among them, oldest first."""

    def sides(self, keys: Sequence[int]) -> dict[int, SideRow]:
        """Return the side data of those of the tasks that have some."""

    def logs(self, task_id: str, *, attempt: int | None = None, limit: int) -> list[LogRow]:
        """Return the last `limit` captured lines of a task (of one attempt, or of all), oldest first."""

    def finished(self, ids: Sequence[str]) -> set[str]:
        """Return those of `ids` whose task is final."""

    def owners(self) -> list[OwnerRow]: ...

    def ownerless(self) -> list[str]:
        """Return owners that hold tasks though their row is gone."""


class Store(Protocol):
    """Where tasks live. Opened by the engine, used by one writer and one reader thread (or inline)."""

    inline: bool
    """True: calls are so short that they are made on the event loop, without a thread."""

    def open(self) -> None:
        """Connect and bring the schema up to date; safe when several processes start at once.

        Raises:
            StoreIncompatible: the store is newer than this library, or not one of ours.
            StoreUnavailable: it cannot be reached or written.
        """

    def transact(self) -> AbstractContextManager[Transaction]:
        """Begin a write transaction; commit on a clean exit, roll back on an exception.

        Raises:
            StoreUnavailable: locked or unreachable for now; nothing was written.
            StoreFull: no room; nothing was written.
            StoreClosed: after `close`.
        """

    def reader(self) -> Reader:
        """Return the reading side; used from one thread, which need not be the writer's."""

    def foreign_commits(self) -> int:
        """Return a number that changes when somebody else has committed; called between transactions."""

    def close(self) -> None:
        """Release everything. Idempotent; later use raises StoreClosed."""


class StoreHost(Protocol):
    """Runs a store's synchronous calls for the actors: in a thread of its own, or inline."""

    other_owners: int
    """How many others write to the store, told by the persister; a host leaves them time between its writes."""

    async def write(self, job: Callable[[], T]) -> T:
        """Run `job` where transactions may be made, one at a time.

        Cancellation: cannot be cancelled; the job runs to its end.
        """

    async def read(self, job: Callable[[Reader], T]) -> T:
        """Run `job` with the reading side.

        Cancellation: gives up waiting; reading has no effect.
        """

    def renew(self, owner: str | None) -> None:
        """Keep this owner's lease from now on (None: none)."""


class Clock(Protocol):
    """All time comes through here."""

    def now(self) -> int:
        """Wall clock in microseconds since the Unix epoch; may jump. Only for what is stored."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never jumps. Only for waiting. Callable from any thread."""


@frozen(kw_only=True)
class HttpRequest:
    """What a Downstream is asked to send."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Not in the repr, since they may hold credentials; nor is the body."""
    body: bytes = field(default=b"", repr=False)
    timeout: float = 5.0
    """Seconds for the whole exchange, from connecting to the last byte."""
    max_bytes: int = 1024 * 1024
    """Largest body accepted, before and after decompression."""


@frozen(kw_only=True)
class HttpAnswer:
    """What came back, whatever its status."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@runtime_checkable
class Downstream(Protocol):
    """Carries one HTTP exchange."""

    async def send(self, request: HttpRequest) -> HttpAnswer:
        """Send and read the whole answer; redirects are not followed.

        Raises:
            DownstreamError: no answer (kind `connection` or `timeout_attempt`), or one that is refused
                (`retryable=False`: address not allowed, answer too large).

        Cancellation: closes the connection, so that the other side sees the disconnect.
        """

    async def aclose(self) -> None:
        """Close idle connections."""


@define(eq=False, kw_only=True)
class Call:
    """A body with its arguments, decoded, and the context variables that it sees."""

    task_id: str
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    """The TaskContext among them, if the function takes one."""
    kwargs: Mapping[str, Any]
    context: Context
    """A copy of its own, so that no body sees what another has set."""
    signals: Signals
    """What the body is asked to do; the runner changes it while the body runs."""
    facts: "CallFacts | None" = None
    """For executors that ask for it (`Executor.wants_facts`)."""


@frozen(kw_only=True)
class CallFacts:
    """What an executor that cannot hand the function itself over needs to know of the call."""

    task_id: str
    name: str
    attempt: int
    takes_context: bool
    arguments: str
    """`[args, kwargs]` as JSON text, without the TaskContext."""
    metadata: Mapping[str, Any]
    idempotency_key: str
    voice: Voice
    max_value_bytes: int
    max_error_bytes: int
    kill_grace: float
    """Seconds from `Body.interrupt` to `Body.abandon`; force that comes in steps must fit into them."""


@frozen(kw_only=True)
class ErrorReport:
    """An exception that was raised elsewhere, as data."""

    failure: Failure
    leaves: Sequence[ErrorNames] = ()
    """Class names of the innermost exceptions, for the policy."""
    retryable: bool | None = None
    """The body's own verdict; None asks the policy."""
    retry_after: float | None = None
    """Seconds."""


@define(eq=False)
class BodyEnd:
    """How a body ended. Who asked for the end is the runner's knowledge and not guessed from the exception."""

    value: Any = None
    result: str | None = None
    """The value as JSON text, where the executor has encoded it already; `value` counts for nothing then."""
    error: BaseException | None = None
    """None: it returned `value`. TaskStopped, TaskSnoozed and TaskDiscarded are rebuilt, wherever they were raised."""
    report: ErrorReport | None = None
    """What is known of an exception that did not come over as one; `error` is None then."""
    is_abandoned: bool = False
    """It did not end; nobody drives or waits for it any more."""
    is_slot_spoiled: bool = False
    """It left scopes or task groups open in the anyio task that ran it, which must not run another."""


class Body(Protocol):
    """One body, on its way. Made by an executor, run once."""

    async def run(self) -> BodyEnd:
        """Run it to its end; never raises what the body raised, it returns that.

        Cancellation: reaches the body.
        """

    def interrupt(self) -> None:
        """Begin to end it by force, as far as there is one. May be called again, and after its end."""

    def abandon(self) -> None:
        """Stop waiting for it: `run` returns as soon as it can, `is_abandoned`."""

    def where(self) -> str:
        """Say where it is now, in a line of text, for the log."""


class ArtifactStore(Protocol):
    """Folders in which attempts leave files."""

    def make(self, task_id: str, attempt: int) -> str:
        """Return the path of an attempt's folder, which exists after the call; on any thread."""

    async def clean(self, task_id: str, attempt: int | None = None) -> None:
        """Remove the folder of an attempt, or of the whole task, if it is there; never raises.

        Cancellation: waits for what is under way.
        """


class Teller(Protocol):
    """Tells committed facts to somebody, such as the log. It must not raise."""

    def is_listening(self) -> bool:
        """Whether anybody wants to know; facts are not even made otherwise."""

    def tell(self, fact: Fact) -> None:
        """Pass one fact on."""


class Executor(Protocol):
    """A place where bodies run."""

    wants_facts: bool
    """Whether its calls must carry `Call.facts`; making them costs as much as a short body."""

    def start(self, call: Call) -> Body:
        """Prepare a body; nothing of it runs before `Body.run`."""

    async def aclose(self) -> None:
        """Let idle resources go. Bodies that were abandoned are left behind.

        Cancellation: shielded by the engine; its length is bounded.
        """
