"""The life of a task, as data.

`TRANSITIONS` is the one authority on how a task may move: each state has a row of trigger -> next state, and a final
state has an empty row. Nothing moves a task except `step`. A missing entry is the only way in which a move is
illegal, and an illegal move changes nothing. Everything else that speaks of states (the sets below, the SQL guards,
the diagram in docs/, the rules of the property tests) is derived from this table and never restated.

After a crash the stored state says what may be done: a state without a carrier goes on as it is, a leased state is
settled by the recovery of its dead owner (`decide.decide_crash`).
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from taskengine.core.errors import IllegalTransition


class State(StrEnum):
    """Where a task is in its life; the value is the word stored and shown everywhere."""

    PENDING = "pending"
    """Not yet accepted: only the source of a task's first transition, never stored."""
    SCHEDULED = "scheduled"
    """Accepted, due later; the clock moves it on."""
    BLOCKED = "blocked"
    """Accepted, waits for upstream tasks."""
    QUEUED = "queued"
    """Due, waits for a slot; a claimer moves it on."""
    STARTING = "starting"
    """Claimed, the body has not begun; after a crash its owner's claim is taken back."""
    RUNNING = "running"
    """The body is executing."""
    PAUSING = "pausing"
    """A pause is requested, the body has not reached a checkpoint."""
    PAUSED = "paused"
    """The body is suspended at a checkpoint and keeps its slot."""
    STOPPING = "stopping"
    """A stop or cancel is requested, the body has not ended."""
    RETRY_WAIT = "retry_wait"
    """An attempt failed, the next one is due after the backoff."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    """A person stopped it, cooperatively."""
    CANCELLED = "cancelled"
    """Revoked at once, by a caller or by a pipeline's fail-fast."""
    SKIPPED = "skipped"
    """An upstream task did not succeed, so it never should run."""
    LOST = "lost"
    """Result unknown: the carrier vanished or could not be stopped."""


class Trigger(StrEnum):
    """Why a task moves, as `source:cause`; the list is closed."""

    USER_SUBMIT = "user:submit"
    USER_SUBMIT_LATER = "user:submit_later"
    USER_RUN_NOW = "user:run_now"
    USER_CANCEL = "user:cancel"
    USER_STOP = "user:stop"
    USER_PAUSE = "user:pause"
    USER_RESUME = "user:resume"
    PIPELINE_SUBMIT = "pipeline:submit"
    PIPELINE_READY = "pipeline:ready"
    PIPELINE_READY_LATER = "pipeline:ready_later"
    PIPELINE_UPSTREAM_FAILED = "pipeline:upstream_failed"
    PIPELINE_FAIL_FAST = "pipeline:fail_fast"
    CLOCK_DUE = "clock:due"
    SIGNAL_RECEIVED = "signal:received"
    DEADLINE_START = "deadline:start"
    DEADLINE_TOTAL = "deadline:total"
    CLAIMER_CLAIM = "claimer:claim"
    EXECUTOR_LAUNCHED = "executor:launched"
    EXECUTOR_COMPLETED = "executor:completed"
    ATTEMPT_RETRY = "attempt:retry"
    ATTEMPT_FAILED = "attempt:failed"
    BODY_SNOOZE = "body:snooze"
    BODY_WAIT = "body:wait"
    RUNTIME_PAUSE_REACHED = "runtime:pause_reached"
    RUNTIME_PAUSE_MISSED = "runtime:pause_missed"
    RUNTIME_STOP_DONE = "runtime:stop_done"
    RUNTIME_CANCEL_DONE = "runtime:cancel_done"
    ENGINE_RELEASE = "engine:release"
    ENGINE_ABANDONED = "engine:abandoned"
    OWNER_REQUEUE = "owner:requeue"
    OWNER_LOST = "owner:lost"


_S, _T = State, Trigger

_BODY_MOVES: dict[Trigger, State] = {
    _T.EXECUTOR_COMPLETED: _S.SUCCEEDED,
    _T.ATTEMPT_RETRY: _S.RETRY_WAIT,
    _T.ATTEMPT_FAILED: _S.FAILED,
    _T.BODY_SNOOZE: _S.SCHEDULED,
    _T.BODY_WAIT: _S.SCHEDULED,
    _T.USER_STOP: _S.STOPPING,
    _T.USER_CANCEL: _S.STOPPING,
    _T.PIPELINE_FAIL_FAST: _S.STOPPING,
    _T.ENGINE_RELEASE: _S.QUEUED,
    _T.ENGINE_ABANDONED: _S.LOST,
    _T.OWNER_REQUEUE: _S.QUEUED,
    _T.OWNER_LOST: _S.LOST,
}
"""What can happen to a task that has a living body, whether it runs, is pausing or is paused."""

TRANSITIONS: Mapping[State, Mapping[Trigger, State]] = MappingProxyType(
    {
        state: MappingProxyType(row)
        for state, row in {
            _S.PENDING: {
                _T.USER_SUBMIT: _S.QUEUED,
                _T.USER_SUBMIT_LATER: _S.SCHEDULED,
                _T.PIPELINE_SUBMIT: _S.BLOCKED,
            },
            _S.SCHEDULED: {
                _T.CLOCK_DUE: _S.QUEUED,
                _T.USER_RUN_NOW: _S.QUEUED,
                _T.SIGNAL_RECEIVED: _S.QUEUED,
                _T.USER_CANCEL: _S.CANCELLED,
                _T.PIPELINE_FAIL_FAST: _S.CANCELLED,
                _T.USER_STOP: _S.STOPPED,
                _T.DEADLINE_TOTAL: _S.FAILED,
            },
            _S.BLOCKED: {
                _T.PIPELINE_READY: _S.QUEUED,
                _T.PIPELINE_READY_LATER: _S.SCHEDULED,
                _T.PIPELINE_UPSTREAM_FAILED: _S.SKIPPED,
                _T.USER_CANCEL: _S.CANCELLED,
                _T.PIPELINE_FAIL_FAST: _S.CANCELLED,
                _T.USER_STOP: _S.STOPPED,
                _T.DEADLINE_TOTAL: _S.FAILED,
            },
            _S.QUEUED: {
                _T.CLAIMER_CLAIM: _S.STARTING,
                _T.USER_CANCEL: _S.CANCELLED,
                _T.PIPELINE_FAIL_FAST: _S.CANCELLED,
                _T.USER_STOP: _S.STOPPED,
                _T.DEADLINE_START: _S.FAILED,
                _T.DEADLINE_TOTAL: _S.FAILED,
            },
            _S.STARTING: {
                _T.EXECUTOR_LAUNCHED: _S.RUNNING,
                _T.ATTEMPT_RETRY: _S.RETRY_WAIT,
                _T.ATTEMPT_FAILED: _S.FAILED,
                _T.USER_STOP: _S.STOPPING,
                _T.USER_CANCEL: _S.STOPPING,
                _T.PIPELINE_FAIL_FAST: _S.STOPPING,
                _T.ENGINE_RELEASE: _S.QUEUED,
                _T.OWNER_REQUEUE: _S.QUEUED,
                _T.OWNER_LOST: _S.LOST,
            },
            _S.RUNNING: {**_BODY_MOVES, _T.USER_PAUSE: _S.PAUSING},
            _S.PAUSING: {
                **_BODY_MOVES,
                _T.RUNTIME_PAUSE_REACHED: _S.PAUSED,
                _T.RUNTIME_PAUSE_MISSED: _S.RUNNING,
                _T.USER_RESUME: _S.RUNNING,
            },
            _S.PAUSED: {**_BODY_MOVES, _T.USER_RESUME: _S.RUNNING},
            _S.STOPPING: {
                _T.RUNTIME_STOP_DONE: _S.STOPPED,
                _T.RUNTIME_CANCEL_DONE: _S.CANCELLED,
                _T.EXECUTOR_COMPLETED: _S.SUCCEEDED,
                _T.USER_CANCEL: _S.STOPPING,
                _T.ENGINE_ABANDONED: _S.LOST,
                _T.OWNER_LOST: _S.LOST,
            },
            _S.RETRY_WAIT: {
                _T.CLOCK_DUE: _S.QUEUED,
                _T.USER_RUN_NOW: _S.QUEUED,
                _T.USER_CANCEL: _S.CANCELLED,
                _T.PIPELINE_FAIL_FAST: _S.CANCELLED,
                _T.USER_STOP: _S.STOPPED,
                _T.DEADLINE_TOTAL: _S.FAILED,
            },
            _S.SUCCEEDED: {},
            _S.FAILED: {},
            _S.STOPPED: {},
            _S.CANCELLED: {},
            _S.SKIPPED: {},
            _S.LOST: {},
        }.items()
    }
)

FINAL: frozenset[State] = frozenset(state for state, row in TRANSITIONS.items() if not row)
"""States that a task never leaves."""

CLAIMABLE: frozenset[State] = frozenset(state for state, row in TRANSITIONS.items() if _T.CLAIMER_CLAIM in row)
"""States in which a claimer may take a task."""

LEASED: frozenset[State] = frozenset(state for state, row in TRANSITIONS.items() if _T.OWNER_LOST in row)
"""States in which an owner holds the task: those that the owner's death must settle."""

TIMED: frozenset[State] = frozenset(state for state, row in TRANSITIONS.items() if _T.CLOCK_DUE in row)
"""States that the clock moves on when the task is due."""

STORED: frozenset[State] = frozenset(TRANSITIONS) - {State.PENDING}
"""States that a stored task can be in."""

WAITING: frozenset[State] = STORED - FINAL - LEASED
"""States of accepted work without a carrier; what `max_pending` counts."""

UNFINISHED: frozenset[State] = STORED - FINAL


def step(state: State, trigger: Trigger) -> State:
    """Look up where `trigger` takes a task that is in `state`.

    Raises:
        IllegalTransition: the table has no such entry; nothing is changed.
    """
    try:
        return TRANSITIONS[state][trigger]
    except KeyError:
        raise IllegalTransition(state=state, trigger=trigger) from None


def is_final(state: State) -> bool:
    """Tell whether a task in `state` has ended for good."""
    return state in FINAL


_OLD_NAMES: Mapping[str, State] = MappingProxyType(
    {
        "success": State.SUCCEEDED,
        "completed": State.SUCCEEDED,
        "canceled": State.CANCELLED,
        "retrying": State.RETRY_WAIT,
        "pending": State.QUEUED,
        "error": State.FAILED,
    }
)
"""Words of other systems for our states, offered as "did you mean"."""


def parse_state(word: str) -> State:
    """Read the word for a stored state.

    Raises:
        ValueError: no task can be in such a state; the message names the nearest word or lists them all.
    """
    if word in STORED:
        return State(word)
    meant = _OLD_NAMES.get(word.lower())
    if meant is None and word.lower() in STORED:
        meant = State(word.lower())
    hint = f"did you mean {meant.value!r}?" if meant else "states are: " + ", ".join(sorted(STORED))
    raise ValueError(f"{word!r} is not a state of a stored task; {hint}")
