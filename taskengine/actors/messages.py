"""What the actors say to each other: plain values on streams.

Nobody holds a reference to another actor. A message that wants an answer carries a `Reply`, which its receiver settles
exactly once, after the commit that makes the answer true.
"""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import anyio
from attrs import define, field, frozen

from taskengine.core.decide import AttemptOutcome
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import HoldRow, HoldScope, OwnerRow, TaskRow, Wish

T = TypeVar("T")


class Reply(Generic[T]):
    """A one-shot answer. Settling it twice is a bug; waiting for it may be given up without any effect."""

    __slots__ = ("_error", "_event", "_value")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._value: T
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        self._value = value
        self._event.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> T:
        """Wait for the answer.

        Cancellation: no effect on what was asked; it may have happened.
        """
        await self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value


# --- to the persister -------------------------------------------------------------------------------------------


@define(eq=False)
class Receipt:
    """What became of one submitted task."""

    id: str
    created: bool
    """False: the key (or id) was there already, and this is the task that has it."""
    state: State


@define(eq=False)
class Submit:
    """Store these tasks, all or none. Rows carry no key, state or rank yet; `due_at` decides the first state."""

    rows: list[TaskRow]
    reply: Reply[list[Receipt]]
    chosen_ids: frozenset[str] = frozenset()
    """Ids that the caller chose; an existing one is answered as an existing key is."""
    actor: str = "user"
    is_bounded: bool = True
    """Whether `max_pending` applies: not to requeues, retries, schedules and callbacks."""
    deadline: float = float("inf")
    """Monotonic instant after which an outage of the store is answered with StoreUnavailable."""


@define(eq=False)
class Requeue:
    """Submit a copy of a finished task under a new id."""

    task_id: str
    new_id: str
    keep_key: bool
    actor: str
    reply: Reply[Receipt]
    is_once: bool = False
    """Not if it was requeued before; the receipt says so."""
    deadline: float = float("inf")
    """As for `Submit`."""


@define(eq=False)
class Request:
    """A person's wish for one task: cancel, stop, pause, resume or run_now."""

    task_id: str
    trigger: Trigger
    actor: str
    reason: str | None
    command_id: str
    """Id of the command row that is written if another process runs the task, and of the one this answers."""
    reply: "Reply[RequestAnswer] | None" = None
    is_command: bool = False
    """It was read from a command row, which goes with it."""
    deadline: float = float("inf")
    """As for `Submit`."""


@define(eq=False)
class RequestAnswer:
    """The committed state after a request."""

    task_id: str
    state: State
    """As committed; a final one is the end of it."""
    version: int
    """Moves of the task so far; what comes of the request stands behind it in the history."""
    is_held: bool = False
    """The task carries a hold."""
    is_remote: bool = False
    """The wish was handed to the process that runs the task."""
    is_changed: bool = False
    """The request has changed something, or was handed on; False: the task had ended or was as asked already."""


@define(eq=False)
class PutHold:
    """Hold many tasks; the answer comes when nothing that is held begins here any more."""

    hold: HoldRow
    reply: Reply[None]
    deadline: float = float("inf")
    """As for `Submit`."""


@define(eq=False)
class ReleaseHold:
    """End a hold of many; the answer is whether there was one."""

    scope: HoldScope
    target: str
    reply: Reply[bool]
    deadline: float = float("inf")
    """As for `Submit`."""


@define(eq=False)
class Delete:
    """Delete a finished task; a tombstone of its id stays."""

    task_id: str
    reply: Reply[bool]
    deadline: float = float("inf")
    """As for `Submit`."""


@define(eq=False)
class Began:
    """Bodies that began a while ago and have not ended: their `running` is to be stored."""

    attempts: "list[Attempt]"


@define(eq=False)
class PauseAnswer:
    """A body has come to its checkpoint, or has not within the pause window."""

    attempt: "Attempt"
    is_reached: bool
    at: int
    """Microseconds."""


@define(eq=False)
class Said:
    """Bodies have said something that is to be kept; what, is fetched from each attempt's `sayings`."""

    attempts: "list[Attempt]"


@define(eq=False)
class Finished:
    """A runner's report."""

    attempt: "Attempt"
    outcome: AttemptOutcome


@define(eq=False)
class Credit:
    """The claimer's standing credit: how many tasks this engine may hold."""

    slots: int
    """Bodies that can run at once."""
    prefetch: int
    """Claims beyond that, for tasks that may be taken early."""


class Wake:
    """Something may be due, or another process has written: run a tick."""


@define(eq=False)
class Recover:
    """Settle what a dead owner left."""

    owner: str
    observed_beat: int | None
    """The beat that stood still; None: its row is gone, or its process is."""
    proven_gone: bool
    reply: Reply[int]


@define(eq=False)
class Register:
    """Store the owner's row, so that claims can be made under it."""

    owner: OwnerRow
    reply: Reply[None]


@define(eq=False)
class Quiesce:
    """Answered when this engine holds no task any more."""

    reply: Reply[None]


@define(eq=False)
class Barrier:
    """Answered when everything sent before it is committed."""

    reply: Reply[None]


# --- to the runner ----------------------------------------------------------------------------------------------


@define(eq=False)
class Saying:
    """What a body has said since it was last asked."""

    seen_at: int | None = None
    """Microseconds, wall clock; None: nothing to store as side data."""
    progress: str | None = None
    lines: Sequence[tuple[int, int, int, str]] = ()
    """(number, at, level, message)"""
    deadline_at: int | None = None
    """The new end of the task as a whole."""


class Sayings(Protocol):
    """The listening half of a body's voice."""

    def fetch(self) -> Saying | None:
        """Take what has been said since the last call, or None."""


@define(eq=False)
class Attempt:
    """A claimed task on its way through a slot. The runner's own table holds one for each."""

    row: TaskRow
    """As last committed; only the persister changes it, after a commit."""
    wish: Wish | None = None
    """The stored wish, once it is committed."""
    began_at: int | None = None
    began_monotonic: float = 0.0
    is_announced: bool = False
    """Whether `running` is stored or on its way."""
    is_ended: bool = False
    facts: dict[str, Any] = field(factory=dict)
    """Extra fields of log records, written by the body."""
    sayings: Sayings | None = None
    """None until the body begins."""
    cause: str | None = None
    """Why it is being ended or given back, noted before anything is cancelled: cancel, stop, held, shutdown,
    owner_gone, or the failure kind of a timeout."""


@frozen
class Interrupt:
    """A committed wish for an attempt that runs here: end the body."""

    attempt: Attempt
    wish: Wish


@frozen
class Pause:
    """A committed pause of an attempt that runs here."""

    attempt: Attempt


@frozen
class Unpause:
    """The committed end of a pause: resumed, or taken back."""

    attempt: Attempt


@frozen
class GiveBack:
    """A claimed attempt is held; it must not begin."""

    attempt: Attempt


@frozen
class StopTaking:
    """Begin no further body, and give back what has not begun."""


@frozen
class InterruptAll:
    """End every body, for this cause: shutdown or owner_gone."""

    cause: str
    owner: str | None = None
    """The identity that is gone; what was claimed under it must not begin any more."""


# --- to the claimer and the supervisor --------------------------------------------------------------------------


@define(eq=False)
class TickReport:
    """What the claimer learns from a commit."""

    next_due: int | None
    """Soonest due time in the store, microseconds."""
    ended: int = 0
    busy_seconds: float = 0.0
    """Sum of how long the ended bodies took."""
    is_outage: bool = False
    has_more_due: bool = False


@frozen
class SlotsLeft:
    """Bodies that could not be ended have cost slots for good."""

    slots: int


@frozen
class OwnerGone:
    """Somebody took this owner's lease: end the bodies and register anew."""

    owner: str
