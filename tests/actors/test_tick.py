"""One tick: admission, order of moves, first commit wins, recovery, the claim; on both stores."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from taskengine import SqliteStore
from taskengine.actors import tick as tick_module
from taskengine.actors.batch import Batch
from taskengine.actors.messages import Receipt, RequestAnswer
from taskengine.actors.tick import run_tick
from taskengine.core.decide import OutcomeKind
from taskengine.core.errors import (
    IdempotencyConflict,
    IllegalTransition,
    NotFinished,
    QueueFull,
    StoreError,
    StoreUnavailable,
    TaskExpired,
    TaskNotFound,
)
from taskengine.core.lifecycle import FINAL, State, Trigger
from taskengine.core.model import TaskFilter, Wish, WishKind
from taskengine.ports import Store
from taskengine.testing.faults import FaultyStore
from tests.actors.ticking import (
    AGEING_STEP,
    NOW,
    SECOND,
    Engine,
    cancel,
    deletion,
    make_owner,
    make_row,
    order,
    recovery,
    requeue,
    submission,
)

EVERYTHING = TaskFilter()


@pytest.fixture
def opened(store: Store) -> Iterator[Store]:
    if isinstance(store, SqliteStore):
        store.durability = "fast"
    store.open()
    yield store
    store.close()


@pytest.fixture
def engine(opened: Store) -> Engine:
    return Engine(opened)


def stored(engine: Engine) -> list[str]:
    return sorted(row.id for row in engine.store.reader().select(EVERYTHING, limit=1000))


def told(answer: list[Receipt] | Exception) -> list[tuple[str, bool, State]]:
    assert not isinstance(answer, Exception), answer
    return [(receipt.id, receipt.created, receipt.state) for receipt in answer]


# --- admission ---


def test_new_tasks_are_queued_or_scheduled_by_their_due_time(engine: Engine) -> None:
    answer = engine.submit(make_row("now"), make_row("past", delay=-5), make_row("later", delay=5))
    assert told(answer) == [
        ("now", True, State.QUEUED),
        ("past", True, State.QUEUED),
        ("later", True, State.SCHEDULED),
    ]
    assert engine.triggers("later") == [Trigger.USER_SUBMIT_LATER]


def test_a_key_twice_in_one_batch_is_one_task(engine: Engine) -> None:
    first, second, third = (make_row(f"id-{n}", idempotency_key="k") for n in range(3))
    result = engine.tick(submits=[submission(first, second), submission(third)])
    answers = [told(answer) for _, answer in result.submitted]
    assert answers == [
        [("id-0", True, State.QUEUED), ("id-0", False, State.QUEUED)],
        [("id-0", False, State.QUEUED)],
    ]
    assert stored(engine) == ["id-0"]
    assert result.new_tasks == 1


def test_a_key_of_a_finished_task_is_answered_with_it(engine: Engine) -> None:
    engine.submit(make_row("first", idempotency_key="k"))
    engine.request("first")
    assert told(engine.submit(make_row("second", idempotency_key="k"))) == [("first", False, State.CANCELLED)]


@pytest.mark.parametrize("change", [{"name": "print"}, {"args": '[["other"],{}]'}])
def test_a_conflict_stores_nothing_of_its_submission_and_harms_no_other(engine: Engine, change: dict[str, Any]) -> None:
    engine.submit(make_row("first", idempotency_key="k"))
    bad = submission(make_row("neighbour"), make_row("other", idempotency_key="k", **change))
    result = engine.tick(submits=[submission(make_row("before")), bad, submission(make_row("after"))])
    error = result.submitted[1][1]
    assert isinstance(error, IdempotencyConflict)
    assert (error.key, error.task_id) == ("k", "first")
    assert stored(engine) == ["after", "before", "first"]


def test_a_conflict_within_one_submission_stores_nothing_of_it(engine: Engine) -> None:
    answer = engine.submit(make_row("a", idempotency_key="k"), make_row("b", idempotency_key="k", args="[[1],{}]"))
    assert isinstance(answer, IdempotencyConflict)
    assert stored(engine) == []
    assert told(engine.submit(make_row("c", idempotency_key="k"))) == [("c", True, State.QUEUED)]


def test_a_chosen_id_that_is_there_is_answered_as_a_key_is(engine: Engine) -> None:
    chosen = frozenset({"mine"})
    result = engine.tick(submits=[submission(make_row("mine"), make_row("mine"), chosen_ids=chosen)])
    assert told(result.submitted[0][1]) == [("mine", True, State.QUEUED), ("mine", False, State.QUEUED)]
    assert told(engine.submit(make_row("mine"), chosen_ids=chosen)) == [("mine", False, State.QUEUED)]
    conflict = engine.submit(make_row("mine", args="[[2],{}]"), chosen_ids=chosen)
    assert isinstance(conflict, IdempotencyConflict)
    assert "task id 'mine'" in str(conflict)


def test_the_chosen_id_of_a_deleted_task_is_not_given_again(engine: Engine) -> None:
    engine.submit(make_row("mine"), chosen_ids=frozenset({"mine"}))
    engine.request("mine")
    engine.tick(deletes=[deletion("mine")])
    assert isinstance(engine.submit(make_row("mine"), chosen_ids=frozenset({"mine"})), TaskExpired)


def test_beyond_max_pending_nothing_of_a_submission_is_stored(engine: Engine) -> None:
    batches = [submission(make_row("a"), make_row("b")), submission(make_row("c"), make_row("d"))]
    batches.append(submission(make_row("e", delay=9)))
    result = engine.tick(submits=batches, max_pending=3)
    error = result.submitted[1][1]
    assert isinstance(error, QueueFull)
    assert (error.max_pending, error.pending) == (3, 2)
    assert stored(engine) == ["a", "b", "e"]


def test_what_runs_or_has_ended_is_not_pending(engine: Engine) -> None:
    engine.submit(make_row("a"), make_row("b"))
    engine.claim(1)
    engine.request("b")
    result = engine.tick(submits=[submission(make_row("c"))], max_pending=1)
    assert told(result.submitted[0][1]) == [("c", True, State.QUEUED)]


def test_existing_keys_are_answered_though_the_queue_is_full(engine: Engine) -> None:
    engine.submit(make_row("a", idempotency_key="k"))
    result = engine.tick(submits=[submission(make_row("b", idempotency_key="k"))], max_pending=1)
    assert told(result.submitted[0][1]) == [("a", False, State.QUEUED)]


def test_unbounded_submissions_pass_a_full_queue(engine: Engine) -> None:
    result = engine.tick(submits=[submission(make_row("a"), make_row("b"), is_bounded=False)], max_pending=1)
    assert not isinstance(result.submitted[0][1], Exception)


def test_the_queue_s_order_is_that_of_submission_whatever_the_wall_clock_does(engine: Engine) -> None:
    for number, at in enumerate([NOW, NOW, NOW - 3600 * SECOND, NOW - 7200 * SECOND, NOW + 1]):
        engine.now = at
        engine.submit(
            *(make_row(f"t{number}{letter}", created_at=at, due_at=at) for letter in "ab"),
        )
    expected = [f"t{number}{letter}" for number in range(5) for letter in "ab"]
    assert engine.claim() == expected


def test_priority_is_worth_time_in_the_queue(engine: Engine) -> None:
    engine.submit(make_row("low", priority=1), make_row("normal"), make_row("high", priority=-1))
    engine.now += AGEING_STEP + SECOND
    engine.submit(make_row("late-high", priority=-1), make_row("late"))
    assert engine.claim() == ["high", "normal", "late-high", "low", "late"]


def test_an_error_of_the_store_leaves_nothing_and_the_batch_can_be_tried_again(opened: Store) -> None:
    faulty = FaultyStore(opened)
    engine = Engine(faulty)
    for during in ("insert", "append", "tally", "save_head", None):
        faulty.fail(StoreUnavailable("locked"), during=during, point="commit")
        with pytest.raises(StoreUnavailable):
            engine.submit(make_row("a", idempotency_key="k"))
        assert stored(engine) == []
    assert told(engine.submit(make_row("a", idempotency_key="k"))) == [("a", True, State.QUEUED)]


def test_an_id_that_exists_and_was_not_chosen_is_the_store_s_error(engine: Engine) -> None:
    engine.submit(make_row("a"))
    with pytest.raises(StoreError):
        engine.submit(make_row("a"))


# --- requeue and delete ---


def test_a_requeue_is_a_new_task_that_names_the_old_one(engine: Engine) -> None:
    engine.submit(make_row("old", idempotency_key="k", send_key="k", tags='["t"]', label="l", priority=2))
    engine.request("old")
    result = engine.tick(requeues=[requeue("old", "new"), requeue("old", "kept", keep_key=True)])
    assert [told([answer]) for _, answer in result.requeued if isinstance(answer, Receipt)] == [
        [("new", True, State.QUEUED)],
        [("kept", True, State.QUEUED)],
    ]
    new, kept = engine.row("new"), engine.row("kept")
    assert (new.requeued_from, new.idempotency_key, new.send_key, new.attempt) == ("old", None, "new", 0)
    assert (new.tags, new.label, new.priority, new.name, new.args) == ('["t"]', "l", 2, "mail", "[[],{}]")
    assert kept.send_key == "k"
    assert engine.state("old") is State.CANCELLED
    assert engine.store.reader().history("new")[0][1].reason == "requeued from old"


def test_only_what_has_ended_is_requeued_or_deleted(engine: Engine) -> None:
    engine.submit(make_row("alive"), make_row("gone"))
    engine.request("gone")
    assert engine.tick(deletes=[deletion("gone")]).deleted[0][1] is True
    result = engine.tick(
        requeues=[requeue("alive", "n1"), requeue("gone", "n2"), requeue("never", "n3")],
        deletes=[deletion("alive"), deletion("gone"), deletion("never")],
    )
    expected = [NotFinished, TaskExpired, TaskNotFound]
    assert [type(answer) for _, answer in result.requeued] == expected
    assert [type(answer) for _, answer in result.deleted] == expected
    assert stored(engine) == ["alive"]


def test_a_deleted_task_frees_its_key_and_its_place_in_the_counters(engine: Engine) -> None:
    engine.submit(make_row("a", idempotency_key="k"))
    engine.request("a")
    result = engine.tick(deletes=[deletion("a"), deletion("a")])
    assert [answer if answer is True else type(answer) for _, answer in result.deleted] == [True, TaskExpired]
    assert told(engine.submit(make_row("b", idempotency_key="k"))) == [("b", True, State.QUEUED)]


# --- first commit wins ---


def test_an_end_that_was_reported_before_a_cancel_wins_over_it(engine: Engine) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    result = engine.tick(settlements=[engine.ended("a")], requests=[cancel("a")])
    assert engine.state("a") is State.SUCCEEDED
    ((_, answer),) = result.answered
    assert isinstance(answer, RequestAnswer)
    assert (answer.state, answer.is_remote) == (State.SUCCEEDED, False)
    assert result.moves == []


def test_a_cancel_after_a_failed_attempt_in_one_batch_cancels_the_wait(engine: Engine) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    engine.tick(settlements=[engine.ended("a", OutcomeKind.RAISED)], requests=[cancel("a")])
    assert engine.state("a") is State.CANCELLED
    assert engine.triggers("a")[-2:] == [Trigger.ATTEMPT_RETRY, Trigger.USER_CANCEL]


def test_a_beginning_and_a_cancel_in_one_batch_agree(engine: Engine) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    engine.tick(settlements=[engine.began("a")], requests=[cancel("a")])
    assert engine.state("a") is State.STOPPING
    engine.tick(settlements=[engine.ended("a", OutcomeKind.INTERRUPTED)])
    assert engine.state("a") is State.CANCELLED


def test_two_requests_for_one_task_in_one_batch_are_answered_in_turn(engine: Engine) -> None:
    engine.submit(make_row("a"), make_row("b"))
    engine.claim(1)
    result = engine.tick(
        requests=[cancel("a", Trigger.USER_STOP), cancel("a"), cancel("b", Trigger.USER_STOP), cancel("b")]
    )
    states = [answer.state for _, answer in result.answered if isinstance(answer, RequestAnswer)]
    assert states == [State.STOPPING, State.STOPPING, State.STOPPED, State.STOPPED]
    assert engine.live["a"].wish == Wish(kind=WishKind.CANCEL, actor="anna", reason=None)


def test_a_task_can_be_submitted_claimed_and_so_begun_by_one_commit(engine: Engine) -> None:
    result = engine.tick(submits=[submission(make_row("a"))], claim=order(1))
    assert [row.id for row in result.claimed] == ["a"]
    assert engine.triggers("a") == [Trigger.USER_SUBMIT, Trigger.CLAIMER_CLAIM]


# --- cancel ---


@pytest.mark.parametrize("trigger", [Trigger.USER_CANCEL, Trigger.USER_STOP])
def test_a_task_without_a_body_ends_at_once(engine: Engine, trigger: Trigger) -> None:
    final = State.CANCELLED if trigger is Trigger.USER_CANCEL else State.STOPPED
    engine.submit(make_row("retried"))
    engine.claim()
    engine.tick(settlements=[engine.ended("retried", OutcomeKind.RAISED)])
    engine.submit(make_row("queued"), make_row("scheduled", delay=9))
    assert engine.state("retried") is State.RETRY_WAIT
    for id_ in ("queued", "scheduled", "retried"):
        answer = engine.request(id_, trigger)
        assert isinstance(answer, RequestAnswer)
        assert (answer.state, engine.state(id_)) == (final, final)
        assert engine.row(id_).finished_at == engine.now


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_claimed_task_is_told_to_end_and_ends_when_its_attempt_does(engine: Engine, has_begun: bool) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    if has_begun:
        engine.tick(settlements=[engine.began("a")])
    result = engine.tick(requests=[cancel("a", reason="why")])
    assert engine.state("a") is State.STOPPING
    assert [move.decision.wish for move in result.moves] == [Wish(kind=WishKind.CANCEL, actor="anna", reason="why")]
    kind = OutcomeKind.INTERRUPTED if has_begun else OutcomeKind.UNBEGUN
    engine.tick(settlements=[engine.ended("a", kind)])
    assert engine.state("a") is State.CANCELLED


@pytest.mark.parametrize("trigger", [Trigger.USER_CANCEL, Trigger.USER_STOP])
def test_a_request_for_what_has_ended_is_answered_with_its_end(engine: Engine, trigger: Trigger) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    engine.tick(settlements=[engine.ended("a")])
    before = engine.store.reader().last_position()
    answer = engine.request("a", trigger)
    assert isinstance(answer, RequestAnswer)
    assert answer.state is State.SUCCEEDED
    assert engine.store.reader().last_position() == before


def test_requests_for_what_is_not_there_or_has_no_such_move_are_refused_alone(engine: Engine) -> None:
    engine.submit(make_row("gone"), make_row("queued"))
    engine.request("gone")
    engine.tick(deletes=[deletion("gone")])
    result = engine.tick(
        requests=[cancel("never"), cancel("gone"), cancel("queued", Trigger.USER_RUN_NOW), cancel("queued")]
    )
    types = [type(answer) for _, answer in result.answered]
    assert types == [TaskNotFound, TaskExpired, IllegalTransition, RequestAnswer]
    assert engine.state("queued") is State.CANCELLED


def test_run_now_queues_behind_what_is_queued(engine: Engine) -> None:
    engine.submit(make_row("later", delay=999))
    engine.submit(make_row("queued"))
    answer = engine.request("later", Trigger.USER_RUN_NOW)
    assert isinstance(answer, RequestAnswer)
    assert answer.state is State.QUEUED
    assert engine.claim() == ["queued", "later"]
    assert engine.row("later").due_at == NOW


# --- other processes' tasks ---


def test_a_request_for_another_process_s_task_is_handed_to_it(engine: Engine) -> None:
    client, them = Engine(engine.store, owner=None), Engine(engine.store, owner="them")
    engine.submit(make_row("a"))
    them.claim()
    for asking in (client, engine):
        answer = asking.request("a")
        assert isinstance(answer, RequestAnswer)
        assert (answer.state, answer.is_remote) == (State.STARTING, True)
    result = them.tick()
    assert [request.task_id for request, _ in result.answered] == ["a"]
    assert them.state("a") is State.STOPPING
    assert them.live["a"].wish == Wish(kind=WishKind.CANCEL, actor="anna", reason=None)
    them.tick(settlements=[them.ended("a", OutcomeKind.INTERRUPTED)])
    assert them.state("a") is State.CANCELLED
    assert them.tick().answered == [], "a command is carried out once"


def test_a_command_that_comes_too_late_changes_nothing(engine: Engine) -> None:
    client = Engine(engine.store, owner=None)
    engine.submit(make_row("a"))
    engine.claim()
    client.request("a", Trigger.USER_STOP)
    result = engine.tick(settlements=[engine.ended("a")])
    ((_, answer),) = result.answered
    assert isinstance(answer, RequestAnswer)
    assert (answer.state, engine.state("a")) == (State.SUCCEEDED, State.SUCCEEDED)


def test_a_command_follows_its_task_to_the_next_owner(engine: Engine) -> None:
    client, them = Engine(engine.store, owner=None), Engine(engine.store, owner="them")
    engine.submit(make_row("a"))
    engine.claim()
    client.request("a")
    engine.owner = None  # This engine is slow to look for commands.
    engine.tick(settlements=[engine.ended("a", OutcomeKind.UNBEGUN)])
    assert them.claim() == ["a"]
    engine.owner = "me"
    engine.tick()
    them.tick()
    assert them.state("a") is State.STOPPING


# --- recovery ---


def _die(engine: Engine, *ids: str, **values: Any) -> Engine:
    """Have another engine claim tasks and vanish."""
    dead = Engine(engine.store, owner="dead")
    engine.submit(*(make_row(id_, **values) for id_ in ids))
    assert sorted(dead.claim()) == sorted(ids)
    return dead


def test_a_dead_owner_s_tasks_go_back_to_their_places(engine: Engine) -> None:
    dead = _die(engine, "a", "b", "c")
    dead.tick(settlements=[dead.began("b")])
    engine.submit(make_row("behind"))
    result = engine.tick(recoveries=[recovery("dead")])
    assert [count for _, count in result.recovered] == [3]
    assert engine.claim() == ["a", "b", "c", "behind"]
    row = engine.row("b")
    assert (row.attempt, row.charged, row.crashes) == (2, 2, 1)
    assert [owner.id for owner in engine.store.reader().owners()] == ["me"]


def test_more_tasks_than_one_chunk_are_recovered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_module, "RECOVER_CHUNK", 7)
    _die(engine, *(f"t{n}" for n in range(20)))
    assert [count for _, count in engine.tick(recoveries=[recovery("dead")]).recovered] == [20]
    assert len(engine.claim()) == 20


def test_an_owner_whose_beat_moved_is_left_alone(engine: Engine) -> None:
    dead = _die(engine, "a")
    with engine.store.transact() as tx:
        tx.beat("dead")
    result = engine.tick(recoveries=[recovery("dead", beat=0, proven_gone=False)])
    assert [count for _, count in result.recovered] == [0]
    assert engine.state("a") is State.STARTING
    dead.tick(settlements=[dead.ended("a")])
    result = engine.tick(recoveries=[recovery("dead", beat=1, proven_gone=False)])
    assert [owner.id for owner in engine.store.reader().owners()] == ["me"]


def test_tasks_without_an_owner_s_row_are_recovered(engine: Engine) -> None:
    _die(engine, "a")
    with engine.store.transact() as tx:
        tx.drop_owner("dead")
    assert engine.store.reader().ownerless() == ["dead"]
    engine.tick(recoveries=[recovery("dead", proven_gone=False)])
    assert engine.state("a") is State.QUEUED
    assert engine.store.reader().ownerless() == []


def test_a_recovery_twice_in_one_batch_settles_once(engine: Engine) -> None:
    _die(engine, "a")
    result = engine.tick(recoveries=[recovery("dead"), recovery("dead")])
    assert [count for _, count in result.recovered] == [1, 0]
    assert engine.row("a").crashes == 1


@pytest.mark.parametrize("values", [{"max_attempts": 1}, {"recover": "lost"}], ids=["last attempt", "recover=lost"])
def test_what_has_no_attempt_left_or_must_not_repeat_is_lost(engine: Engine, values: dict[str, Any]) -> None:
    _die(engine, "a", **values)
    result = engine.tick(recoveries=[recovery("dead")])
    assert engine.state("a") is State.LOST
    assert [move.write.state for move in result.moves] == [State.LOST]
    assert engine.row("a").finished_at == engine.now


@pytest.mark.parametrize(
    ("trigger", "proven_gone", "state"),
    [
        (Trigger.USER_CANCEL, True, State.CANCELLED),
        (Trigger.USER_STOP, True, State.STOPPED),
        (Trigger.USER_CANCEL, False, State.LOST),
    ],
)
def test_what_was_stopping_ends_as_wished_only_if_its_process_is_gone(
    engine: Engine, trigger: Trigger, proven_gone: bool, state: State
) -> None:
    dead = _die(engine, "a")
    dead.request("a", trigger)
    assert engine.state("a") is State.STOPPING
    engine.tick(recoveries=[recovery("dead", proven_gone=proven_gone)])
    assert engine.state("a") is state


def test_a_command_that_a_dead_owner_did_not_see_ends_its_task(engine: Engine) -> None:
    _die(engine, "a", "b")
    answer = engine.request("a")
    assert isinstance(answer, RequestAnswer)
    assert answer.is_remote
    result = engine.tick(recoveries=[recovery("dead")], claim=order(9))
    assert engine.state("a") is State.CANCELLED
    assert [row.id for row in result.claimed] == ["b"]
    assert engine.triggers("a")[-2:] == [Trigger.OWNER_REQUEUE, Trigger.USER_CANCEL]


def test_a_zombie_s_late_outcome_is_fenced_off_and_changes_nothing(engine: Engine) -> None:
    zombie = _die(engine, "a", "b")
    engine.tick(recoveries=[recovery("dead")])
    assert engine.claim(1) == ["a"]
    before = engine.row("a"), engine.row("b"), engine.store.reader().last_position()
    late = [zombie.ended("a"), zombie.ended("b", OutcomeKind.RAISED)]
    result = zombie.tick(settlements=late)
    assert result.fenced == late
    assert result.settled == []
    assert result.owner_gone
    after = engine.row("a"), engine.row("b"), engine.store.reader().last_position()
    assert [(row.state, row.version) for row in after[:2]] == [(row.state, row.version) for row in before[:2]]
    assert after[2] == before[2]
    engine.tick(settlements=[engine.ended("a")])
    assert engine.state("a") is State.SUCCEEDED


def test_in_one_batch_good_outcomes_land_and_fenced_ones_do_not(engine: Engine) -> None:
    engine.submit(*(make_row(f"t{n}") for n in range(6)))
    engine.claim()
    settlements = [engine.ended(f"t{n}") for n in range(6)]
    engine.tick(requests=[cancel("t1"), cancel("t4")])
    result = engine.tick(settlements=settlements)
    assert [settlement.attempt.row.id for settlement in result.fenced] == ["t1", "t4"]
    assert [engine.state(f"t{n}") in FINAL for n in range(6)] == [True, False, True, True, False, True]


def test_an_engine_without_its_owner_s_row_claims_nothing(engine: Engine) -> None:
    engine.submit(make_row("a"), make_row("later", delay=1))
    with engine.store.transact() as tx:
        tx.drop_owner("me")
    engine.now += 5 * SECOND
    result = engine.tick(claim=order(9))
    assert (result.owner_gone, result.claimed, result.promoted) == (True, [], 0)
    with engine.store.transact() as tx:
        tx.put_owner(make_owner("me"))
    assert engine.claim() == ["a", "later"]


# --- what is due ---


def test_due_tasks_are_promoted_in_bounded_batches_soonest_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_module, "PROMOTE_LIMIT", 3)
    engine.submit(*(make_row(f"t{n}", delay=10 - n) for n in range(7)))
    engine.now += 20 * SECOND
    results = [engine.tick(claim=order(0)) for _ in range(3)]
    assert [(result.promoted, result.has_more_due) for result in results] == [(3, True), (3, True), (1, False)]
    assert [result.next_due for result in results] == [NOW + 7 * SECOND, NOW + 10 * SECOND, None]
    assert engine.claim() == [f"t{n}" for n in reversed(range(7))]


def test_what_is_not_due_waits_and_its_time_is_told(engine: Engine) -> None:
    engine.submit(make_row("later", delay=7))
    result = engine.tick(claim=order(9))
    assert (result.claimed, result.next_due) == ([], NOW + 7 * SECOND)
    engine.now = NOW + 7 * SECOND
    result = engine.tick(claim=order(9))
    assert [row.id for row in result.claimed] == ["later"]
    assert engine.triggers("later") == [Trigger.USER_SUBMIT_LATER, Trigger.CLOCK_DUE, Trigger.CLAIMER_CLAIM]


# --- the claim ---


def test_no_more_is_claimed_than_was_ordered(engine: Engine) -> None:
    engine.submit(*(make_row(f"t{n}") for n in range(9)))
    assert engine.claim(0) == []
    assert engine.claim(2) == ["t0", "t1"]
    assert engine.claim(1, prefetch=2) == ["t2", "t3", "t4"]
    assert engine.claim(9, names=()) == []
    assert engine.claim(9, names=("print",)) == []


@pytest.mark.parametrize(
    "unsafe", [{"max_attempts": 1}, {"recover": "lost"}], ids=["a last attempt", "one that must not repeat"]
)
def test_a_prefetch_ends_before_the_first_task_that_must_not_be_claimed_early(
    engine: Engine, unsafe: dict[str, Any]
) -> None:
    engine.submit(make_row("t0", **unsafe), make_row("t1"), make_row("t2", **unsafe), make_row("t3"))
    assert engine.claim(1, prefetch=9) == ["t0", "t1"]
    assert engine.claim(0, prefetch=9) == []
    assert engine.claim(1, prefetch=9) == ["t2", "t3"]


def test_what_has_taken_an_owner_down_is_not_claimed_early(engine: Engine) -> None:
    _die(engine, "poison", max_attempts=9)
    engine.tick(recoveries=[recovery("dead")])
    engine.submit(make_row("behind"))
    assert engine.claim(0, prefetch=9) == []
    assert engine.claim(1, prefetch=9) == ["poison", "behind"]


def test_what_a_client_left_open_is_filled_in_at_the_claim(engine: Engine) -> None:
    engine.submit(make_row("a", max_attempts=None, recover=None), make_row("b", max_attempts=7, recover=None))
    result = engine.tick(claim=order(2))
    expected = [("a", 3, "retry"), ("b", 7, "retry")]
    assert [(row.id, row.max_attempts, row.recover) for row in result.claimed] == expected
    assert [(id_, engine.row(id_).max_attempts, engine.row(id_).recover) for id_ in "ab"] == expected


def test_a_claimed_row_is_what_the_store_holds(engine: Engine) -> None:
    engine.submit(make_row("a"))
    (claimed,) = engine.tick(claim=order(1)).claimed
    stored_row = engine.row("a")
    for name in type(claimed).__annotations__:
        assert getattr(claimed, name) == getattr(stored_row, name), name


def test_charged_attempts_end_at_the_limit_and_attempts_only_grow(engine: Engine) -> None:
    engine.submit(make_row("a", max_attempts=2))
    seen = []
    for kind in (OutcomeKind.RAISED, OutcomeKind.INTERRUPTED, OutcomeKind.UNBEGUN, OutcomeKind.RAISED):
        assert engine.claim() == ["a"]
        seen.append((engine.row("a").attempt, engine.row("a").charged))
        engine.tick(settlements=[engine.ended("a", kind)])
        engine.now += 10 * SECOND
    assert seen == [(1, 1), (2, 2), (3, 2), (4, 2)]
    assert engine.state("a") is State.FAILED


def test_positions_of_the_history_have_no_gaps_over_ticks(engine: Engine) -> None:
    engine.submit(*(make_row(f"t{n}") for n in range(5)))
    engine.claim(3)
    result = engine.tick(settlements=[engine.ended("t1")], requests=[cancel("t0"), cancel("t4")])
    positions = [event[0] for event in engine.store.reader().events(0, 100)]
    assert all(after == before + 1 for before, after in pairwise(positions))
    assert result.last_position == positions[-1] == engine.store.reader().last_position()


# --- known to be wrong ---


def test_what_was_due_when_it_was_made_is_due_though_the_clock_went_back(engine: Engine) -> None:
    late = engine.now + 3_600_000_000
    answer = engine.submit(make_row("a", created_at=late, due_at=late), make_row("b", created_at=late, due_at=late + 1))
    assert told(answer) == [("a", True, State.QUEUED), ("b", True, State.SCHEDULED)]


def test_an_id_is_not_mistaken_for_a_key_within_one_submission(engine: Engine) -> None:
    answer = engine.submit(
        make_row("x"), make_row("y", idempotency_key="x", args="[[1],{}]"), chosen_ids=frozenset({"x"})
    )
    assert told(answer) == [("x", True, State.QUEUED), ("y", True, State.QUEUED)]


def test_unbounded_submissions_of_the_same_tick_count_as_pending(engine: Engine) -> None:
    result = engine.tick(
        submits=[submission(make_row("a"), is_bounded=False), submission(make_row("b"))], max_pending=1
    )
    assert isinstance(result.submitted[1][1], QueueFull)


def test_a_second_cancel_of_what_is_being_cancelled_changes_nothing(engine: Engine) -> None:
    engine.submit(make_row("a"))
    engine.claim()
    engine.request("a")
    before = engine.store.reader().last_position()
    engine.request("a")
    assert engine.store.reader().last_position() == before


def test_what_was_not_claimed_keeps_its_open_settings(engine: Engine) -> None:
    engine.submit(make_row("safe"), make_row("a", max_attempts=None, recover="lost"))
    assert engine.claim(0, prefetch=5) == ["safe"]
    assert engine.row("a").max_attempts is None


def test_a_recovery_that_is_tried_again_carries_out_a_command_once(opened: Store) -> None:
    faulty = FaultyStore(opened)
    engine = Engine(faulty)
    _die(engine, "a")
    engine.request("a")
    faulty.fail(StoreUnavailable("locked"), point="commit")
    batch = Batch(now=engine.now, new_id=lambda: "new", owner="me", recoveries=[recovery("dead")])
    with pytest.raises(StoreUnavailable):
        run_tick(faulty, batch, AGEING_STEP)
    assert len(run_tick(faulty, batch, AGEING_STEP).answered) == 1
