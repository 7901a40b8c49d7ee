"""What one tick is asked to do, and what came of it."""

from collections.abc import Callable, Mapping, Sequence

from attrs import define, evolve, field

from taskengine.actors.messages import (
    Attempt,
    Delete,
    PutHold,
    Receipt,
    Recover,
    Register,
    ReleaseHold,
    Request,
    RequestAnswer,
    Requeue,
    Submit,
)
from taskengine.core.decide import Decision
from taskengine.core.model import CommandRow, HistoryRow, HoldRow, LogRow, SideRow, TaskRow, TaskWrite
from taskengine.core.timeouts import NO_TIMEOUTS, Timeouts


@define(eq=False)
class Settlement:
    """A decided write about one of this engine's own attempts."""

    attempt: Attempt
    write: TaskWrite
    history: list[HistoryRow]
    decision: Decision
    ends_attempt: bool
    """False for the announcement that a body began."""


@define(eq=False)
class TaskDefaults:
    """What a task's definition says, for tasks that were stored without it."""

    max_attempts: int
    recover: str
    timeouts: Timeouts = NO_TIMEOUTS


@define(eq=False)
class ClaimOrder:
    """What may be claimed."""

    names: Sequence[str]
    free: int
    """Slots that no claimed task waits for: any task may take one."""
    total: int
    """`free` and the prefetch: beyond `free`, only tasks that may be prefetched."""


@define(eq=False)
class KnownHolds:
    """The holds of many, as they were read under a version of them."""

    version: int = 0
    rows: Sequence[HoldRow] = ()


@define(eq=False)
class Said:
    """What a body has said, as rows."""

    side: SideRow | None = None
    lines: Sequence[LogRow] = ()
    deadline: tuple[int, int, int] | None = None
    """(key, attempt, deadline_at)"""


@define(eq=False)
class Batch:
    """The work of one transaction."""

    now: int
    new_id: Callable[[], str]
    """Makes the ids of callback tasks; called on the writer's thread."""
    owner: str | None = None
    register: list[Register] = field(factory=list)
    submits: list[Submit] = field(factory=list)
    requeues: list[Requeue] = field(factory=list)
    settlements: list[Settlement] = field(factory=list)
    recoveries: list[Recover] = field(factory=list)
    requests: list[Request] = field(factory=list)
    holds: list[PutHold | ReleaseHold] = field(factory=list)
    deletes: list[Delete] = field(factory=list)
    said: list[Said] = field(factory=list)
    claim: ClaimOrder | None = None
    defaults: Mapping[str, TaskDefaults] = field(factory=dict)
    """By name, of the tasks that are known here."""
    max_pending: int | None = None
    keep_lines: int = 0
    """Captured lines that stay of one attempt."""
    known_holds: KnownHolds = field(factory=KnownHolds)

    def item_count(self) -> int:
        return sum(len(getattr(self, name)) for name in _LISTS)

    def halves(self) -> tuple["Batch", "Batch"]:
        """Split the items in two batches without a claim, keeping the order within each kind."""
        first, second = (
            evolve(self, claim=None, **{name: [] for name in _LISTS})  # type: ignore[arg-type]  # each is a list
            for _ in range(2)
        )
        middle, seen = (self.item_count() + 1) // 2, 0
        for name in _LISTS:
            for item in getattr(self, name):
                getattr(first if seen < middle else second, name).append(item)
                seen += 1
        return first, second


_LISTS = ("register", "submits", "requeues", "settlements", "recoveries", "requests", "holds", "deletes", "said")


@define(eq=False)
class Move:
    """One task's committed moves, for logs, waiters and events."""

    row: TaskRow
    """Which task; its values may be those of before or after the moves."""
    write: TaskWrite
    history: list[HistoryRow]
    decision: Decision


@define(eq=False)
class TickResult:
    """What a commit made true. Answers are given, and facts told, only after it."""

    submitted: list[tuple[Submit, list[Receipt] | Exception]] = field(factory=list)
    requeued: list[tuple[Requeue, Receipt | Exception]] = field(factory=list)
    settled: list[Settlement] = field(factory=list)
    fenced: list[Settlement] = field(factory=list)
    """Settlements that lost their guard: the row belongs to a newer attempt or owner."""
    moves: list[Move] = field(factory=list)
    """Moves that requests and recoveries made."""
    answered: list[tuple[Request, RequestAnswer | Exception]] = field(factory=list)
    recovered: list[tuple[Recover, int]] = field(factory=list)
    held: list[tuple[PutHold | ReleaseHold, bool | None]] = field(factory=list)
    deleted: list[tuple[Delete, bool | Exception]] = field(factory=list)
    commands: Sequence[CommandRow] = ()
    """Commands for this owner; the persister makes requests of them, since it knows which bodies have begun."""
    holds: KnownHolds | None = None
    """The holds of many, where they have changed since the batch was made."""
    claimed: list[TaskRow] = field(factory=list)
    promoted: int = 0
    has_more_due: bool = False
    next_due: int | None = None
    owner_gone: bool = False
    other_owners: int = 0
    last_position: int = 0
    new_tasks: int = 0
