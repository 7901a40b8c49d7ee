"""Whether a child process could find a function: by the name of its module and its own name in there.

A child gets these two words from its parent's registry, never from a store, and never a pickled function.
"""

import sys
from collections.abc import Callable
from typing import Any

from taskengine.core.errors import InvalidOption


def refuse_unfit(function: Callable[..., Any]) -> None:
    """Check that a child process would find exactly this function.

    Raises:
        InvalidOption: it would not; the message names the fix.
    """
    check_name(function)
    check_resolves(function)


def check_name(function: Callable[..., Any]) -> None:
    """Check what can be told before the function's module has bound it: that its names could be imported.

    Raises:
        InvalidOption: they cannot, for option `executor`.
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise _refusal("a callable without a name of its own, such as a partial, cannot be imported there; wrap it")
    if module == "__main__":
        raise _refusal(f"{qualname} is defined in the program itself, which is not imported there; move it to a module")
    if "<locals>" in qualname or "<lambda>" in qualname:
        raise _refusal(f"{qualname} is defined inside a function; define it with def at the top of its module")


def check_resolves(function: Callable[..., Any]) -> None:
    """Check that the names lead back to this very function; its module must be imported in full by now.

    Raises:
        InvalidOption: they lead elsewhere or nowhere, for option `executor`.
    """
    found: object = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    if found is not function:
        raise _refusal(
            f"{function.__module__}.{function.__qualname__} is something else than the function; a child process "
            "imports it by that name"
        )


def _refusal(problem: str) -> InvalidOption:
    return InvalidOption("executor", f"'process': {problem}")
