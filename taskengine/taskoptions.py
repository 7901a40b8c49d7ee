"""What can be said of a task besides its function, and the checks of each word of it."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from taskengine import defaults, importable
from taskengine.arguments import short_repr
from taskengine.core.errors import InvalidOption
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts

if TYPE_CHECKING:
    from taskengine.registry import TaskFunction

Recover = Literal["retry", "lost"]
"""After a crash: run it again while budget is left, or call it `lost` once it may have begun."""

ExecutorName = Literal["loop", "thread", "process", "inline"]
"""Where a body runs: on the event loop (async ones), in a thread (sync ones), in a child process, or as a plain call
that blocks the loop (sync ones; for tests)."""

KeepArtifacts = Literal["always", "failed", "never"]
"""Which attempts' folders outlive them; `failed` is all but those that succeeded."""

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


class TaskOptions(TypedDict, total=False):
    """How a task is to be treated, as given to `@task`, `TaskDefinition.of` and `register`; all may be left out."""

    retry: RetryPolicy | None
    """How often and when it is tried again; None leaves it to the engine."""
    max_attempts: int | None
    """Charged attempts; default is the policy's, else 3."""
    recover: Recover
    """See `Recover`; default is `retry`."""
    check: Callable[..., object] | None
    """Called at submit with the arguments, before anything is stored."""
    executor: ExecutorName | None
    """Where the body runs; None: async ones on the loop, sync ones where the engine's `default_executor` says."""
    timeout: float | Timeouts | None
    """How long it may take. A number is the seconds of each attempt."""
    on_success: "str | TaskFunction[..., Any, ..., Any] | None"
    """The task, or its name, that is submitted with a `TaskEnd` when this one has succeeded."""
    on_failure: "str | TaskFunction[..., Any, ..., Any] | None"
    """The same for failed and lost."""
    on_settled: "str | TaskFunction[..., Any, ..., Any] | None"
    """The same for every final state."""
    keep_artifacts: KeepArtifacts | None
    """See `KeepArtifacts`; None leaves it to the engine."""


def refuse_unknown(options: Mapping[str, Any]) -> None:
    """Check that each option is one of a task.

    Raises:
        InvalidOption: one is not.
    """
    known = TaskOptions.__annotations__.keys()
    unknown = options.keys() - known
    if unknown:
        there_are = ", ".join(["name", *known])
        raise InvalidOption(min(unknown), f"no such option of a task; there are {there_are}")


def check_name(option: str, name: object) -> str:
    """Return the name of a task as plain text.

    Raises:
        InvalidOption: it is no such name, for the option in which it was given.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        allowed = "1 to 200 of the characters A-Z a-z 0-9 _ . : -"
        raise InvalidOption(option, f"{short_repr(name)} is no name for a task; it must be {allowed}")
    return str.__str__(name)


def check_word(option: str, word: object, words: Any) -> None:
    """Check that `word` is one of those of the Literal `words`.

    Raises:
        InvalidOption: it is not.
    """
    allowed = get_args(words)
    if word not in allowed:
        raise InvalidOption(option, f"{short_repr(word)} is none of {', '.join(map(repr, allowed))}")


def check_executor(executor: object, function: Callable[..., Any], *, is_async: bool) -> None:
    """Check that a function can run there; for a child process that its name can be imported, as far as it shows.

    Whether the name leads back to the function shows only once the module has bound it: at the registration.

    Raises:
        InvalidOption: it cannot, or there is no such place.
    """
    check_word("executor", executor, ExecutorName)
    problem = None
    if executor == "loop" and not is_async:
        problem = "'loop' is for async functions; this one would block it: use 'thread' or 'process', or async def"
    elif executor in ("thread", "inline") and is_async:
        problem = f"{executor!r} is for sync functions; an async one runs on the 'loop', or in a 'process'"
    if problem is not None:
        raise InvalidOption("executor", problem)
    if executor == "process":
        importable.check_name(function)


def resolve_attempts(explicit: int | None, retry: RetryPolicy | None) -> int:
    """Return how many charged attempts a task has: what is given, else the policy's number, else the default.

    Raises:
        InvalidOption: it is no whole number in the range.
    """
    if explicit is None:
        explicit = retry.max_attempts if retry is not None else None
    if explicit is None:
        return defaults.MAX_ATTEMPTS
    if type(explicit) is not int or not 1 <= explicit <= 1_000_000:
        raise InvalidOption("max_attempts", f"{short_repr(explicit)} is not a whole number from 1 to 1,000,000")
    return explicit
