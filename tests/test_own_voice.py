"""What bodies say of themselves and of their task: snooze, discard, progress, lines, artifacts."""

import os
import threading
from pathlib import Path

import anyio
import pytest

from taskengine import Engine, FailureKind, RetryPolicy, State, TaskCall, TaskContext, Trigger
from taskengine.ports import Store
from tests.bodies import add, reach, same_store

# --- snooze and discard -----------------------------------------------------------------------------------------


async def test_a_snoozed_task_runs_again_later_uncharged(store: Store) -> None:
    async def tired(ctx: TaskContext, where: str) -> int:
        async def sleepy() -> None:
            ctx.snooze(0.3, "not yet")

        async def group(depth: int) -> None:
            async with anyio.create_task_group() as tg:
                tg.start_soon(anyio.sleep, 3600)
                if depth:
                    tg.start_soon(group, depth - 1)
                else:
                    tg.start_soon(sleepy)

        if ctx.attempt <= 2:
            if where == "body":
                await sleepy()
            await group(0 if where == "group" else 2)
        return ctx.attempt

    async with Engine(store, tasks=[tired]) as engine:
        once = RetryPolicy(max_attempts=1)
        handles = [
            await engine.submit(TaskCall.of("tired", where), retry=once) for where in ("body", "group", "nested")
        ]
        for handle in handles:
            await reach(engine, handle, State.SCHEDULED)
            with anyio.fail_after(30):
                assert (await handle.wait()).value == 3
            task = await handle.task()
            assert (task.charged, task.failure) == (1, None)
            snoozes = [move for move in await handle.history() if move.trigger is Trigger.BODY_SNOOZE]
            due = [move for move in await handle.history() if move.trigger is Trigger.CLOCK_DUE]
            assert [move.reason for move in snoozes] == ["not yet"] * 2
            for snooze, back in zip(snoozes, due, strict=True):
                assert (back.at - snooze.at).total_seconds() >= 0.299


async def test_a_snooze_is_not_tried_again_at_once_after_a_restart(store: Store) -> None:
    async def tired(ctx: TaskContext) -> None:
        ctx.snooze(3600)

    async with Engine(store, tasks=[tired]) as engine:
        handle = await engine.submit(TaskCall.of("tired"))
        await reach(engine, handle, State.SCHEDULED)
    async with Engine(same_store(store), tasks=[tired, add]) as engine:
        with anyio.fail_after(30):
            await (await engine.submit(add.bind(1))).wait()
        task = await engine.get(handle.id)
        assert (task.state, task.attempt, task.charged) == (State.SCHEDULED, 1, 0)
        assert (task.due_at - task.created_at).total_seconds() >= 3600
        await engine.run_now(handle.id)
        await reach(engine, handle.id, State.STARTING)


async def test_a_thread_can_snooze_and_discard(store: Store) -> None:
    def tired(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.snooze(0)
        ctx.discard("no use")

    async with Engine(store, tasks=[tired]) as engine:
        handle = await engine.submit(TaskCall.of("tired"))
        with anyio.fail_after(30):
            outcome = await handle.wait()
        assert outcome.failure is not None
        assert (outcome.state, outcome.attempt, outcome.failure.kind) == (State.FAILED, 2, FailureKind.DISCARDED)


@pytest.mark.parametrize("where", ["body", "group"])
async def test_a_discarded_task_has_failed_without_a_retry(store: Store, where: str) -> None:
    async def pointless(ctx: TaskContext, where: str) -> None:
        async def give_up() -> None:
            try:
                ctx.discard("the customer is gone")
            except Exception:
                raise AssertionError("except Exception must not swallow it") from None

        if where == "body":
            await give_up()
        async with anyio.create_task_group() as tg:
            tg.start_soon(anyio.sleep, 3600)
            tg.start_soon(give_up)

    async with Engine(store, tasks=[pointless]) as engine:
        handle = await engine.submit(TaskCall.of("pointless", where), retry=RetryPolicy(base=0, max_attempts=5))
        with anyio.fail_after(30):
            outcome = await handle.wait()
        assert (outcome.state, outcome.attempt) == (State.FAILED, 1)
        assert outcome.failure is not None
        assert (outcome.failure.kind, outcome.failure.retryable) == (FailureKind.DISCARDED, False)
        assert outcome.failure.message == "the customer is gone"
        assert [task.id for task in await engine.dead_letters()] == [handle.id]


async def test_a_snooze_after_a_stop_was_asked_ends_the_task(store: Store) -> None:
    async def tired(ctx: TaskContext) -> None:
        while not ctx.is_stop_requested:  # noqa: ASYNC110  # nothing rings when it is
            await anyio.sleep(0.005)
        ctx.snooze(3600)

    async with Engine(store, tasks=[tired]) as engine:
        handle = await engine.submit(TaskCall.of("tired"))
        await reach(engine, handle, State.RUNNING)
        assert (await handle.stop()).state is State.STOPPED


# --- progress ---------------------------------------------------------------------------------------------------


async def test_progress_is_shown_while_the_body_runs_and_costs_no_version(store: Store) -> None:
    step = anyio.Event()
    end = anyio.Event()

    async def work(ctx: TaskContext) -> None:
        ctx.progress(1, 4, unit="files", message="first")
        await step.wait()
        for n in range(2, 5):
            ctx.progress(n, 4, unit="files")
        await end.wait()

    async def shown(engine: Engine, task_id: str, done: float) -> None:
        with anyio.fail_after(30):
            while (progress := (await engine.get(task_id)).progress) is None or progress.done != done:  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async with Engine(store, tasks=[work]) as engine:
        handle = await engine.submit(TaskCall.of("work"))
        await reach(engine, handle, State.RUNNING)
        await shown(engine, handle.id, 1)
        first = await handle.task()
        assert first.progress is not None
        assert (first.progress.total, first.progress.unit, first.progress.message) == (4, "files", "first")
        assert first.progress.fraction == 0.25
        step.set()
        await shown(engine, handle.id, 4)
        (listed,) = await engine.list()
        assert listed.progress is not None
        assert (listed.progress.fraction, listed.progress.message) == (1.0, None)
        assert listed.version == first.version
        assert listed.progress.at >= first.progress.at
        moves = len(await handle.history())
        end.set()
        with anyio.fail_after(30):
            await handle.wait()
        last = await handle.task()
        assert last.version == moves + 1
        assert last.progress is not None
        assert last.progress.done == 4


async def test_what_a_body_said_last_is_kept_however_soon_it_ends(store: Store) -> None:
    async def brief(ctx: TaskContext) -> None:
        ctx.progress(3, 3)
        ctx.log("the last word")

    async with Engine(store, tasks=[brief]) as engine:
        handle = await engine.submit(TaskCall.of("brief"))
        with anyio.fail_after(30):
            await handle.wait()
        progress = (await handle.task()).progress
        assert progress is not None
        assert progress.done == 3
        assert [line.message for line in await handle.logs()] == ["the last word"]


async def test_progress_is_that_of_the_latest_attempt(store: Store) -> None:
    async def work(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.progress(1, 2)
            raise ValueError("again")

    async with Engine(store, tasks=[work]) as engine:
        handle = await engine.submit(TaskCall.of("work"), retry=RetryPolicy(base=0, cap=0))
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        assert (await handle.task()).progress is None


# --- lines ------------------------------------------------------------------------------------------------------


async def test_lines_are_kept_by_attempt_and_level(store: Store) -> None:
    async def talk(ctx: TaskContext) -> None:
        ctx.log("attempt %d", ctx.attempt)
        ctx.warning("careful")
        ctx.error("bad: %s", "NUL \x00 and \ud800")
        if ctx.attempt < 3:
            raise ValueError("again")

    async with Engine(store, tasks=[talk]) as engine:
        handle = await engine.submit(TaskCall.of("talk"), retry=RetryPolicy(base=0, cap=0, max_attempts=3))
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        lines = await engine.logs(handle)
        assert [(line.attempt, line.number) for line in lines] == [(a, n) for a in (1, 2, 3) for n in (1, 2, 3)]
        assert [line.level for line in lines[:3]] == ["INFO", "WARNING", "ERROR"]
        second = await engine.logs(handle, attempt=2)
        assert [line.message for line in second][:2] == ["attempt 2", "careful"]
        assert await engine.logs(handle, attempt=4) == []
        assert [line.attempt for line in await engine.logs(handle, limit=4)] == [2, 3, 3, 3]


async def test_the_newest_lines_of_each_attempt_are_kept(store: Store) -> None:
    step = anyio.Event()

    async def talk(ctx: TaskContext) -> None:
        for n in range(7):
            ctx.log("early %d", n)
        await step.wait()
        for n in range(3):
            ctx.log("late %d", n)
        if ctx.attempt == 1:
            raise ValueError("again")

    async with Engine(store, tasks=[talk], max_log_lines=5, max_log_bytes=64) as engine:
        handle = await engine.submit(TaskCall.of("talk"), retry=RetryPolicy(base=0, cap=0))
        with anyio.fail_after(30):
            while not await engine.logs(handle):  # noqa: ASYNC110  # no event tells of them
                await anyio.sleep(0.02)
        assert [line.number for line in await engine.logs(handle)] == [3, 4, 5, 6, 7]
        step.set()
        with anyio.fail_after(30):
            assert (await handle.wait()).ok
        for attempt in (1, 2):
            lines = await engine.logs(handle, attempt=attempt)
            assert [line.number for line in lines] == [6, 7, 8, 9, 10]
            assert lines[-1].message == "late 2"


async def test_no_lines_are_kept_where_none_are_wanted(store: Store) -> None:
    async def talk(ctx: TaskContext) -> None:
        ctx.log("x" * 10_000)

    async with Engine(store, tasks=[talk], max_log_lines=0) as engine:
        handle = await engine.submit(TaskCall.of("talk"))
        with anyio.fail_after(30):
            await handle.wait()
        assert await engine.logs(handle) == []


async def test_a_long_line_is_cut(store: Store) -> None:
    async def talk(ctx: TaskContext) -> None:
        ctx.log("ä" * 10_000)

    async with Engine(store, tasks=[talk], max_log_bytes=100) as engine:
        handle = await engine.submit(TaskCall.of("talk"))
        with anyio.fail_after(30):
            await handle.wait()
        (line,) = await engine.logs(handle)
        text, mark = line.message.split("…")
        assert 0 < len(text.encode()) <= 100
        assert "cut" in mark


async def test_an_abandoned_thread_that_goes_on_talking_harms_nobody(store: Store) -> None:
    """Its task is lost, deleted even, and the thread still says things."""
    release, has_talked = threading.Event(), threading.Event()

    def zombie(ctx: TaskContext) -> None:
        release.wait()
        ctx.log("from the grave")
        ctx.progress(1, 2)
        ctx.extend(total=5)
        has_talked.set()

    async with Engine(store, tasks=[zombie, add], kill_grace=0) as engine:
        deleted, kept = [await engine.submit(TaskCall.of("zombie")) for _ in range(2)]
        for handle in (deleted, kept):
            await reach(engine, handle, State.RUNNING)
            assert (await handle.cancel()).state is State.LOST
        before = await kept.task()
        await engine.delete(deleted)
        release.set()
        await anyio.to_thread.run_sync(has_talked.wait)
        with anyio.fail_after(30):
            await engine.submit_many([add.bind(n) for n in range(20)])
            assert await engine.drain()
            with anyio.move_on_after(0.3):  # What is said is stored a moment later.
                await anyio.sleep_forever()
        after = await kept.task()
        assert (after.version, after.state, after.deadline_at) == (before.version, before.state, before.deadline_at)
        assert (await (await engine.submit(add.bind(1))).wait()).ok


# --- artifacts --------------------------------------------------------------------------------------------------


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


async def leave(ctx: TaskContext, name: str) -> None:
    """Leave a file in each attempt; the `bad` ones fail."""
    folder = ctx.artifact_dir()
    assert ctx.artifact_dir() == folder
    assert os.listdir(folder) == []  # a test's body
    with open(os.path.join(folder, f"{name}-{ctx.attempt}"), "w"):  # noqa: ASYNC230
        pass
    if name.startswith("bad"):
        raise ValueError("bad")


TWICE = RetryPolicy(base=0, cap=0, max_attempts=2)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
@pytest.mark.parametrize(
    ("keep", "left"), [("always", ["bad-1", "bad-2", "good-1"]), ("failed", ["bad-1", "bad-2"]), ("never", [])]
)
async def test_artifacts_are_kept_or_cleaned_by_the_engine_s_policy(
    store: Store, tmp_path: Path, keep: str, left: list[str]
) -> None:
    """Also those of the last attempts before the engine is left."""
    root = tmp_path / "artifacts"
    async with Engine(store, tasks=[], artifacts=root, keep_artifacts=keep) as engine:
        engine.register("leave", leave, retry=TWICE)
        handles = await engine.submit_many([TaskCall.of("leave", name) for name in ("good", "bad")])
        with anyio.fail_after(30):
            assert await engine.wait_all(handles)
    assert files(root) == left


async def test_a_task_s_own_policy_for_its_artifacts_wins(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    async with Engine(store, tasks=[], artifacts=root, keep_artifacts="never") as engine:
        handles = []
        for keep in ("always", "failed", "never"):
            engine.register(f"leave_{keep}", leave, retry=TWICE, keep_artifacts=keep)
            for name in (f"good-{keep}", f"bad-{keep}"):
                handles.append(await engine.submit(TaskCall.of(f"leave_{keep}", name)))
        with anyio.fail_after(30):
            assert await engine.wait_all(handles)
    assert files(root) == ["bad-always-1", "bad-always-2", "bad-failed-1", "bad-failed-2", "good-always-1"]


async def test_a_deleted_task_takes_its_artifacts_along(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "artifacts"
    async with Engine(store, tasks=[leave], artifacts=root) as engine:
        one, two = await engine.submit_many([TaskCall.of("leave", "file")] * 2)
        with anyio.fail_after(30):
            assert await engine.wait_all([one, two])
        await engine.delete(one)
        assert files(root) == ["file-1"]
        await engine.delete(two)
        assert files(root) == []
