"""One call, run to its end without a file."""

from typing import Any, TypeVar

from taskengine.core.errors import InvalidOption
from taskengine.core.model import Outcome
from taskengine.engine import Engine
from taskengine.registry import TaskCall

T = TypeVar("T")


async def run_task(call: TaskCall[T], **options: Any) -> Outcome[T]:
    """Run one call to its end without a file, retries included.

    Args:
        call: made with `my_task.bind(...)`.
        options: those of `Engine.submit`, and `downstream`.

    Raises:
        UsageError: the call was not made with `bind`.

    Cancellation: cancels the body.
    """
    from taskengine.stores.memory import MemoryStore  # Late: most programs have a file.

    if call.definition is None:
        raise InvalidOption("call", "run_task needs the function: make the call with my_task.bind(...)")
    engine = Engine(
        MemoryStore(),
        tasks=[call.definition],
        concurrency=1,
        downstream=options.pop("downstream", None),
        shutdown_grace=0.0,
    )
    async with engine:
        handle = await engine.submit(call, **options)
        return await handle.wait()
