"""Bodies that many tests run."""

import anyio

from taskengine import RetryPolicy, SqliteStore, TaskContext, task
from taskengine.ports import Store


@task
async def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def sleep_long(seconds: float = 3600.0) -> None:
    await anyio.sleep(seconds)


@task(retry=RetryPolicy(max_attempts=3, base=0.01, cap=0.01))
async def fail_until(ctx: TaskContext, attempt: int) -> int:
    """Fail in every attempt before the given one."""
    if ctx.attempt < attempt:
        raise ValueError(f"attempt {ctx.attempt} fails")
    return ctx.attempt


@task
def double(n: int) -> int:
    return 2 * n


@task
async def echo(value: "Plain") -> "Plain":
    return value


Plain = None | bool | int | float | str | list[object] | dict[str, object]


def same_store(store: Store) -> Store:
    """Return what a second engine on the same tasks is given: an own connection, or the one memory."""
    return SqliteStore(store.path) if isinstance(store, SqliteStore) else store
