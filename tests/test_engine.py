"""The engine as its users see it, on both backends and both stores."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from taskengine import (
    Engine,
    FailureKind,
    IdempotencyConflict,
    IllegalTransition,
    InvalidArguments,
    InvalidOption,
    MemoryStore,
    NotFinished,
    QueueFull,
    RetryPolicy,
    State,
    Submission,
    SubmitOptions,
    TaskCall,
    TaskContext,
    TaskExpired,
    TaskNotFound,
    TaskUnsuccessful,
    UnknownTask,
    run_task,
    task,
)
from taskengine.ports import Store
from tests.bodies import add, double, echo, fail_until, same_store, sleep_long

TASKS: list[Any] = [add, double, echo, fail_until, sleep_long]


async def test_submit_returns_a_handle_whose_outcome_is_the_returned_value(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(add.bind(1, b=2))
        outcome = await handle.wait()
    assert handle.created
    assert (outcome.ok, outcome.state, outcome.value, outcome.failure) == (True, State.SUCCEEDED, 3, None)
    assert outcome.unwrap() == 3


async def test_sync_functions_run_in_threads_and_inline(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        assert (await (await engine.submit(double.bind(4))).wait()).value == 8
    async with Engine(store, tasks=TASKS, default_executor="inline") as engine:
        assert (await (await engine.submit(double.bind(5))).wait()).value == 10


@pytest.mark.parametrize("value", [None, 0, [], False, "", {}])
async def test_falsy_results_are_results(store: Store, value: Any) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        outcome = await (await engine.submit(echo.bind(value))).wait()
        assert outcome.ok
        assert outcome.value == value
        again = await (await engine.handle(outcome.id)).wait()
    assert again.value == value


async def test_failed_attempts_are_retried_and_every_failure_is_kept(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(fail_until.bind(3))
        outcome = await handle.wait()
        history = await handle.history()
    assert outcome.value == 3
    failures = [move.failure for move in history if move.failure is not None]
    assert [failure.attempt for failure in failures] == [1, 2]
    assert all(failure.type == "ValueError" and failure.retryable for failure in failures)
    assert [move.version for move in history] == list(range(1, len(history) + 1))


async def test_a_spent_budget_keeps_the_last_real_failure(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        outcome = await (await engine.submit(fail_until.bind(9))).wait()
        found = await engine.get(outcome.id)
    assert outcome.state is State.FAILED
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.EXCEPTION
    assert (outcome.failure.attempt, found.attempt, found.charged, found.max_attempts) == (3, 3, 3, 3)
    assert "attempt 3 fails" in (found.error or "")


async def test_number_of_executions_equals_max_attempts(store: Store) -> None:
    seen: list[int] = []

    async def always_fails(ctx: TaskContext) -> None:
        seen.append(ctx.attempt)
        raise RuntimeError("no")

    async with Engine(store, tasks=[]) as engine:
        engine.register("always_fails", always_fails, retry=RetryPolicy(base=0, max_attempts=4))
        outcome = await (await engine.submit(TaskCall.of("always_fails"))).wait()
    assert seen == [1, 2, 3, 4]
    assert outcome.attempt == 4


# --- idempotency ---


async def test_same_key_returns_the_same_task_running_or_finished(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        first = await engine.submit(add.bind(1), idempotency_key="k")
        await first.wait()
        second = await engine.submit(add.bind(1), idempotency_key="k")
    assert (second.id, first.created, second.created) == (first.id, True, False)


async def test_same_key_submitted_many_times_at_once_is_one_task(store: Store) -> None:
    handles = []

    async def submit(engine: Engine) -> None:
        handles.append(await engine.submit(add.bind(1), idempotency_key="k"))

    async with Engine(store, tasks=TASKS) as engine:
        async with anyio.create_task_group() as tg:
            for _ in range(50):
                tg.start_soon(submit, engine)
        assert len((await engine.list()).tasks) == 1
    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1


async def test_same_key_with_another_payload_is_a_conflict_and_stores_nothing(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        first = await engine.submit(add.bind(1), idempotency_key="k")
        with pytest.raises(IdempotencyConflict) as caught:
            await engine.submit(add.bind(2), idempotency_key="k")
        with pytest.raises(IdempotencyConflict):
            await engine.submit_many(
                [Submission(add.bind(3)), Submission(add.bind(2), SubmitOptions(idempotency_key="k"))]
            )
        assert caught.value.task_id == first.id
        assert (await engine.stats()).submitted == 1


async def test_a_chosen_id_follows_the_rule_of_keys(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        first = await engine.submit(add.bind(1), id="mine")
        assert first.id == "mine"
        assert not (await engine.submit(add.bind(1), id="mine")).created
        with pytest.raises(IdempotencyConflict):
            await engine.submit(add.bind(2), id="mine")


async def test_twice_in_one_batch_is_one_task(store: Store) -> None:
    keyed = SubmitOptions(idempotency_key="k")
    async with Engine(store, tasks=TASKS) as engine:
        one, two = await engine.submit_many([Submission(add.bind(1), keyed), Submission(add.bind(1), keyed)])
    assert (one.id, one.created, two.created) == (two.id, True, False)


# --- refusals: clear, and nothing is stored ---


@pytest.mark.parametrize(
    ("call", "options", "error", "hint"),
    [
        (add.bind, {"args": ("x",)}, InvalidArguments, "a"),
        (TaskCall.of, {"args": ("nobody",)}, UnknownTask, "add"),
        (add.bind, {"args": (1,), "delay": -1}, InvalidOption, "delay"),
        (add.bind, {"args": (1,), "due_at": datetime(2030, 1, 1)}, InvalidOption, "time zone"),
        (add.bind, {"args": (1,), "priority": 1.5}, InvalidOption, "priority"),
        (add.bind, {"args": (1,), "max_attempts": 0}, InvalidOption, "max_attempts"),
        (add.bind, {"args": (1,), "idempotency_key": "a\0b"}, InvalidOption, "idempotency_key"),
        (add.bind, {"args": (1,), "tags": "one"}, InvalidOption, "tags"),
        (echo.bind, {"args": (float("nan"),)}, InvalidArguments, "nan"),
        (echo.bind, {"args": (object(),)}, InvalidArguments, "echo"),
        (echo.bind, {"args": ("x" * 2_000_000,)}, InvalidArguments, "1,048,576"),
    ],
)
async def test_bad_submissions_are_refused_with_the_fix(
    call: Any, options: dict[str, Any], error: type[Exception], hint: str
) -> None:
    store = MemoryStore()
    async with Engine(store, tasks=TASKS) as engine:
        args = options["args"]
        with pytest.raises(error, match=hint):
            await engine.submit(call(*args), **{key: value for key, value in options.items() if key != "args"})
        assert (await engine.stats()).submitted == 0


@pytest.mark.parametrize(
    ("misuse", "hint"),
    [
        (lambda engine: engine.submit(add), r"\.bind\(\.\.\.\)"),
        (lambda engine: engine.submit("add"), r"\.bind\(\.\.\.\)"),
        (lambda engine: engine.submit_many(add.bind(1)), "list of calls"),
        (lambda engine: engine.submit(add.bind(1), due_at="2030-01-01"), "not a datetime"),
        (lambda engine: engine.wait_all("one"), "list of ids"),
        (lambda engine: engine.get(7), "neither an id nor a handle"),
        (lambda engine: engine.cancel("one", timeout="x"), "number of seconds"),
        (lambda engine: engine.drain(timeout=-1), "number of seconds"),
        (lambda engine: engine.events(-1), "position"),
        (lambda engine: Engine(MemoryStore(), tasks=add), "list of tasks"),  # type: ignore[arg-type]
        (lambda engine: Engine(None), "neither a path nor a Store"),  # type: ignore[arg-type]
        (lambda engine: Engine(MemoryStore(), downstream=object()), "Downstream"),  # type: ignore[arg-type]
        (lambda engine: task(max_attempt=3)(_undecorated), "max_attempts"),  # type: ignore[call-overload]
        (lambda engine: RetryPolicy(max_attempts="3"), "number from 1"),  # type: ignore[arg-type]
    ],
)
async def test_misuse_is_an_invalid_option_that_names_the_fix(misuse: Callable[[Any], Any], hint: str) -> None:
    async with Engine(MemoryStore(), tasks=TASKS) as engine:
        with pytest.raises(InvalidOption, match=hint):
            await misuse(engine)
        assert (await engine.stats()).submitted == 0


async def _undecorated() -> None: ...


async def test_handles_are_taken_for_ids_and_waiting_can_be_bounded(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(sleep_long.bind())
        assert (await engine.get(handle)).id == handle.id
        with pytest.raises(TimeoutError):
            await handle.wait(timeout=0.05)
        outcome = await engine.cancel(handle)
        assert outcome.state is State.CANCELLED
        with pytest.raises(TaskUnsuccessful, match="cancelled"):
            (await handle.wait()).unwrap()


async def test_submit_many_has_common_options(store: Store) -> None:
    async with Engine(store) as client:
        calls: list[Any] = [TaskCall.of("add", 1), Submission(TaskCall.of("add", 2), SubmitOptions(priority=1))]
        one, two = await client.submit_many(calls, options=SubmitOptions(priority=7))
        assert [(await client.get(each)).priority for each in (one, two)] == [7, 1]


# --- options ---


async def test_priority_comes_first_and_equals_keep_their_order(store: Store) -> None:
    order: list[int] = []

    async def note(n: int) -> None:
        order.append(n)

    async with Engine(store) as client:
        call = [TaskCall.of("note", n) for n in range(20)]
        await client.submit_many(call[:10])
        await client.submit(call[10], priority=-5)
        await client.submit(call[11], priority=5)
    async with Engine(store, tasks=[note], concurrency=1) as engine:
        assert await engine.drain(timeout=20)
    assert order == [10, *range(10), 11]


async def test_one_slot_starts_a_thousand_tasks_in_submit_order(store: Store) -> None:
    order: list[int] = []

    async def note(n: int) -> None:
        order.append(n)

    async with Engine(store, tasks=[note], concurrency=1) as engine:
        for n in range(50):
            await engine.submit(TaskCall.of("note", n))
        await engine.submit_many(TaskCall.of("note", n) for n in range(50, 550))
        assert await engine.drain(timeout=30)
    assert order == list(range(550))


async def test_a_delayed_task_is_scheduled_and_can_be_run_now(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        later = await engine.submit(add.bind(1), delay=timedelta(hours=1))
        assert (await later.task()).state is State.SCHEDULED
        await engine.run_now(later.id)
        assert (await later.wait()).ok
        with pytest.raises(TaskNotFound):
            await engine.run_now("nobody")


async def test_run_now_of_a_queued_task_is_an_illegal_transition(store: Store) -> None:
    async with Engine(store) as client:
        waiting = await client.submit(TaskCall.of("nobody_here"))
        with pytest.raises(IllegalTransition):
            await client.run_now(waiting.id)


async def test_a_due_task_runs_when_its_time_comes(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        due = datetime.now(UTC) + timedelta(seconds=0.2)
        handle = await engine.submit(add.bind(1), due_at=due)
        await handle.wait()
        found = await handle.task()
    assert found.started_at is not None
    assert found.started_at >= due
    assert found.due_at == due


async def test_metadata_label_and_tags_are_kept_and_shown(store: Store) -> None:
    seen: dict[str, Any] = {}

    async def look(ctx: TaskContext) -> None:
        seen.update(ctx.metadata, key=ctx.idempotency_key, id=ctx.task_id)

    async with Engine(store, tasks=[look]) as engine:
        handle = await engine.submit(
            TaskCall.of("look"), metadata={"who": "me"}, label="nice", tags=["a", "b"], idempotency_key="k"
        )
        await handle.wait()
        found = await handle.task()
        assert [one.id for one in await engine.list(tag="b")] == [handle.id]
    assert seen == {"who": "me", "key": "k", "id": handle.id}
    assert (found.label, found.tags, found.metadata) == ("nice", ("a", "b"), {"who": "me"})


# --- limits ---


async def test_max_pending_refuses_and_waits_as_chosen(store: Store) -> None:
    async with Engine(store) as client:
        await client.submit_many([TaskCall.of("add", n) for n in range(3)])
    async with Engine(store, max_pending=3) as client:
        with pytest.raises(QueueFull) as caught:
            await client.submit(TaskCall.of("add", 9))
        assert (caught.value.max_pending, caught.value.pending) == (3, 3)
        with pytest.raises(QueueFull):
            await client.submit(TaskCall.of("add", 9), on_full="wait", full_timeout=0.05)
        async with anyio.create_task_group() as tg:
            tg.start_soon(_run_all, same_store(store))
            waited = await client.submit(TaskCall.of("add", 9), on_full="wait", full_timeout=20)
    assert waited.created


async def _run_all(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        assert await engine.drain(timeout=20)


async def test_requeue_and_retry_are_never_refused_by_max_pending(store: Store) -> None:
    async with Engine(store, tasks=TASKS, max_pending=1) as engine:
        done = await engine.submit(fail_until.bind(2))
        assert (await done.wait()).ok
        await engine.submit(add.bind(1), delay=3600)
        assert (await (await engine.requeue(done.id)).wait()).ok


# --- requeue, delete ---


async def test_requeue_makes_a_new_task_with_a_new_key(store: Store) -> None:
    keys: list[str] = []

    async def note(ctx: TaskContext) -> None:
        keys.append(ctx.idempotency_key)

    async with Engine(store, tasks=[note, sleep_long]) as engine:
        old = await engine.submit(TaskCall.of("note"), idempotency_key="k")
        await old.wait()
        new = await engine.requeue(old.id)
        await new.wait()
        kept = await engine.requeue(old.id, keep_key=True)
        await kept.wait()
        found = await new.task()
        assert (found.requeued_from, found.idempotency_key) == (old.id, None)
        assert not (await engine.submit(TaskCall.of("note"), idempotency_key="k")).created
        running = await engine.submit(sleep_long.bind())
        with pytest.raises(NotFinished):
            await engine.requeue(running.id)
        with pytest.raises(TaskNotFound):
            await engine.requeue("nobody")
        await running.cancel()
    assert keys == ["k", new.id, "k"]


async def test_a_deleted_task_is_expired_and_an_unknown_one_is_not_found(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(add.bind(1))
        await handle.wait()
        await engine.delete(handle.id)
        with pytest.raises(TaskExpired):
            await handle.wait()
        with pytest.raises(TaskNotFound) as caught:
            await engine.get("nobody")
        assert not isinstance(caught.value, TaskExpired)
        assert (await engine.stats()).by_state["succeeded"] == 0


# --- looking ---


async def test_list_pages_newest_first_and_filters(store: Store) -> None:
    async with Engine(store) as client:
        handles = await client.submit_many([TaskCall.of("a" if n % 2 else "b", n) for n in range(25)])
        ids = [handle.id for handle in handles][::-1]
        first = await client.list(limit=10)
        second = await client.list(limit=10, cursor=first.next)
        third = await client.list(limit=10, cursor=second.next)
        assert [one.id for page in (first, second, third) for one in page] == ids
        assert third.next is None
        assert len(await client.list(name="a")) == 12
        assert len(await client.list(states="queued", limit=3)) == 3
        assert [one.id for one in await client.list(order="claim", limit=5)] == ids[::-1][:5]
        with pytest.raises(InvalidOption, match="did you mean 'succeeded'"):
            await client.list(states="success")
        with pytest.raises(InvalidOption, match="cursor"):
            await client.list(cursor="x")
        with pytest.raises(InvalidOption, match="limit"):
            await client.list(limit=10**9)


async def test_events_can_be_continued_from_a_cursor_and_miss_nothing(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(add.bind(1))
        await handle.wait()
        seen = []
        async for event in engine.events(after=0):
            seen.append(event)
            if len(seen) == 2:
                break
        async for event in engine.events(after=seen[-1].position):
            seen.append(event)
            if event.target is State.SUCCEEDED:
                break
        history = await handle.history()
    assert [event.position for event in seen] == [move.position for move in history]
    assert seen == history


async def test_events_wait_for_what_is_committed_next(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        start = (await engine.stats()).submitted
        assert start == 0
        targets = []

        async def follow(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            events = engine.events(after=0)
            task_status.started()
            async for event in events:
                targets.append(event.target)
                if event.target is State.SUCCEEDED:
                    return

        async with anyio.create_task_group() as tg:
            await tg.start(follow)
            await engine.submit(add.bind(1))
    assert targets[0] is State.QUEUED
    assert targets[-1] is State.SUCCEEDED


async def test_stats_count_what_happened(store: Store) -> None:
    async with Engine(store, tasks=TASKS, concurrency=7) as engine:
        handles = [await engine.submit(fail_until.bind(n)) for n in (1, 2, 9)]
        assert await engine.wait_all(handles, timeout=20)
        await engine.submit(add.bind(1), delay=3600)
        stats = await engine.stats()
    assert (stats.submitted, stats.completed, stats.failed, stats.retried, stats.unfinished) == (4, 2, 1, 3, 1)
    assert (stats.slots_total, stats.slots_used, stats.queued) == (7, 0, 0)
    assert stats.by_name["fail_until"] == {"succeeded": 2, "failed": 1}
    assert stats.by_state["scheduled"] == 1


# --- waiting ---


async def test_wait_all_only_waits(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        slow = await engine.submit(sleep_long.bind(), tags=["slow"])
        quick = await engine.submit(add.bind(1), tags=["quick"])
        assert await engine.wait_all([quick], timeout=20)
        assert await engine.wait_all(tag="quick", timeout=20)
        assert not await engine.wait_all([slow], timeout=0.05)
        assert not await engine.wait_all(tag="slow", timeout=0.05)
        with pytest.raises(TaskNotFound):
            await engine.wait_all(["nobody"])
        assert (await slow.cancel()).state is State.CANCELLED


async def test_giving_up_waiting_cancels_nothing(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        handle = await engine.submit(sleep_long.bind())
        with anyio.move_on_after(0.05):
            await handle.wait()
        assert not (await handle.task()).is_final
        await handle.cancel()


async def test_waiting_for_an_unknown_id_ends_at_once(store: Store) -> None:
    async with Engine(store, tasks=TASKS) as engine:
        with pytest.raises(TaskNotFound):
            await engine.handle("nobody")


async def test_drain_leaves_unknown_names_alone(store: Store) -> None:
    async with Engine(store) as client:
        await client.submit(TaskCall.of("add", 1))
        left = await client.submit(TaskCall.of("nobody_here"))
    async with Engine(store, tasks=TASKS) as engine:
        assert await engine.drain(timeout=20)
        assert (await engine.get(left.id)).state is State.QUEUED
        assert (await engine.stats()).completed == 1


# --- who may run what ---


async def test_a_client_submits_any_name_and_runs_nothing(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", 1, b=1))
        task_ = await handle.task()
        assert (task_.state, task_.max_attempts) == (State.QUEUED, None)
        async with Engine(same_store(store), tasks=TASKS) as engine:
            assert (await (await engine.handle(handle.id)).wait()).value == 2
            assert (await engine.get(handle.id)).max_attempts == 3
        with anyio.fail_after(20):
            assert (await handle.wait()).value == 2  # heard of from the other engine


async def test_arguments_of_a_client_are_checked_when_claimed(store: Store) -> None:
    async with Engine(store) as client:
        handle = await client.submit(TaskCall.of("add", "no number"))
    async with Engine(store, tasks=TASKS) as engine:
        outcome = await (await engine.handle(handle.id)).wait()
    assert outcome.state is State.FAILED
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.type) == (FailureKind.EXCEPTION, "InvalidArguments")
    assert outcome.attempt == 1


async def test_unencodable_results_fail_and_are_not_retried(store: Store) -> None:
    runs = []

    async def bad() -> object:
        runs.append(1)
        return object()

    async with Engine(store, tasks=[bad]) as engine:
        outcome = await (await engine.submit(TaskCall.of("bad"))).wait()
    assert outcome.failure is not None
    assert (outcome.failure.kind, len(runs)) == (FailureKind.RESULT_INVALID, 1)


async def test_the_limit_on_values_is_a_setting(store: Store) -> None:
    async def grow() -> str:
        return "x" * 500

    async with Engine(store, tasks=[grow, echo], max_value_bytes=400) as engine:
        with pytest.raises(InvalidArguments, match="limit is 400"):
            await engine.submit(echo.bind("x" * 500))
        outcome = await (await engine.submit(TaskCall.of("grow"))).wait()
    assert outcome.failure is not None
    assert outcome.failure.kind is FailureKind.RESULT_INVALID
    async with Engine(same_store(store), tasks=[echo], max_value_bytes=3_000_000) as engine:
        assert (await (await engine.submit(echo.bind("x" * 2_000_000))).wait()).ok


async def test_modules_register_their_tasks_and_their_hook(store: Store) -> None:
    module = ModuleType("made")
    module.__dict__.update(add=add, register=lambda engine: engine.register("extra", double))
    async with Engine(store, tasks=[module]) as engine:
        assert set(engine.task_names) == {"add", "extra"}
        assert (await (await engine.submit(TaskCall.of("extra", 2))).wait()).value == 4


async def test_run_task_needs_no_file() -> None:
    assert (await run_task(fail_until.bind(2))).value == 2
    with pytest.raises(InvalidOption, match="bind"):
        await run_task(TaskCall.of("add", 1))


async def test_two_engines_in_one_process_share_the_work(store: Store) -> None:
    async with Engine(store, tasks=TASKS, concurrency=2) as one, Engine(same_store(store), tasks=TASKS) as two:
        handles = await one.submit_many([add.bind(n) for n in range(40)])
        assert await two.wait_all([handle.id for handle in handles], timeout=30)
        assert (await one.stats()).completed == 40


async def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no such setting"):
        Engine(tmp_path / "x.db", concurency=3)
    with pytest.raises(InvalidOption, match="concurrency"):
        Engine(tmp_path / "x.db", concurrency=0)
    with pytest.raises(InvalidOption, match="MemoryStore"):
        Engine(":memory:")


async def test_a_task_stays_a_plain_function() -> None:
    assert await add(1, 2) == 3
    assert double(4) == 8

    @task(name="other")
    async def renamed() -> None: ...

    assert renamed.definition.name == "other"
