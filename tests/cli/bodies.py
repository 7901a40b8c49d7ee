"""Bodies that the commands are tried on."""

import anyio

from taskengine import RetryPolicy, TaskContext, TaskEnd, task
from tests.bodies import STEP


@task
async def step(ctx: TaskContext) -> None:
    """Go from checkpoint to checkpoint for ever."""
    while True:
        await ctx.acheckpoint()
        await anyio.sleep(STEP)


@task
async def sleep_deaf(ctx: TaskContext) -> None:
    """Never come to a checkpoint."""
    await anyio.sleep_forever()


@task
async def report(ctx: TaskContext) -> None:
    """Tell how far it is, and stay."""
    ctx.progress(3, 10, unit="files", message="reading\x1b[2J")
    ctx.log("half of %s", "it\nis done\x1b[2J")
    ctx.warning("odd")
    await anyio.sleep_forever()


@task(retry=RetryPolicy(max_attempts=2, base=0))
async def complain(ctx: TaskContext) -> None:
    """Log three lines, and fail."""
    for number in range(3):
        ctx.log("line %s of attempt %s", number, ctx.attempt)
    raise ValueError("no")


@task
async def mourn(end: TaskEnd) -> str:
    """Take part in the end of another task."""
    return end.name
