"""Random commands against many running tasks: the store stays whole, and agrees with what the callers were told.

A program is a list of commands, made by hypothesis; it runs in one go on a real engine, with every kind of body in
every executor. Which command meets which moment of a task is left to the machine, so a failure is looked for in the
printed program and the histories, not in a replay.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio
import pytest
from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from taskengine import Engine, MemoryStore, SqliteStore, State, Task, TaskCall, TaskHandle, Trigger
from taskengine.core.lifecycle import FINAL
from taskengine.ports import Store
from taskengine.testing.invariants import check_invariants
from tests.storm import bodies

TASKS, COMMANDS = 200, 200
CHILDREN = 3
"""Tasks in child processes; more would measure the machine and not the engine."""

AT_ONCE = 20
"""Commands under way at a time."""

ENDS = ("cancel", "stop")
Verb = Literal["cancel", "stop", "pause", "resume", "hold", "release", "stop_many", "pause_many", "resume_many"]


@frozen
class Command:
    """One thing to ask, of a task or of a tag."""

    verb: Verb
    task: int
    tag: str


MANY: tuple[Verb, ...] = ("pause_many", "resume_many")

COMMAND = st.builds(
    Command,
    verb=st.sampled_from(
        ("cancel", "stop", "pause", "pause", "resume", "resume", "hold", "release", "stop_many", *MANY)
    ),
    task=st.integers(0, TASKS - 1),
    tag=st.sampled_from(["a", "b", "c"]),
)

# The counts of steps are such that many bodies end in the middle of the storm.
BODY = st.tuples(st.sampled_from(bodies.ALL), st.integers(1, 120))


@define(eq=False)
class Told:
    """What callers were told."""

    ends: list[Task] = field(factory=list)
    pauses: list[tuple[str, bool]] = field(factory=list)
    counts: list[int] = field(factory=list)


def calls_of(chosen: list[tuple[Any, int]]) -> list[TaskCall[Any]]:
    """Make the calls; beyond a few, bodies for children run on the loop."""
    calls: list[TaskCall[Any]] = []
    children = 0
    for body, steps in chosen:
        is_child = body.definition.executor == "process"
        children += is_child
        calls.append(bodies.on_loop.bind(steps) if is_child and children > CHILDREN else body.bind(steps))
    return calls


async def ask(engine: Engine, handles: list[TaskHandle[Any]], command: Command, told: Told) -> None:
    task_id = handles[command.task].id
    verb = command.verb
    if verb in ENDS:
        end: Callable[..., Awaitable[Task]] = engine.cancel if verb == "cancel" else engine.stop
        told.ends.append(await end(task_id, reason=f"storm {verb}"))
    elif verb == "pause":
        told.pauses.append((task_id, await engine.pause(task_id, reason="storm")))
    elif verb == "resume":
        await engine.resume(task_id)
    elif verb == "hold":
        await engine.hold(tag=command.tag, reason="storm")
    elif verb == "release":
        await engine.release(tag=command.tag)
    elif verb == "stop_many":
        told.counts.append(await engine.stop_many(tag=command.tag, name="failing_on_loop"))
    elif verb == "pause_many":
        told.counts.append(await engine.pause_many(tag=command.tag))
    else:
        told.counts.append(await engine.resume_many(tag=command.tag))


async def storm(store: Store, chosen: list[tuple[Any, int]], program: list[Command]) -> Told:
    told = Told()
    engine = Engine(
        store,
        tasks=bodies.ALL,
        concurrency=TASKS,
        stop_grace=0.3,
        pause_window=0.2,
        kill_grace=2.0,
        max_spare_slots=TASKS,
    )
    async with engine:
        handles = []
        for number, call in enumerate(calls_of(chosen)):
            handles.append(await engine.submit(call, tags=["abc"[number % 3]]))
        limiter = anyio.CapacityLimiter(AT_ONCE)

        async def ask_in_turn(command: Command) -> None:
            async with limiter:
                await ask(engine, handles, command, told)

        async with anyio.create_task_group() as tg:
            for command in program:
                tg.start_soon(ask_in_turn, command)
        for tag in "abc":
            await engine.release(tag=tag)
        while not await engine.wait_all(handles, timeout=0.5):
            for tag in "abc":  # A pause that came late is lifted as well; bodies are finite, so this ends.
                await engine.resume_many(tag=tag)
        for handle in handles:
            await agrees(engine, handle.id, told)
    return told


async def agrees(engine: Engine, task_id: str, told: Told) -> None:
    """Compare what was told of one task with its row and its history."""
    task = await engine.get(task_id)
    moves = await engine.history(task_id)
    assert task.state in FINAL
    for seen in told.ends:
        if seen.id == task_id and seen.state in FINAL:
            assert seen.state is task.state
            assert seen.version == task.version
    if any(is_paused for paused_id, is_paused in told.pauses if paused_id == task_id):
        has_paused = any(move.trigger is Trigger.RUNTIME_PAUSE_REACHED for move in moves)
        # Else it was held: without a body, when it was asked or when its body ended before a checkpoint.
        assert has_paused or len(moves) > 1
    if task.state is State.CANCELLED:
        assert any(move.trigger is Trigger.USER_CANCEL for move in moves)
    if task.state is State.STOPPED:
        assert any(move.trigger is Trigger.USER_STOP for move in moves)
    assert task.held is None


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_storm_of_commands_leaves_a_store_that_is_whole_and_agrees_with_what_was_told(
    kind: str, anyio_backend: tuple[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    backend = anyio_backend[0]

    @settings(max_examples=2 if settings().max_examples < 1000 else 40)
    @given(
        chosen=st.lists(BODY, min_size=TASKS, max_size=TASKS),
        program=st.lists(COMMAND, min_size=COMMANDS, max_size=COMMANDS),
    )
    def run(chosen: list[tuple[Any, int]], program: list[Command]) -> None:
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path_factory.mktemp("storm") / "tasks.db")

        async def main() -> None:
            with anyio.fail_after(100):
                await storm(store, chosen, program)

        anyio.run(main, backend=backend)
        store.open()
        try:
            assert check_invariants(store) == []
        finally:
            store.close()

    run()
