"""Checks of what ends by itself (deadlines, start limits, holds), and of the marks that holds of many leave."""

from typing import Any

import msgspec

from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import TaskRow
from taskengine.ports import Transaction
from taskengine.testing.contract_tools import (
    EVERYTHING,
    NOW,
    Checks,
    claim,
    columns,
    expect_equal,
    ids,
    make_row,
    move,
    one,
    submit,
)

DAMAGED_HOLDS = (
    "",
    "no JSON",
    "{",
    '{"until":1,"by":"tag:a"} and more',
    "[1]",
    "1",
    '"until"',
    "null",
    "{}",
    '{"until":"1","by":7}',
    '{"until":true,"by":null}',
    '{"until":1.5,"by":["tag:a"]}',
    '{"until":{"until":1},"by":{"by":"tag:a"}}',
    "{'until':1,'by':'tag:a'}",
)
"""Texts of which no store may make an end, a mark or an error."""


def hold_text(until: int | None = None, by: str | None = None) -> str:
    """Write a mark as the engine does."""
    return msgspec.json.encode({"actor": "user", "reason": None, "until": until, "by": by}).decode()


def _hold(tx: Transaction, row: TaskRow, text: str) -> None:
    """Put a mark on a queued task."""
    claim(tx, row.id)
    move(tx, row.id, Trigger.ENGINE_RELEASE, held=text)


def _expired(tx: Transaction, now: int, limit: int = 99) -> list[str]:
    return sorted(ids(tx.expired(now, limit)))


class LimitChecks(Checks):
    """See the module."""

    # --- deadlines and start limits ---

    def what_waits_past_its_deadline_is_expired(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(
                tx,
                make_row("queued", deadline_at=NOW + 1),
                make_row("scheduled", State.SCHEDULED, due_at=NOW + 50, deadline_at=NOW + 2),
                make_row("unlimited"),
            )
            expect_equal(_expired(tx, NOW), [], "before")
            expect_equal(_expired(tx, NOW + 1), ["queued"], "deadline_at is inclusive")
            expect_equal(_expired(tx, NOW + 9), ["queued", "scheduled"], "every waiting state")
            expect_equal(len(tx.expired(NOW + 9, 1)), 1, "one, if one is wanted")
            expect_equal(tx.next_due(), NOW + 1, "next_due()")

    def a_deadline_is_for_as_long_as_the_task_waits(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("a", deadline_at=NOW), make_row("b", deadline_at=NOW))
            claim(tx, "a")
            expect_equal(_expired(tx, NOW), ["b"], "while one has an owner")
            move(tx, "b", Trigger.USER_CANCEL)
            expect_equal((_expired(tx, NOW), tx.next_due()), ([], None), "after the other has ended")
            move(tx, "a", Trigger.EXECUTOR_LAUNCHED)
            move(tx, "a", Trigger.ATTEMPT_RETRY, due_at=NOW + 9)
            expect_equal((_expired(tx, NOW), tx.next_due()), (["a"], NOW), "when it waits again")
            move(tx, "a", Trigger.CLOCK_DUE)
            expect_equal(_expired(tx, NOW), ["a"], "in the queue")

    def what_is_queued_past_its_start_limit_is_expired(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(
                tx,
                make_row("a", due_at=NOW, start_within=5),
                make_row("later", State.SCHEDULED, due_at=NOW + 2, start_within=1),
                make_row("b", due_at=NOW + 10, start_within=1),
            )
            expect_equal(tx.next_due(), NOW + 2, "next_due(): something is due first")
            expect_equal((_expired(tx, NOW + 4), _expired(tx, NOW + 5)), ([], ["a"]), "the limit is inclusive")
            expect_equal(_expired(tx, NOW + 99), ["a", "b"], "only what is queued")
            move(tx, "later", Trigger.CLOCK_DUE)
            expect_equal((_expired(tx, NOW + 3), tx.next_due()), (["later"], NOW + 3), "counted from the due time")

    def a_start_limit_is_for_the_first_body(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("begun", start_within=1), make_row("given back", start_within=2))
            claim(tx, "begun", "given back")
            expect_equal((_expired(tx, NOW + 9), tx.next_due()), ([], None), "while they have an owner")
            move(tx, "begun", Trigger.EXECUTOR_LAUNCHED, started_at=NOW)
            move(tx, "begun", Trigger.OWNER_REQUEUE)
            move(tx, "given back", Trigger.ENGINE_RELEASE)
            expect_equal((_expired(tx, NOW + 9), tx.next_due()), (["given back"], NOW + 2), "when they are queued")

    def a_task_past_both_limits_comes_once(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}", deadline_at=NOW + n, start_within=9 - n) for n in range(4)))
            expect_equal(_expired(tx, NOW + 99), ["t0", "t1", "t2", "t3"], "expired()")
            expect_equal(len(tx.expired(NOW + 99, 3)), 3, "expired() with a limit")

    def a_hold_stops_no_deadline(self) -> None:
        with self._opened() as store, store.transact() as tx:
            rows = submit(tx, make_row("deadline", deadline_at=NOW + 1), make_row("start", start_within=2))
            for row in rows:
                _hold(tx, row, hold_text())
            expect_equal(_expired(tx, NOW + 9), ["deadline", "start"], "expired()")
            expect_equal(tx.next_due(), NOW + 1, "next_due()")

    def light_rows_keep_what_a_decision_needs(self) -> None:
        values: dict[str, Any] = {
            "timeouts": '{"total":1}',
            "callbacks": '{"failure":"n"}',
            "deadline_at": NOW,
            "start_within": 1,
            "retry": '{"base":1}',
            "tags": '["a"]',
        }
        with self._opened() as store, store.transact() as tx:
            row = one(submit(tx, make_row("a", **values)))
            _hold(tx, row, hold_text(NOW, "all:"))
            expected = columns(one(tx.find(ids=["a"])), args="", metadata=None, result=None)
            for what, rows in (
                ("expired()", tx.expired(NOW, 9)),
                ("hold_ended()", tx.hold_ended(NOW, 9)),
                ("marked()", tx.marked("all:", 9)),
            ):
                expect_equal(columns(one(rows), args="", metadata=None, result=None), expected, what)

    def a_deadline_is_moved_without_a_move_of_the_task(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("a", deadline_at=NOW), make_row("b", deadline_at=NOW), make_row("c"))
                row = one(claim(tx, "a"))
                other = one(tx.find(ids=["b"]))
                tx.extend([(row.key, 0, NOW + 7), (row.key, 2, NOW + 8), (row.key, 1, NOW + 9), (999, 1, NOW)])
                expect_equal(columns(one(tx.find(ids=["a"]))), columns(row, deadline_at=NOW + 9), "the task")
                expect_equal(columns(one(tx.find(ids=["b"]))), columns(other), "the other task")
                tx.extend([(other.key, 0, NOW + 3), (other.key, 0, NOW + 4)])
                expect_equal(tx.next_due(), NOW + 4, "of two the later one counts, and the clock follows it")
                tx.extend([])
            expect_equal(len(store.reader().history("a")), 2, "the history")

    # --- marks ---

    def a_hold_ends_at_its_instant(self) -> None:
        with self._opened() as store, store.transact() as tx:
            rows = submit(tx, *(make_row(f"t{n}") for n in range(4)))
            for row, until in zip(rows, (NOW + 1, None, NOW + 3, NOW + 2), strict=True):
                _hold(tx, row, hold_text(until))
            expect_equal(tx.hold_ended(NOW, 9), [], "before")
            expect_equal(ids(tx.hold_ended(NOW + 1, 9)), ["t0"], "until is inclusive")
            expect_equal(sorted(ids(tx.hold_ended(NOW + 9, 9))), ["t0", "t2", "t3"], "a hold without an end stays")
            expect_equal(sorted(ids(tx.hold_ended(NOW + 9, 2))), ["t0", "t3"], "two, if two are wanted")
            expect_equal(tx.next_due(), NOW + 1, "next_due()")
            move(tx, "t0", Trigger.USER_CANCEL, held=None)
            expect_equal(tx.next_due(), NOW + 2, "next_due() after one has ended")

    def a_mark_says_which_hold_it_is_of(self) -> None:
        with self._opened() as store, store.transact() as tx:
            marks = ("tag:größe", "all:", None, "tag:größe", "name:größe")
            rows = submit(tx, *(make_row(f"t{n}") for n in range(len(marks))))
            for row, by in zip(rows, marks, strict=True):
                _hold(tx, row, hold_text(None, by))
            expect_equal(sorted(ids(tx.marked("tag:größe", 9))), ["t0", "t3"], "marked()")
            expect_equal(len(tx.marked("tag:größe", 1)), 1, "marked() with a limit")
            expect_equal(ids(tx.marked("all:", 9)), ["t1"], "another mark")
            expect_equal(tx.marked("tag:gr", 9), [], "a mark that nobody has")
            move(tx, "t0", Trigger.USER_CANCEL, held=None)
            expect_equal(ids(tx.marked("tag:größe", 9)), ["t3"], "marked() after one has ended")

    def a_mark_that_is_damaged_is_none_and_harms_nothing(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                rows = submit(tx, *(make_row(f"t{n}") for n in range(len(DAMAGED_HOLDS))))
                for row, text in zip(rows, DAMAGED_HOLDS, strict=True):
                    _hold(tx, row, text)
                expect_equal(tx.claimable(["mail"], 99), [], "they are held all the same")
                expect_equal((tx.hold_ended(NOW, 99), tx.next_due()), ([], None), "none of them ends")
                expect_equal((tx.marked("tag:a", 99), tx.marked("7", 99)), ([], []), "none of them is a mark")
            reader = store.reader()
            expect_equal(reader.held(None), len(rows), "held()")
            expect_equal({row.held for row in reader.select(EVERYTHING, limit=99)}, set(DAMAGED_HOLDS), "the texts")
            with store.transact() as tx:
                for row in rows:
                    move(tx, row.id, Trigger.USER_CANCEL, held=None)
                expect_equal(reader.was_deleted("t0"), False, "and they can be moved")

    def the_clock_waits_for_the_soonest_of_everything(self) -> None:
        with self._opened() as store, store.transact() as tx:
            rows = submit(
                tx,
                make_row("held"),
                make_row("start", start_within=30),
                make_row("deadline", deadline_at=NOW + 20),
                make_row("due", State.SCHEDULED, due_at=NOW + 10),
            )
            _hold(tx, rows[0], hold_text(NOW + 40))
            for id_, instant in (("due", 10), ("deadline", 20), ("start", 30), ("held", 40)):
                expect_equal(tx.next_due(), NOW + instant, f"next_due() while {id_!r} waits")
                move(tx, id_, Trigger.USER_CANCEL, held=None)
            expect_equal(tx.next_due(), None, "next_due() of nothing")

    # --- tags ---

    def tags_of_tasks_are_told(self) -> None:
        with self._opened() as store, store.transact() as tx:
            rows = submit(
                tx,
                make_row("t0", tags='["a","b"]'),
                make_row("t1", tags='["größe"]'),
                make_row("t2"),
                make_row("t3", tags='["a"]'),
                make_row("damaged", tags='["a'),
                make_row("gone", tags='["a"]'),
            )
            keys = [row.key for row in rows]
            move(tx, "gone", Trigger.USER_CANCEL)
            tx.delete(keys[-1:])
            expect_equal(tx.tags_of(keys, ["größe", "absent"]), {keys[1]: "größe"}, "one of the tags")
            found = tx.tags_of([*keys, 999], ["a", "b"])
            expect_equal(set(found), {keys[0], keys[3]}, "two of the tags")
            expect_equal((found[keys[0]] in ("a", "b"), found[keys[3]]), (True, "a"), "a tag that the task has")
            expect_equal(
                (tx.tags_of(keys[3:4], ["b"]), tx.tags_of(keys, []), tx.tags_of([], ["a"])), ({}, {}, {}), "none"
            )
