"""The checker sees what is wrong; that it is silent where all is well, every other test shows."""

from collections.abc import Callable
from typing import Any

import pytest

from taskengine import MemoryStore
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import HistoryRow, HoldScope, LogRow, SideRow
from taskengine.testing.contract_limits import hold_text
from taskengine.testing.contract_tools import NOW, claim, make_hold, make_row, move, submit
from taskengine.testing.invariants import check_invariants


@pytest.fixture
def store() -> MemoryStore:
    """A task in each of a few states, by the book."""
    store = MemoryStore()
    store.open()
    with store.transact() as tx:
        submit(
            tx,
            *(
                make_row(id_, max_attempts=3, recover="retry", idempotency_key=f"key-{id_}")
                for id_ in ("queued", "running", "done", "retried")
            ),
        )
        claim(tx, "running", "done", "retried")
        for id_ in ("running", "done", "retried"):
            move(tx, id_, Trigger.EXECUTOR_LAUNCHED)
        move(tx, "done", Trigger.EXECUTOR_COMPLETED, result="1")
        move(tx, "retried", Trigger.OWNER_REQUEUE, crashes=1)
    return store


def test_nothing_is_found_where_all_is_well(store: MemoryStore) -> None:
    assert check_invariants(store) == []


def test_nothing_is_found_in_an_empty_store() -> None:
    store = MemoryStore()
    store.open()
    assert check_invariants(store) == []


@pytest.mark.parametrize(
    ("task_id", "changes", "problem"),
    [
        ("done", {"state": State.FAILED}, "its history ends in succeeded"),
        ("done", {"finished_at": None}, "has not finished_at"),
        ("done", {"owner": "me"}, "has an owner"),
        ("done", {"held": "{}"}, "is held though it has ended"),
        ("done", {"failure": "{}"}, "has a failure"),
        ("running", {"owner": None}, "has not an owner"),
        ("running", {"finished_at": NOW}, "has finished_at"),
        ("running", {"result": "1"}, "has a result"),
        ("running", {"attempt": 2}, "has attempt 2 and was claimed 1 times"),
        ("running", {"version": 9}, "has version 9 and 3 moves in its history"),
        ("running", {"charged": 2}, "charged 2 is not between 0 and attempt 1"),
        ("running", {"charged": -1}, "charged -1 is not between"),
        ("running", {"max_attempts": 0}, "charged 1 exceeds max_attempts 0"),
        ("running", {"recover": None}, "was claimed without max_attempts or recover"),
        ("running", {"state": State.STOPPING}, "nobody wished it"),
        ("running", {"crashes": 5}, "crashes 5 is not between 0"),
        ("retried", {"crashes": 0}, "crashes 0 is not between 1"),
        ("queued", {"wish": "{}"}, "still carries a wish"),
        ("queued", {"held": "{}"}, "has a hold that cannot be read"),
        ("queued", {"held": hold_text(by="tag:absent")}, "carries a mark of 'tag:absent', and there is no such hold"),
        ("queued", {"name": "other"}, "0 tasks named 'mail' are queued and the counter says"),
        ("queued", {"idempotency_key": "key-done"}, "shares idempotency key 'key-done'"),
    ],
)
def test_a_row_that_says_otherwise_is_found(
    store: MemoryStore, task_id: str, changes: dict[str, Any], problem: str
) -> None:
    for name, value in changes.items():
        setattr(store._by_id[task_id], name, value)
    if task_id == "queued" and "name" in changes:
        store._by_id["retried"].name = "other"
    found = check_invariants(store)
    assert any(problem in line for line in found), found


def _replace(position: int, **values: Any) -> Callable[[MemoryStore], None]:
    def change(store: MemoryStore) -> None:
        store._history[position] = store._history[position]._replace(**values)

    return change


def _append_after_the_end(store: MemoryStore) -> None:
    key = store._by_id["done"].key
    row = HistoryRow(key, 5, State.SUCCEEDED, State.QUEUED, NOW, Trigger.OWNER_REQUEUE, "engine", None, 1, None)
    store._history.append(row)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_replace(0, version=2), "stands where move 1 belongs"),
        (_replace(4, source=State.SCHEDULED), "begins in scheduled and the task was queued"),
        (_replace(4, trigger=Trigger.CLOCK_DUE), "is not in the table"),
        (_replace(4, attempt=7), "names attempt 7 after 1 claims"),
        (_append_after_the_end, "history has position"),
        (_append_after_the_end, "is not in the table"),
        (lambda store: store._history.pop(0), "has version 1 and 0 moves in its history"),
        (lambda store: store._triggers.update({Trigger.USER_CANCEL: 1}), "0 times user:cancel and the counter says 1"),
        (lambda store: store._triggers.update({Trigger.USER_CANCEL: 1}), "moves were counted and the last position"),
        (lambda store: store._states.update({("mail", State.LOST): 2}), "are lost and the counter says 2"),
        (lambda store: store._tombstones.add("done"), "lives and has a tombstone"),
    ],
)
def test_a_history_or_counter_that_says_otherwise_is_found(
    store: MemoryStore, damage: Callable[[MemoryStore], None], problem: str
) -> None:
    damage(store)
    found = check_invariants(store)
    assert any(problem in line for line in found), found


def test_marks_of_a_hold_that_stands_or_that_end_by_themselves_are_well(store: MemoryStore) -> None:
    with store.transact() as tx:
        tx.put_hold(make_hold("a", is_released=True))
    for task_id, text in (("queued", hold_text(by="tag:a")), ("retried", hold_text(NOW, "tag:absent"))):
        store._by_id[task_id].held = text
    assert check_invariants(store) == []


@pytest.mark.parametrize("attempt", [0, 2])
def test_what_bodies_said_in_attempts_that_never_were_is_found(store: MemoryStore, attempt: int) -> None:
    key = store._by_id["running"].key
    with store.transact() as tx:
        tx.put_sides([SideRow(key, attempt, NOW, None)])
        tx.append_logs([LogRow(key, attempt, 1, NOW, 20, "line")], keep=9)
    assert check_invariants(store) == [
        f"task running has side data of attempt {attempt} and was claimed 1 times",
        f"task running has captured lines of attempt {attempt} and was claimed 1 times",
    ]


def test_a_hold_of_nothing_and_one_of_everything_in_particular_are_found(store: MemoryStore) -> None:
    with store.transact() as tx:
        tx.put_hold(make_hold(""))
        tx.put_hold(make_hold("mail", HoldScope.ALL))
        tx.put_hold(make_hold("", HoldScope.ALL))
        tx.put_hold(make_hold("mail", HoldScope.NAME))
    assert sorted(check_invariants(store)) == ["hold all:mail: has a target", "hold tag:: has no target"]


def test_a_deleted_task_is_no_gap(store: MemoryStore) -> None:
    with store.transact() as tx:
        (row,) = tx.find(ids=["done"])
        tx.delete([row.key])
        tx.tally({("mail", State.SUCCEEDED): -1}, {})
    assert check_invariants(store) == []
