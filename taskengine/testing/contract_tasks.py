"""Checks of what a transaction does with tasks: storing, finding, guarded writes, the queue, what is due."""

from typing import Any

from taskengine.core.errors import StoreError
from taskengine.core.lifecycle import LEASED, TIMED, State, Trigger
from taskengine.core.model import TaskRow
from taskengine.testing.contract_tools import (
    EVERYTHING,
    NOW,
    OWNER,
    Checks,
    append,
    claim,
    columns,
    expect,
    expect_equal,
    expect_error,
    ids,
    make_row,
    make_write,
    move,
    one,
    submit,
)

TEXTS = (
    "plain",
    "",
    "größer, 長い, \U0001f600, e\u0301",
    "quotes ' \" \\ and % _ ; --",
    "controls \t\n\r\x01\x1f\x7f",
    '["looks", {"like": "JSON"}]',
    "12",
    "null",
)
"""What columns of text must bring back unchanged. NUL and lone surrogates are refused before they reach a store."""


class TaskChecks(Checks):
    """See the module."""

    # --- storing and finding ---

    def every_column_of_a_new_task_comes_back(self) -> None:
        row = make_row(
            "id-1",
            name="name",
            args='[["x"],{}]',
            max_attempts=4,
            recover="lost",
            priority=-3,
            rank=-(2**55),
            due_at=NOW + 1,
            created_at=NOW - 1,
            idempotency_key="key",
            send_key="send",
            requeued_from="id-0",
            retry='{"base":1}',
            tags='["t"]',
            metadata='{"m":1}',
            label="label",
            timeouts='{"total":1}',
            deadline_at=NOW + 2,
            start_within=2**50,
            callbacks='{"success":"n"}',
        )
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, row)
                expect_equal(columns(one(tx.find(ids=["id-1"]))), columns(row), "find() in the transaction")
            expect_equal(columns(store.reader().get("id-1")), columns(row), "get() after it")

    def texts_come_back_as_they_were(self) -> None:
        rows = [make_row(f"id{n}{text}", name=text or "none", label=text, args=text) for n, text in enumerate(TEXTS)]
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *rows)
            for row in rows:
                expect_equal(columns(store.reader().get(row.id)), columns(row), f"text {row.label!r}")
                found = store.reader().history(row.id)
                expect_equal(len(found), 1, f"history of {row.id!r}")

    def json_with_an_escaped_nul_comes_back_as_it_was(self) -> None:
        args = '[["\\u0000","x\\u0000y"],{"k\\u0000":"\\\\u0000"}]'
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("nul", args=args))
                claim(tx, "nul")
                move(tx, "nul", Trigger.EXECUTOR_LAUNCHED)
                move(tx, "nul", Trigger.EXECUTOR_COMPLETED, result=args)
            row = store.reader().get("nul")
            expect(row is not None and row.args == row.result == args, "escaped NUL in arguments and result")

    def values_of_a_mebibyte_come_back_as_they_were(self) -> None:
        args = '[["' + "é" * 2**19 + '"],{}]'
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("large", args=args))
            row = store.reader().get("large")
            expect(row is not None and row.args == args, "large arguments")

    def a_thousand_tasks_are_stored_at_once(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *(make_row(f"id-{n}", rank=n) for n in range(1000)))
            found = store.reader().select(EVERYTHING, limit=2000)
            expect_equal(ids(found), [f"id-{n}" for n in reversed(range(1000))], "all of them")

    def an_id_is_taken_once(self) -> None:
        self._check_refused(make_row("first"), "a second task with the same id")

    def an_idempotency_key_is_taken_once(self) -> None:
        self._check_refused(make_row("second", idempotency_key="key"), "a second task with the same idempotency key")

    def _check_refused(self, row: TaskRow, what: str) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("first", idempotency_key="key"))
            with expect_error(StoreError, what), store.transact() as tx:
                submit(tx, make_row("neighbour"), row)
            expect_equal(ids(store.reader().select(EVERYTHING, limit=9)), ["first"], "nothing of the refused insert")
            with store.transact() as tx:
                submit(tx, make_row("third"))

    def tasks_without_an_idempotency_key_do_not_collide(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("a"), make_row("b"))
            expect_equal(len(tx.find(ids=["a", "b"])), 2, "both are stored")

    def tasks_are_found_by_id_or_key_each_once(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("a", idempotency_key="ka"), make_row("b", idempotency_key="kb"), make_row("c"))
            found = tx.find(ids=["a", "c", "absent"], idempotency_keys=["ka", "kb", "c"])
            expect_equal(sorted(ids(found)), ["a", "b", "c"], "find()")
            expect_equal(tx.find(), [], "find() of nothing")

    def rows_are_copies(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                row = make_row("a", rank=1)
                submit(tx, row)
                expected = columns(row)
                row.label, row.rank = "changed", 99
                for found in (one(tx.find(ids=["a"])), one(tx.claimable(["mail"], 9))):
                    expect_equal(columns(found), expected, "changing the inserted object changes no task")
                    found.label, found.rank = "changed", 99
            row_read = store.reader().get("a")
            expect_equal(columns(row_read), expected, "changing a row that was read changes no task")

    # --- guarded writes ---

    def a_write_changes_every_column_it_names_and_no_other(self) -> None:
        values: dict[str, Any] = {
            "charged": 0,
            "crashes": 2,
            "rank": 77,
            "due_at": NOW + 5,
            "started_at": NOW + 6,
            "finished_at": NOW + 7,
            "owner": None,
            "wish": '{"w":1}',
            "held": '{"h":1}',
            "result": '"r"',
            "failure": '{"f":1}',
        }
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("a", label="kept"))
                before = one(claim(tx, "a"))
                expected = columns(before, state=State.QUEUED, version=3, **values)
                after = move(tx, "a", Trigger.ENGINE_RELEASE, **values)
                expect_equal(columns(after), expected, "the row after the write")
            expect_equal(columns(store.reader().get("a")), expected, "the row after the commit")

    def a_write_that_lost_its_guard_changes_nothing(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("a"))
                row = one(claim(tx, "a"))
            good = make_write(row, Trigger.EXECUTOR_LAUNCHED)
            with store.transact() as tx:
                for what, stale in (
                    ("an older attempt", good._replace(expected_attempt=row.attempt - 1)),
                    ("a newer attempt", good._replace(expected_attempt=row.attempt + 1)),
                    ("an older version", good._replace(expected_version=row.version - 1, version=row.version)),
                    ("a newer version", good._replace(expected_version=row.version + 1, version=row.version + 2)),
                    ("no task at all", good._replace(key=row.key + 1000)),
                ):
                    expect_equal(tx.update([stale]), set(), f"a write that expects {what}")
                    expect_equal(columns(one(tx.find(ids=["a"]))), columns(row), f"after one that expects {what}")
                expect_equal(tx.update([]), set(), "no write at all")

    def in_one_set_those_with_a_good_guard_win(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                names = [f"t{n}" for n in range(20)]
                submit(tx, *(make_row(name) for name in names))
                rows = sorted(claim(tx, *names), key=lambda row: row.key)
                moved = [row for row in rows if row.key % 3 == 0]
                for row in moved:
                    move(tx, row.id, Trigger.EXECUTOR_LAUNCHED)
            with store.transact() as tx:
                writes = [make_write(row, Trigger.USER_CANCEL, wish='{"w":1}') for row in rows]
                won = tx.update(writes)
                expect_equal(won, {row.key for row in rows} - {row.key for row in moved}, "the winners")
                for row in tx.find(ids=names):
                    state = State.STOPPING if row.key in won else State.RUNNING
                    expect_equal(row.state, state, f"{row.id} after the set")

    def a_second_write_with_the_first_one_s_guard_loses(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("a"))
                row = one(claim(tx, "a"))
            first, second = (make_write(row, Trigger.USER_CANCEL, wish=text) for text in ('{"w":1}', '{"w":2}'))
            with store.transact() as tx:
                expect_equal(tx.update([first]), {row.key}, "the first write")
                expect_equal(tx.update([second]), set(), "the second write, in one transaction with the first")
                expect_equal(tx.update([first]), set(), "the first write, once more")
                expect_equal(one(tx.find(ids=["a"])).wish, '{"w":1}', "the wish")

    # --- the queue ---

    def the_queue_is_ordered_by_rank_and_then_by_key(self) -> None:
        ranks = [5, -7, 5, 0, 2**52, 5, -7]
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}", rank=rank) for n, rank in enumerate(ranks)))
            expected = ["t1", "t6", "t3", "t0", "t2", "t5", "t4"]
            expect_equal(ids(tx.claimable(["mail"], 99)), expected, "all of one name")
            expect_equal(ids(tx.claimable(["mail"], 3)), expected[:3], "the first three")
            expect_equal(ids(tx.claimable(["mail", "other"], 3)), expected[:3], "the first three, with two names")
            expect_equal(tx.claimable(["mail"], 0), [], "none, if none is wanted")

    def the_queue_of_several_names_is_merged_by_rank(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}", name=f"name{n % 4}", rank=100 - n) for n in range(20)))
            found = tx.claimable(["name1", "name3", "unknown"], 6)
            expect_equal(ids(found), ["t19", "t17", "t15", "t13", "t11", "t9"], "two of four names")
            expect_equal(tx.claimable([], 6), [], "no name")
            expect_equal(tx.claimable(["unknown"], 6), [], "an unknown name")

    def only_queued_tasks_that_nobody_holds_can_be_claimed(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("held"), make_row("free"), make_row("later", State.SCHEDULED), make_row("claimed"))
            claim(tx, "claimed", "held")
            move(tx, "held", Trigger.ENGINE_RELEASE, held='{"actor":"user","reason":null,"until":null}')
            expect_equal(ids(tx.claimable(["mail"], 9)), ["free"], "claimable()")

    def a_task_that_was_given_back_keeps_its_place(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}", rank=n) for n in range(3)))
            claim(tx, "t0")
            expect_equal(ids(tx.claimable(["mail"], 9)), ["t1", "t2"], "while it is claimed")
            move(tx, "t0", Trigger.ENGINE_RELEASE)
            expect_equal(ids(tx.claimable(["mail"], 9)), ["t0", "t1", "t2"], "after it was given back")
            claim(tx, "t1")
            move(tx, "t1", Trigger.ENGINE_RELEASE, rank=9)
            expect_equal(ids(tx.claimable(["mail"], 9)), ["t0", "t2", "t1"], "after one got a new rank")

    def a_claim_raises_the_fence_and_names_the_owner(self) -> None:
        with self._opened() as store, store.transact() as tx:
            before = one(submit(tx, make_row("a", max_attempts=2, recover="retry"), make_row("b"))[:1])
            tx.claim([before.key], OWNER)
            expected = columns(before, state=State.STARTING, version=2, attempt=1, charged=1, owner=OWNER)
            expect_equal(columns(one(tx.find(ids=["a"]))), expected, "the claimed task")
            expect_equal(one(tx.find(ids=["b"])).state, State.QUEUED, "the other task")

    def defaults_are_filled_in(self) -> None:
        with self._opened() as store, store.transact() as tx:
            (row, _) = submit(tx, make_row("a", rank=1), make_row("b", rank=2))
            tx.set_defaults(row.key, 7, "lost", NOW + 1)
            filled = columns(row, max_attempts=7, recover="lost", deadline_at=NOW + 1)
            expect_equal(columns(one(tx.find(ids=["a"]))), filled, "the task")
            expect_equal(tx.next_due(), NOW + 1, "the deadline is watched")
            tx.set_defaults(row.key, 7, "lost", None)
            expect_equal(columns(one(tx.find(ids=["a"]))), filled, "the task, where there is no deadline to fill in")
            expect_equal(one(tx.find(ids=["b"])).max_attempts, None, "the other task")
            expect_equal(ids(tx.claimable(["mail"], 9)), ["a", "b"], "the queue")

    # --- the clock ---

    def what_is_due_comes_soonest_first(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}", State.SCHEDULED, due_at=NOW + n % 3) for n in range(6)))
            submit(tx, make_row("queued", due_at=NOW - 5))
            expect_equal(tx.next_due(), NOW, "next_due()")
            expect_equal(tx.due(NOW - 1, 9), [], "before the first is due")
            expect_equal(ids(tx.due(NOW + 1, 9)), ["t0", "t3", "t1", "t4"], "due_at is inclusive")
            expect_equal(ids(tx.due(NOW + 9, 3)), ["t0", "t3", "t1"], "the first three")

    def waiting_for_the_clock_ends_with_the_state(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("scheduled", State.SCHEDULED, due_at=NOW + 1), make_row("retried"))
            claim(tx, "retried")
            move(tx, "retried", Trigger.ATTEMPT_RETRY, due_at=NOW + 2, failure='{"f":1}')
            found = tx.due(NOW + 9, 9)
            expect_equal(ids(found), ["scheduled", "retried"], "both kinds of waiting")
            expect(all(row.state in TIMED for row in found), "only tasks in a TIMED state are due")
            move(tx, "scheduled", Trigger.CLOCK_DUE)
            expect_equal((ids(tx.due(NOW + 9, 9)), tx.next_due()), (["retried"], NOW + 2), "after one is queued")
            move(tx, "retried", Trigger.USER_CANCEL)
            expect_equal((tx.due(NOW + 9, 9), tx.next_due()), ([], None), "after the other is cancelled")

    # --- owners' tasks, and the end ---

    def an_owner_s_tasks_are_those_it_holds(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, *(make_row(f"t{n}") for n in range(5)))
            claim(tx, "t0", "t1", "t2")
            claim(tx, "t3", owner="somebody else")
            move(tx, "t1", Trigger.EXECUTOR_LAUNCHED)
            move(tx, "t2", Trigger.ENGINE_RELEASE)
            found = tx.owned(OWNER, 9)
            expect_equal(sorted(ids(found)), ["t0", "t1"], "owned()")
            expect(all(row.state in LEASED for row in found), "only tasks in a LEASED state are owned")
            expect_equal(len(tx.owned(OWNER, 1)), 1, "owned() with a limit")
            expect_equal(tx.owned("nobody", 9), [], "owned() of an unknown owner")

    def what_was_requeued_is_told_apart(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("old"), make_row("other"), make_row("new", requeued_from="old"))
                expect_equal(tx.requeued(["old", "other", "absent"]), {"old"}, "requeued()")
                expect_equal(tx.requeued([]), set(), "requeued() of nothing")

    def a_deleted_task_leaves_a_tombstone_and_nothing_else(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("gone", idempotency_key="key", tags='["t"]'), make_row("kept", tags='["t"]'))
                row = move(tx, "gone", Trigger.USER_CANCEL)
            with store.transact() as tx:
                tx.delete([row.key])
                expect_equal(tx.deleted(["gone", "kept", "never"]), {"gone"}, "deleted()")
                expect_equal(tx.find(ids=["gone"], idempotency_keys=["key"]), [], "find()")
                submit(tx, make_row("next", idempotency_key="key"))
            reader = store.reader()
            expect_equal((reader.get("gone"), reader.history("gone")), (None, []), "get() and history()")
            expect_equal((reader.was_deleted("gone"), reader.was_deleted("kept")), (True, False), "was_deleted()")
            expect_equal({event[1] for event in reader.events(0, 99)}, {"kept", "next"}, "events()")
            expect_equal(reader.last_position(), 4, "positions are never given twice")

    def a_key_is_never_given_twice(self) -> None:
        with self._opened() as store, store.transact() as tx:
            (row,) = submit(tx, make_row("a"))
            move(tx, "a", Trigger.USER_CANCEL)
            tx.delete([row.key])
            (next_row,) = submit(tx, make_row("b"))
            expect(next_row.key > row.key, "next_key only grows")
            append(tx, "b")
