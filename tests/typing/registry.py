"""Type-checked under mypy strict, never run: what `@task` and `bind` mean to a type checker."""

from typing import Any, assert_type

from taskengine.context import TaskContext
from taskengine.core.model import TaskEnd
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts
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


@task
async def told(ctx: TaskContext, end: TaskEnd) -> None:
    ctx.log("%s", end.state)


@task(executor="process", timeout=5, on_success=told, on_failure="other", on_settled=None, keep_artifacts="failed")
def crunch(ctx: TaskContext, size: int) -> float:
    return size / 2


@task(executor="loop", timeout=Timeouts(attempt=5.0, final={"attempt"}))
async def watch() -> bool:
    return True


# A call is generic in the result, and leaves the context out.
assert_type(resize.bind("cat.png", width=640), TaskCall[str])
assert_type(fetch.bind("http://localhost"), TaskCall[dict[str, int]])
assert_type(add.bind(1), TaskCall[int])
assert_type(report.bind(["a"]), TaskCall[None])
assert_type(crunch.bind(3), TaskCall[float])
assert_type(watch.bind(), TaskCall[bool])
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
crunch.bind("3")  # type: ignore[arg-type]
task(recover="never")  # type: ignore[call-overload]
task(executor="fiber")  # type: ignore[call-overload]
task(keep_artifacts="sometimes")  # type: ignore[call-overload]
task(timeout="5")  # type: ignore[call-overload]
task(on_success=len)  # type: ignore[call-overload]
task(no_such_option=1)  # type: ignore[call-overload]
task(3)  # type: ignore[call-overload]

registry = Registry([resize, add])
registry.add(fetch)
registry.add(fetch.definition)
registry.register("other", report, max_attempts=2)
registry.register("again", crunch, executor="process", timeout=Timeouts(total=60), on_settled=told)
registry.register("bad", crunch, executor=3)  # type: ignore[arg-type]
TaskDefinition.of(add, name="plus", keep_artifacts="always")
