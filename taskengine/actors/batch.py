"""What one tick is asked to do, and what came of it."""

from collections.abc import Mapping, Sequence

from attrs import define, field

from taskengine.actors.messages import (
    Attempt,
    Delete,
    Receipt,
    Recover,
    Register,
    Request,
    RequestAnswer,
    Requeue,
    Submit,
)
from taskengine.core.decide import Decision
from taskengine.core.model import HistoryRow, TaskRow, TaskWrite


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
class ClaimOrder:
    """What may be claimed."""

    names: Sequence[str]
    free: int
    """Slots that no claimed task waits for: any task may take one."""
    total: int
    """`free` and the prefetch: beyond `free`, only tasks that may be prefetched."""
    defaults: Mapping[str, tuple[int, str]]
    """name -> (max attempts, recover), for tasks of a client that did not know them."""


@define(eq=False)
class Batch:
    """The work of one transaction."""

    now: int
    owner: str | None = None
    register: list[Register] = field(factory=list)
    submits: list[Submit] = field(factory=list)
    requeues: list[Requeue] = field(factory=list)
    settlements: list[Settlement] = field(factory=list)
    recoveries: list[Recover] = field(factory=list)
    requests: list[Request] = field(factory=list)
    deletes: list[Delete] = field(factory=list)
    claim: ClaimOrder | None = None
    max_pending: int | None = None

    def item_count(self) -> int:
        return sum(len(items) for items in self._lists())

    def _lists(self) -> tuple[Sequence[object], ...]:
        return (
            self.register,
            self.submits,
            self.requeues,
            self.settlements,
            self.recoveries,
            self.requests,
            self.deletes,
        )

    def halves(self) -> tuple["Batch", "Batch"]:
        """Split the items in two batches without a claim, keeping the order within each kind."""
        first, second = (Batch(now=self.now, owner=self.owner, max_pending=self.max_pending) for _ in range(2))
        middle, seen = (self.item_count() + 1) // 2, 0
        for name in ("register", "submits", "requeues", "settlements", "recoveries", "requests", "deletes"):
            for item in getattr(self, name):
                getattr(first if seen < middle else second, name).append(item)
                seen += 1
        return first, second


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
    deleted: list[tuple[Delete, bool | Exception]] = field(factory=list)
    claimed: list[TaskRow] = field(factory=list)
    promoted: int = 0
    has_more_due: bool = False
    next_due: int | None = None
    owner_gone: bool = False
    other_owners: int = 0
    last_position: int = 0
    new_tasks: int = 0
