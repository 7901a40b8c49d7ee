"""Calls of `http_post` without an engine."""

from typing import Any

from taskengine.context import TaskContext
from taskengine.core.errors import AttemptFailed
from taskengine.ports import Downstream
from taskengine.tasks.http import HttpResult, http_post
from taskengine.testing import context


def make_context(downstream: Downstream, *, attempt: int = 1, idempotency_key: str = "key-1") -> TaskContext:
    return context.make_context(
        name="http_post", attempt=attempt, idempotency_key=idempotency_key, downstream=downstream
    )


async def call(downstream: Downstream, url: str, **arguments: Any) -> HttpResult:
    return await http_post(make_context(downstream), url, **arguments)


async def fail(downstream: Downstream, url: str, **arguments: Any) -> AttemptFailed:
    """Make a call that must fail, and return how."""
    try:
        result = await call(downstream, url, **arguments)
    except AttemptFailed as error:
        return error
    raise AssertionError(f"it succeeded: {result}")
