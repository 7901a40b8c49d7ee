"""Why a task is not running: one sentence, and the data that it is made of."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from taskengine.core.lifecycle import FINAL, TIMED, State
from taskengine.core.model import Hold, HoldRow, HoldScope, TaskRow, Wish, from_micros


@frozen(kw_only=True)
class Explanation:
    """Why a task is where it is."""

    code: str
    """`ended`, `running`, `claimed`, `pausing`, `paused`, `stopping`, `not_due`, `retrying`, `blocked`, `held`,
    `held_all`, `held_name`, `held_tag`, `unknown_name`, `no_owner`, `no_slot` or `next`."""
    sentence: str
    data: Mapping[str, Any] = field(factory=dict)
    """JSON-compatible facts behind the sentence."""


@frozen(kw_only=True)
class OwnerFacts:
    """What is known of a process that can run tasks."""

    id: str
    pid: int
    names: Sequence[str]


@frozen(kw_only=True)
class Surroundings:
    """What the store says beside the task's own row."""

    holds: Sequence[HoldRow] = ()
    owners: Sequence[OwnerFacts] = ()
    ahead: int | None = None
    """Claimable tasks that these owners would take first; None where nobody has counted."""
    tags: Sequence[str] = ()
    gone: frozenset[str] = frozenset()
    """Ids of owners whose process is known to be gone; they are not among `owners`."""


def explain(
    row: TaskRow,
    around: Surroundings,
    *,
    held: Hold | None,
    wish: Wish | None,
    now: int,
    failure: str | None = None,
) -> Explanation:
    """Tell why the task is not running, or that it is.

    Args:
        held, wish: the row's own, decoded.
        now: microseconds, wall clock.
        failure: the row's own, as one text.
    """
    if row.state in FINAL:
        return _explain_end(row, wish, failure)
    if row.state not in (State.QUEUED, State.BLOCKED) and row.state not in TIMED:
        return _explain_body(row, wish, is_gone=row.owner in around.gone)
    hold = _explain_hold(row, around, held, now)
    if hold is not None:
        return hold
    if row.state is State.BLOCKED:
        return Explanation(code="blocked", sentence="it waits for upstream tasks")
    if row.state is not State.QUEUED:
        return _explain_wait(row, now)
    return _explain_queue(row, around)


def _explain_end(row: TaskRow, wish: Wish | None, failure: str | None) -> Explanation:
    data: dict[str, Any] = {"state": row.state.value}
    sentence = f"it has ended: {row.state.value}"
    if row.state in (State.STOPPED, State.CANCELLED):
        data |= _asked_data(wish)
        sentence += _asked_by(wish)
    elif row.state in (State.FAILED, State.LOST) and failure is not None:
        data["failure"] = failure
        # What a body raised may have lines; this is a sentence.
        sentence += f": {' '.join(failure.split())}"
    return Explanation(code="ended", sentence=sentence, data=data)


def _asked_data(wish: Wish | None) -> dict[str, Any]:
    return {} if wish is None else {"wish": wish.kind.value, "actor": wish.actor, "reason": wish.reason}


def _asked_by(wish: Wish | None) -> str:
    return "" if wish is None else f", asked by {wish.actor}" + (f": {wish.reason}" if wish.reason else "")


def _explain_body(row: TaskRow, wish: Wish | None, *, is_gone: bool) -> Explanation:
    data: dict[str, Any] = {"owner": row.owner, "attempt": row.attempt, **_asked_data(wish)}
    asked = _asked_by(wish)
    code, sentence = {
        State.STARTING: ("claimed", "it is claimed and about to begin"),
        State.RUNNING: ("running", "it is running"),
        State.PAUSING: ("pausing", f"its body is to pause at its next checkpoint{asked}"),
        State.PAUSED: ("paused", f"its body is paused at a checkpoint{asked}"),
        State.STOPPING: ("stopping", f"its body is being ended{asked}"),
    }[row.state]
    if is_gone:
        data["owner_is_gone"] = True
        sentence += ", but its process is gone: the next engine on this store recovers it"
    return Explanation(code=code, sentence=sentence, data=data)


def _explain_hold(row: TaskRow, around: Surroundings, held: Hold | None, now: int) -> Explanation | None:
    if row.held is not None and (held is None or held.by is None):
        actor = "nobody knows whom" if held is None else held.actor
        until = None if held is None or held.until is None else held.until.isoformat()
        reason = None if held is None else held.reason
        return Explanation(
            code="held",
            sentence=_held_by("it is held", actor, reason, until),
            data={"actor": actor, "reason": reason, "until": until},
        )
    for hold in around.holds:
        if hold.is_released or (hold.until is not None and hold.until <= now) or not covers(hold, row, around.tags):
            continue
        until = None if hold.until is None else from_micros(hold.until).isoformat()
        target = None if hold.scope is HoldScope.ALL else hold.target
        what = {
            HoldScope.ALL: "everything is held",
            HoldScope.NAME: f"tasks named {hold.target!r} are held",
            HoldScope.TAG: f"tasks tagged {hold.target!r} are held",
        }[hold.scope]
        return Explanation(
            code=f"held_{hold.scope.value}",
            sentence=_held_by(what, hold.actor, hold.reason, until),
            data={"target": target, "actor": hold.actor, "reason": hold.reason, "until": until},
        )
    return None


def covers(hold: HoldRow, row: TaskRow, tags: Sequence[str]) -> bool:
    """Whether a hold of many is about this task."""
    if hold.scope is HoldScope.ALL:
        return True
    return hold.target == row.name if hold.scope is HoldScope.NAME else hold.target in tags


def _held_by(what: str, actor: str, reason: str | None, until: str | None) -> str:
    return f"{what} by {actor}" + (f" until {until}" if until else "") + (f": {reason}" if reason else "")


def _explain_wait(row: TaskRow, now: int) -> Explanation:
    due = from_micros(row.due_at).isoformat()
    data = {"due_at": due, "in_seconds": max(0.0, (row.due_at - now) / 1_000_000)}
    if row.state is State.RETRY_WAIT:
        return Explanation(
            code="retrying", sentence=f"attempt {row.attempt} failed; the next one is due at {due}", data=data
        )
    return Explanation(code="not_due", sentence=f"it is due at {due}", data=data)


def _explain_queue(row: TaskRow, around: Surroundings) -> Explanation:
    if not around.owners:
        return Explanation(code="no_owner", sentence="no process is running tasks of this store")
    able = [owner for owner in around.owners if row.name in owner.names]
    if not able:
        return Explanation(
            code="unknown_name",
            sentence=f"no running process knows a task named {row.name!r}",
            data={"processes": [owner.pid for owner in around.owners]},
        )
    data = {"processes": [owner.pid for owner in able], "ahead": around.ahead}
    if around.ahead:
        return Explanation(code="no_slot", sentence=f"it waits for a slot; {around.ahead} tasks are ahead", data=data)
    return Explanation(code="next", sentence="it is next: it waits for a slot", data=data)
