"""Every rule about what happens next to a task, as pure functions.

Facts in, decision out: (the task's row, what happened, a random draw) -> `Decision`. A decision names the triggers to
take, in order; where they lead is looked up in the table. `enact` turns a decision into the guarded write and the
history rows that the persister stores. Nothing here reads a clock, draws a number or knows a store.
"""

from collections.abc import Sequence
from enum import Enum

from attrs import define, field, frozen

from taskengine.core.lifecycle import FINAL, LEASED, State, Trigger, step
from taskengine.core.model import Failure, FailureKind, HistoryRow, Hold, TaskRow, TaskWrite, Wish, WishKind
from taskengine.core.retry import ErrorNames, RetryPolicy, is_retryable, retry_wait
from taskengine.core.timeouts import LONGEST

ENGINE = "engine"
"""The actor of moves that nobody asked for."""


class OutcomeKind(Enum):
    """What an attempt did, as its runner saw it."""

    RETURNED = "returned"
    RAISED = "raised"
    INTERRUPTED = "interrupted"
    """Ended by the engine's own shutdown."""
    UNBEGUN = "unbegun"
    """Claimed, and given back before the body began."""
    ABANDONED = "abandoned"
    """Could not be ended; the body may still be at work."""
    UNREADABLE = "unreadable"
    """The stored arguments are no JSON at all; somebody has to look."""
    SNOOZED = "snoozed"
    """The body asked to run later."""
    DISCARDED = "discarded"
    """The body said that its work has become pointless."""


@define(eq=False)
class AttemptOutcome:
    """The runner's report on one attempt."""

    kind: OutcomeKind
    ended_at: int
    """Microseconds, wall clock."""
    began_at: int | None = None
    """When the body began; None if it did not."""
    result: str | None = None
    """JSON text, for RETURNED."""
    failure: Failure | None = None
    leaves: Sequence[ErrorNames] = ()
    """Class names of the innermost exceptions, for the policy."""
    retryable: bool | None = None
    """The body's own verdict; None asks the policy."""
    retry_after: float | None = None
    """Seconds that the other side asked for, or that the body wants to sleep, for SNOOZED."""
    reason: str | None = None
    """The body's own words, for SNOOZED and DISCARDED."""


@define(eq=False)
class Decision:
    """What to store: the triggers to take, in order, and the values that go with the last of them."""

    triggers: list[tuple[Trigger, int]] = field(factory=list)
    """(trigger, instant in microseconds)."""
    actor: str = ENGINE
    reason: str | None = None
    charged: int = 0
    """Added to the task's charge."""
    crashes: int = 0
    due_at: int | None = None
    began_at: int | None = None
    result: str | None = None
    failure: Failure | None = None
    hold: Hold | None = None
    releases_hold: bool = False
    """The mark that the task carries is taken off."""
    wish: Wish | None = None


@frozen(kw_only=True)
class Limits:
    """Settings that rules need."""

    retry_after_cap: float = 3600.0


def decide_outcome(
    row: TaskRow, outcome: AttemptOutcome, *, policy: RetryPolicy, wish: Wish | None, draw: float, limits: Limits
) -> Decision:
    """Decide what follows from an attempt's end.

    Args:
        row: the task as stored, in a LEASED state, with `max_attempts` and `recover` filled in.
        wish: the stored request to end it, if the state is `stopping`; to pause it, if it is `pausing` or `paused`.
        draw: random number in [0, 1), for the jitter.
    """
    decision = Decision(began_at=outcome.began_at, failure=outcome.failure)
    state = row.state
    if state is State.STARTING and outcome.began_at is not None:
        decision.triggers.append((Trigger.EXECUTOR_LAUNCHED, outcome.began_at))
        state = State.RUNNING
    if outcome.kind is OutcomeKind.RETURNED:
        decision.triggers.append((Trigger.EXECUTOR_COMPLETED, outcome.ended_at))
        decision.result = outcome.result
    elif outcome.kind is OutcomeKind.ABANDONED:
        _abandon(decision, outcome, row.attempt)
    elif state is State.STOPPING:
        _end_as_wished(decision, wish, outcome.ended_at)
    elif outcome.kind is OutcomeKind.RAISED:
        _retry_or_fail(decision, row, outcome, policy, draw, limits)
    elif outcome.kind is OutcomeKind.SNOOZED:
        _snooze(decision, outcome)
    elif outcome.kind is OutcomeKind.DISCARDED:
        _discard(decision, row, outcome)
    else:
        _release(decision, row, outcome, state)
    if state in _PAUSES and step(state, decision.triggers[-1][0]) not in FINAL:
        decision.hold = _hold_of_pause(wish)
    return decision


_PAUSES = frozenset({State.PAUSING, State.PAUSED})


def _hold_of_pause(wish: Wish | None) -> Hold:
    """What becomes of a pause whose task has no body any more."""
    if wish is None or wish.kind is not WishKind.PAUSE:
        return Hold(actor=ENGINE, reason="was paused when its body ended")
    return Hold(actor=wish.actor, reason=wish.reason)


def _snooze(decision: Decision, outcome: AttemptOutcome) -> None:
    # Bounded, since a body may raise TaskSnoozed by itself with any number; max and min in this order drop a NaN.
    delay = min(LONGEST, max(0.0, outcome.retry_after or 0.0))
    decision.triggers.append((Trigger.BODY_SNOOZE, outcome.ended_at))
    decision.due_at = outcome.ended_at + round(delay * 1_000_000)
    decision.charged = -1
    decision.reason = outcome.reason


def _discard(decision: Decision, row: TaskRow, outcome: AttemptOutcome) -> None:
    decision.triggers.append((Trigger.ATTEMPT_FAILED, outcome.ended_at))
    decision.reason = "discarded"
    decision.failure = Failure(
        kind=FailureKind.DISCARDED, type="TaskDiscarded", message=outcome.reason or "", attempt=row.attempt
    )


def _abandon(decision: Decision, outcome: AttemptOutcome, attempt: int) -> None:
    decision.triggers.append((Trigger.ENGINE_ABANDONED, outcome.ended_at))
    decision.failure = outcome.failure or Failure(
        kind=FailureKind.LOST,
        type="Abandoned",
        message="the body did not end when it was told to; it may still be at work",
        attempt=attempt,
    )


def _end_as_wished(decision: Decision, wish: Wish | None, at: int) -> None:
    stopped = wish is not None and wish.kind is WishKind.STOP
    decision.triggers.append((Trigger.RUNTIME_STOP_DONE if stopped else Trigger.RUNTIME_CANCEL_DONE, at))
    if wish is not None:
        decision.actor, decision.reason = wish.actor, wish.reason


def _retry_or_fail(
    decision: Decision, row: TaskRow, outcome: AttemptOutcome, policy: RetryPolicy, draw: float, limits: Limits
) -> None:
    retryable = outcome.retryable if outcome.retryable is not None else is_retryable(policy, outcome.leaves)
    failure = outcome.failure or Failure(kind=FailureKind.EXCEPTION, type="Unknown", message="it gave no reason")
    decision.failure = Failure(
        kind=failure.kind,
        type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        retryable=retryable,
        attempt=row.attempt,
        detail=failure.detail,
    )
    if retryable and row.charged < (row.max_attempts or 1):
        wait = retry_wait(policy, row.charged, draw, outcome.retry_after, limits.retry_after_cap)
        decision.triggers.append((Trigger.ATTEMPT_RETRY, outcome.ended_at))
        decision.due_at = outcome.ended_at + round(wait * 1_000_000)
        decision.reason = str(decision.failure)[:200]
    else:
        decision.triggers.append((Trigger.ATTEMPT_FAILED, outcome.ended_at))
        decision.reason = "not retryable" if not retryable else "no attempts left"


def _release(decision: Decision, row: TaskRow, outcome: AttemptOutcome, state: State) -> None:
    if row.recover == "lost" and state is not State.STARTING:
        decision.failure = Failure(
            kind=FailureKind.LOST,
            type="Interrupted",
            message="the engine shut down while the body was at work, and recover='lost' forbids to begin it again",
            attempt=row.attempt,
        )
        decision.triggers.append((Trigger.ENGINE_ABANDONED, outcome.ended_at))
        return
    decision.triggers.append((Trigger.ENGINE_RELEASE, outcome.ended_at))
    decision.charged = -1
    if outcome.kind is OutcomeKind.UNREADABLE:
        message = outcome.failure.message if outcome.failure is not None else "unreadable"
        decision.reason = "arguments cannot be read"
        decision.hold = Hold(actor=ENGINE, reason=f"arguments cannot be read: {message}")
    else:
        decision.reason = outcome.reason or "shutdown"


def decide_crash(row: TaskRow, *, wish: Wish | None, proven_gone: bool, now: int) -> Decision:
    """Decide what follows for a task whose owner is dead.

    Args:
        wish: the stored request to end or pause it, as for `decide_outcome`.
        proven_gone: the owner's process is known to be gone, so that no body of it can be at work.
    """
    decision = Decision(crashes=1)
    if row.state is State.STOPPING:
        if proven_gone:
            _end_as_wished(decision, wish, now)
        else:
            decision.triggers.append((Trigger.OWNER_LOST, now))
            decision.reason = "its owner vanished before the body was seen to end"
            decision.failure = Failure(
                kind=FailureKind.LOST, type="OwnerVanished", message=decision.reason, attempt=row.attempt
            )
        return decision
    may_repeat = row.recover != "lost"
    budget_left = row.charged < (row.max_attempts or 1)
    decision.failure = Failure(
        kind=FailureKind.CRASHED if may_repeat else FailureKind.LOST,
        type="OwnerDied",
        message="the process that ran this attempt died",
        retryable=may_repeat,
        attempt=row.attempt,
    )
    if may_repeat and budget_left:
        decision.triggers.append((Trigger.OWNER_REQUEUE, now))
        decision.reason = "owner died"
        if row.state in _PAUSES:
            decision.hold = _hold_of_pause(wish)
    else:
        decision.triggers.append((Trigger.OWNER_LOST, now))
        decision.reason = "owner died; " + ("no attempts left" if may_repeat else "recover='lost'")
    return decision


def decide_request(
    row: TaskRow,
    trigger: Trigger,
    *,
    wish: Wish | None,
    actor: str,
    reason: str | None,
    now: int,
    held: Hold | None = None,
) -> Decision | None:
    """Decide what a person's request (cancel, stop, run_now, pause, resume) does to a task.

    Args:
        wish: what was asked of it before, if the state is `stopping`.
        held: the mark that the task carries.

    Returns:
        None where the request changes nothing: the task is final, or is already as asked, or ending.

    Raises:
        IllegalTransition: the table has no such move for an unfinished task.
    """
    if row.state in FINAL:
        return None
    if trigger is Trigger.USER_PAUSE:
        return _decide_pause(row, held, actor, reason, now)
    if trigger is Trigger.USER_RESUME:
        return _decide_resume(row, held, actor, reason, now)
    if row.state is State.STOPPING:
        is_cancelling = wish is not None and wish.kind is WishKind.CANCEL
        if trigger in (Trigger.USER_STOP, Trigger.PIPELINE_FAIL_FAST):
            return None
        if trigger is Trigger.USER_CANCEL and is_cancelling:
            return None
    target = step(row.state, trigger)
    decision = Decision(actor=actor, reason=reason, triggers=[(trigger, now)])
    if target is State.STOPPING:
        kind = WishKind.STOP if trigger is Trigger.USER_STOP else WishKind.CANCEL
        decision.wish = Wish(kind=kind, actor=actor, reason=reason)
    elif trigger is Trigger.USER_RUN_NOW:
        decision.due_at = now
    return decision


def _decide_pause(row: TaskRow, held: Hold | None, actor: str, reason: str | None, now: int) -> Decision | None:
    """A body is asked to wait at a checkpoint; a task without one is held, also if it is held by a hold of many."""
    if row.state is State.RUNNING:
        wish = Wish(kind=WishKind.PAUSE, actor=actor, reason=reason)
        return Decision(actor=actor, reason=reason, triggers=[(Trigger.USER_PAUSE, now)], wish=wish)
    if row.state in LEASED and row.state is not State.STARTING:
        return None
    if held is not None and held.by is None:
        return None
    return Decision(actor=actor, reason=reason, hold=Hold(actor=actor, reason=reason))


def _decide_resume(row: TaskRow, held: Hold | None, actor: str, reason: str | None, now: int) -> Decision | None:
    """A body goes on; a task that is held by itself is freed. The hold of many is released by its own name only."""
    if row.state in _PAUSES:
        return Decision(actor=actor, reason=reason, triggers=[(Trigger.USER_RESUME, now)])
    if row.held is None or (held is not None and held.by is not None):
        return None
    return Decision(actor=actor, reason=reason, releases_hold=True)


def decide_pause_answer(row: TaskRow, *, is_reached: bool, now: int) -> Decision | None:
    """Decide what follows when a body has come to its checkpoint, or has not within the window.

    Returns:
        None where the pause is over already: it was resumed, stopped or taken back in the meantime.
    """
    if row.state is not State.PAUSING:
        return None
    if is_reached:
        return Decision(triggers=[(Trigger.RUNTIME_PAUSE_REACHED, now)])
    return Decision(
        triggers=[(Trigger.RUNTIME_PAUSE_MISSED, now)], reason="the body reached no checkpoint within the pause window"
    )


def decide_deadline(row: TaskRow, *, now: int) -> Decision:
    """Decide about a task without a body that is out of time; of two limits that have passed, the earlier one won."""
    start_by = row.due_at + (row.start_within or 0)
    is_start = (
        row.state is State.QUEUED
        and row.start_within is not None
        and row.started_at is None
        and start_by <= now
        and (row.deadline_at is None or start_by < row.deadline_at)
    )
    decision = Decision(triggers=[(Trigger.DEADLINE_START if is_start else Trigger.DEADLINE_TOTAL, now)])
    decision.reason = "no body began in time" if is_start else "the task as a whole is out of time"
    decision.failure = timeout_failure(
        FailureKind.TIMEOUT_START if is_start else FailureKind.TIMEOUT_TOTAL, decision.reason, row.attempt
    )
    return decision


def timeout_failure(kind: FailureKind, message: str, attempt: int) -> Failure:
    """Make the failure of a timeout; its type is the kind in the manner of a class name."""
    return Failure(kind=kind, type=kind.value.title().replace("_", ""), message=message, attempt=attempt)


def may_prefetch(row: TaskRow) -> bool:
    """Tell whether a queued task may be claimed before a slot is free for it.

    Not a last attempt, nor one that must not repeat, nor one that has taken an owner down before: a crash would charge
    or end them though their body never began. Nor one that may run out of time before a body begins: that is noticed
    where it waits in the store.
    """
    may_crash = row.crashes == 0 and row.recover != "lost" and (row.max_attempts or 1) - row.charged > 1
    return may_crash and row.deadline_at is None and row.start_within is None


_WISHED = _PAUSES | {State.STOPPING}
"""States in which a wish stands."""


def enact(
    row: TaskRow,
    decision: Decision,
    *,
    failure: str | None = None,
    wish: str | None = None,
    hold: str | None = None,
    rank: int | None = None,
) -> tuple[TaskWrite, list[HistoryRow]]:
    """Turn a decision into the guarded write and the history rows; look every move up in the table.

    Args:
        row: the task as stored; not changed.
        failure, wish, hold: the JSON texts of the decision's values.
        rank: new rank for a task that enters `queued` anew; None keeps the old one.

    Raises:
        IllegalTransition: the table has no such move.
    """
    state, version, last = row.state, row.version, len(decision.triggers) - 1
    history = []
    for index, (trigger, at) in enumerate(decision.triggers):
        source, state = state, step(state, trigger)
        version += 1
        is_last = index == last
        history.append(
            HistoryRow(
                row.key,
                version,
                source,
                state,
                at,
                trigger,
                decision.actor if is_last else ENGINE,
                decision.reason if is_last else None,
                row.attempt,
                failure if is_last else None,
            )
        )
    ended = state in FINAL
    leased = state in LEASED
    keeps_wish = state in _WISHED or (ended and row.state is State.STOPPING)
    held = None if ended or decision.releases_hold else row.held
    write = TaskWrite(
        key=row.key,
        expected_attempt=row.attempt,
        expected_version=row.version,
        state=state,
        version=version,
        charged=row.charged + decision.charged,
        crashes=row.crashes + decision.crashes,
        rank=row.rank if rank is None else rank,
        due_at=row.due_at if decision.due_at is None else decision.due_at,
        started_at=row.started_at if decision.began_at is None else decision.began_at,
        finished_at=decision.triggers[-1][1] if ended else None,
        owner=row.owner if leased else None,
        wish=wish if wish is not None else (row.wish if keeps_wish else None),
        held=hold if hold is not None else held,
        result=decision.result if state is State.SUCCEEDED else None,
        failure=None if state is State.SUCCEEDED else (failure if failure is not None else row.failure),
    )
    return write, history
