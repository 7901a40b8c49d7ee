"""Type-checked under mypy strict, never run: what `@task` and `bind` mean to a type checker."""

from typing import Any, assert_type

from taskengine.context import TaskContext
from taskengine.core.retry import RetryPolicy
from taskengine.registry import Registry, TaskCall, TaskDefinition, task


@task
async def resize(ctx: TaskContext, path: str, *, width: int = 800) -> str:
    return path * width


@task(retry=RetryPolicy(max_attempts=5), name="fetch")
async def fetch(url: str) -> dict[str, int]:
    return {url: 1}


@task
def add(left: int, right: int = 1) -> int:
    return left + right


@task(max_attempts=1, recover="lost")
def report(ctx: TaskContext, lines: list[str]) -> None:
    ctx.log("%d lines", len(lines))


# A call is generic in the result, and leaves the context out.
assert_type(resize.bind("cat.png", width=640), TaskCall[str])
assert_type(fetch.bind("http://localhost"), TaskCall[dict[str, int]])
assert_type(add.bind(1), TaskCall[int])
assert_type(report.bind(["a"]), TaskCall[None])
assert_type(TaskCall.of("by name", 1, two=2), TaskCall[Any])
assert_type(resize.definition, TaskDefinition)
assert_type(resize.__name__, str)

# Called directly, a task is the function that it decorates.
assert_type(add(1, right=2), int)


async def direct(ctx: TaskContext) -> None:
    assert_type(await resize(ctx, "cat.png", width=3), str)
    assert_type(await fetch("x"), dict[str, int])
    await resize("cat.png")  # type: ignore[arg-type,call-arg]
    assert_type(report(ctx, []), None)


# A call of a narrower result can stand where a wider one is wanted.
wider: TaskCall[object] = add.bind(1)

# Mistakes are found.
resize.bind(3)  # type: ignore[arg-type]
resize.bind("cat.png", widht=640)  # type: ignore[call-arg]
resize.bind()  # type: ignore[call-arg]
add.bind("1")  # type: ignore[arg-type]
add.bind(1, 2, 3)  # type: ignore[call-arg]
task(recover="never")  # type: ignore[call-overload]
task(3)  # type: ignore[call-overload]

registry = Registry([resize, add])
registry.add(fetch)
registry.add(fetch.definition)
registry.register("other", report, max_attempts=2)
