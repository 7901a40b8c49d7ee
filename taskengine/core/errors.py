"""Every exception a user can meet.

One base, and below it whose fault it is: `UsageError` (the caller's), `StoreError` and `DownstreamError` (the
outside's), `GoneError` (what was asked for is not there). Fields first; the message is made of them and names the fix.
"""

from typing import Any


class TaskEngineError(Exception):
    """Base of every error that this library raises."""


# --- the caller's -----------------------------------------------------------------------------------------------


class UsageError(TaskEngineError):
    """The library was used wrongly; the message names the fix."""


class IllegalTransition(UsageError):
    """The table of states has no such move; nothing was changed."""

    def __init__(self, *, state: str, trigger: str) -> None:
        self.state = state
        self.trigger = trigger
        super().__init__(f"a task that is {str(state)!r} has no move for {str(trigger)!r}")


class InvalidOption(UsageError, ValueError):
    """An option has a value that cannot be used."""

    def __init__(self, option: str, problem: str) -> None:
        self.option = option
        self.problem = problem
        super().__init__(f"{option}: {problem}")


class InvalidArguments(UsageError, TypeError):
    """The arguments of a call do not fit the task's signature, or cannot be stored as JSON."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"arguments of task {name!r}: {problem}")


class InvalidResult(UsageError, TypeError):
    """A body returned something that cannot be stored as JSON."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self.problem = problem
        super().__init__(f"result of task {name!r}: {problem}")


class UnknownTask(UsageError, LookupError):
    """A name was submitted that this engine does not know."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        self.name = name
        self.known = known
        import difflib  # Late: rarely needed, and it takes its time.

        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        names = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no task is registered under {name!r}; {hint}known: {names}; pass it in Engine(..., tasks=[...]) or "
            "engine.register(name, function)"
        )


class DuplicateTask(UsageError):
    """Two different functions were registered under one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"two tasks are named {name!r}; give one of them another name with @task(name=...)")


class IdempotencyConflict(UsageError):
    """A key (or caller-chosen id) is taken by a task with another payload."""

    def __init__(self, *, key: str, task_id: str, what: str = "idempotency key") -> None:
        self.key = key
        self.task_id = task_id
        self.what = what
        super().__init__(
            f"{what} {key!r} belongs to task {task_id} with another name or other arguments; "
            "use a new key for a different call"
        )


class NotFinished(UsageError):
    """The operation needs a task that has ended."""

    def __init__(self, *, task_id: str, state: str, operation: str) -> None:
        self.task_id = task_id
        self.state = state
        self.operation = operation
        super().__init__(f"cannot {operation} task {task_id}: it is {str(state)!r} and has not ended")


class EngineNotRunning(UsageError):
    """The engine was used outside its `async with` block, or from a forked process."""

    def __init__(self, problem: str = "use it inside `async with Engine(...) as engine:`") -> None:
        super().__init__(f"the engine is not running: {problem}")


class TaskUnsuccessful(TaskEngineError, RuntimeError):
    """`Outcome.unwrap` was called on a task that did not succeed."""

    def __init__(self, *, task_id: str, state: str, failure: str | None) -> None:
        self.task_id = task_id
        self.state = state
        super().__init__(f"task {task_id} ended {state!s}: {failure or 'no failure recorded'}")


# --- limits -----------------------------------------------------------------------------------------------------


class QueueFull(TaskEngineError):
    """`max_pending` tasks are waiting; nothing of the submission was stored."""

    def __init__(self, *, max_pending: int, pending: int) -> None:
        self.max_pending = max_pending
        self.pending = pending
        super().__init__(
            f"{pending} tasks are waiting and max_pending is {max_pending}; submit later, "
            "or with on_full='wait' and a full_timeout"
        )


# --- the outside's ----------------------------------------------------------------------------------------------


class StoreError(TaskEngineError):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError):
    """The store cannot be used for now (locked, unreachable); the same call may succeed later."""


class StoreFull(StoreUnavailable):
    """The disk, or a quota on it, is full; nothing of this write was stored."""


class StoreGone(StoreUnavailable):
    """The file was deleted or replaced while it was open; what is submitted is refused at once."""


class StoreIncompatible(StoreError):
    """The store was written by a newer version, or is not one of ours."""


class StoreClosed(StoreError):
    """The store was used after it was closed."""


class DownstreamError(TaskEngineError):
    """An HTTP exchange did not give an answer; `kind` is the failure kind it becomes."""

    def __init__(self, message: str, *, kind: str = "connection", retryable: bool = True) -> None:
        self.kind = kind
        self.retryable = retryable
        super().__init__(message)


# --- it is gone -------------------------------------------------------------------------------------------------


class GoneError(TaskEngineError, LookupError):
    """What was asked for is not there."""


class TaskNotFound(GoneError):
    """No task has this id."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"no task has the id {task_id!r}")


class TaskExpired(TaskNotFound):
    """A task had this id; it was deleted or its retention has passed."""

    def __init__(self, task_id: str) -> None:
        GoneError.__init__(self, f"task {task_id!r} existed and was deleted")
        self.task_id = task_id


# --- said to bodies ---------------------------------------------------------------------------------------------


class TaskStopped(BaseException):
    """Raised in a body by `checkpoint()` when a stop or cancel is requested.

    A BaseException, so that `except Exception` in a body cannot swallow it.
    """

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(reason or "stop requested")


class TaskSnoozed(BaseException):
    """Raised in a body by `ctx.snooze()`: it wants to run again later, uncharged. Let it pass."""

    def __init__(self, delay: float, reason: str | None = None) -> None:
        self.delay = delay
        """Seconds."""
        self.reason = reason
        super().__init__(f"snoozed for {delay:g} s")


class TaskDiscarded(BaseException):
    """Raised in a body by `ctx.discard()`: its work has become pointless. Let it pass."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class AttemptFailed(TaskEngineError):
    """Raise it in a body to fail the attempt with a chosen kind, detail and retry verdict.

    Args:
        message: what went wrong, for people.
        kind: a failure kind of the closed list (`FailureKind`).
        retryable: False makes the failure final, True retries it while budget remains, None asks the policy.
        retry_after: seconds that the next attempt must wait at least; None leaves it to the backoff.
        type_name: what is recorded as the error's type; default is the class name.
        detail: JSON-compatible facts kept in the Failure.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "exception",
        retryable: bool | None = None,
        retry_after: float | None = None,
        type_name: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        self.message = message
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.type_name = type_name
        self.detail = detail
        super().__init__(message)
