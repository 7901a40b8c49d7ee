"""Checks of the store itself: all or nothing, opening and closing, what a reader sees."""

import threading
from typing import Any

from taskengine.core.errors import StoreClosed
from taskengine.core.lifecycle import State, Trigger
from taskengine.core.model import CommandKind, CommandRow, HoldScope, LogRow, SideRow
from taskengine.ports import Store, Transaction
from taskengine.testing.contract_tools import (
    EVERYTHING,
    NOW,
    OWNER,
    Checks,
    claim,
    contents,
    expect,
    expect_equal,
    expect_error,
    ids,
    make_hold,
    make_owner,
    make_row,
    move,
    submit,
)


class _Deliberate(BaseException):
    """Raised by checks inside a transaction; nothing that a store could know."""


def _fill(store: Store) -> None:
    """Store some of everything."""
    with store.transact() as tx:
        tx.put_owner(make_owner())
        submit(
            tx,
            make_row("queued", rank=5, tags='["a","b"]', deadline_at=NOW + 50, start_within=40),
            make_row("held", rank=4, start_within=60),
            make_row("later", State.SCHEDULED, due_at=NOW + 9),
            make_row("leased", rank=3, idempotency_key="k"),
            make_row("done", rank=2),
            make_row("old", rank=1),
        )
        move(tx, "old", Trigger.USER_CANCEL)
        claim(tx, "leased", "done")
        move(tx, "done", Trigger.EXECUTOR_LAUNCHED)
        move(tx, "done", Trigger.EXECUTOR_COMPLETED, result="1")
        tx.put_command(_command("c1"))
        leased, done = (tx.find(ids=[id_])[0].key for id_ in ("leased", "done"))
        tx.put_sides([SideRow(leased, 1, NOW, '{"p":1}'), SideRow(done, 1, NOW, None)])
        tx.append_logs([LogRow(key, 1, number, NOW, 20, "line") for key in (leased, done) for number in (1, 2)], keep=9)
        tx.put_hold(make_hold("b"))
        tx.put_hold(make_hold("kept"))


def _command(id_: str) -> CommandRow:
    return CommandRow(
        id=id_, task_id="leased", owner=OWNER, kind=CommandKind.CANCEL, actor="user", reason=None, created_at=NOW
    )


def _change_everything(tx: Transaction) -> None:
    submit(tx, make_row("new", idempotency_key="new"), make_row("new-later", State.SCHEDULED, due_at=NOW + 1))
    claim(tx, "queued")
    move(tx, "queued", Trigger.ENGINE_RELEASE, rank=99, held='{"actor":"user","until":1,"by":"tag:b"}')
    move(tx, "later", Trigger.CLOCK_DUE, rank=7)
    move(tx, "leased", Trigger.EXECUTOR_LAUNCHED, started_at=NOW)
    move(tx, "leased", Trigger.EXECUTOR_COMPLETED, result='"x"')
    tx.set_defaults(tx.find(ids=["held"])[0].key, 9, "lost", NOW + 70)
    leased = tx.find(ids=["leased"])[0]
    tx.extend([(leased.key, leased.attempt, NOW + 80)])
    tx.put_sides([SideRow(leased.key, 1, NOW + 1, '{"p":2}'), SideRow(tx.find(ids=["new"])[0].key, 1, NOW, None)])
    tx.append_logs([LogRow(leased.key, attempt, 3, NOW, 20, "new") for attempt in (1, 2)], keep=2)
    tx.put_hold(make_hold("b", is_released=True))
    tx.put_hold(make_hold("new"))
    tx.drop_hold(HoldScope.TAG, "kept")
    done, old = (tx.find(ids=[id_])[0] for id_ in ("done", "old"))
    tx.delete([old.key])
    tx.delete([done.key])
    tx.tally({("mail", State.SUCCEEDED): -1, ("mail", State.CANCELLED): -1}, {})
    tx.beat(OWNER)
    tx.put_owner(make_owner("owner-2"))
    tx.put_command(_command("c2"))
    tx.drop_commands(["c1"])
    tx.drop_owner(OWNER)


class TransactionChecks(Checks):
    """See the module."""

    def a_new_store_is_empty(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                head = tx.head(None)
                expect_equal(tx.pending(), 0, "nothing is pending")
                expect_equal(tx.next_due(), None, "nothing is due")
            reader = store.reader()
            expect_equal(reader.last_position(), 0, "last_position() of an empty history")
            expect_equal(reader.tallies(), ({}, {}), "nothing is counted")
            expect_equal((head.other_owners, head.has_commands), (0, False), "nobody is there")
            expect(head.owner_known, "owner_known is true where no owner is asked for")

    def what_was_committed_is_there_after_closing_and_opening_again(self) -> None:
        with self._opened() as store:
            _fill(store)
            before = contents(store.reader())
            store.close()
            store.open()
            expect_equal(contents(store.reader()), before, "the store holds what was committed")

    def an_exception_in_the_block_undoes_everything(self) -> None:
        self._check_rollback(ValueError("deliberate"))

    def an_exception_that_is_no_error_undoes_everything_too(self) -> None:
        self._check_rollback(_Deliberate())

    def _check_rollback(self, error: BaseException) -> None:
        with self._opened() as store:
            _fill(store)
            before, facts = contents(store.reader()), self._facts_for_writers(store)
            with expect_error(type(error), "the block's exception leaves as it was raised"):
                with store.transact() as tx:
                    _change_everything(tx)
                    raise error
            expect_equal(contents(store.reader()), before, "a rolled back transaction leaves no trace")
            expect_equal(self._facts_for_writers(store), facts, "a rolled back transaction leaves no trace")
            with store.transact() as tx:
                _change_everything(tx)
            expect(contents(store.reader()) != before, "the same transaction can be made afterwards")

    def _facts_for_writers(self, store: Store) -> dict[str, Any]:
        """Read what only a transaction can tell."""
        with store.transact() as tx:
            head = tx.head(OWNER)
            return {
                "head": head,
                "pending": tx.pending(),
                "due": ids(tx.due(NOW + 100, 10)),
                "next due": tx.next_due(),
                "expired": ids(tx.expired(NOW + 100, 10)),
                "hold ended": ids(tx.hold_ended(NOW + 100, 10)),
                "marked": ids(tx.marked("tag:b", 10)),
                "holds": tx.holds(),
                "claimable": ids(tx.claimable(["mail"], 10)),
                "owned": sorted(ids(tx.owned(OWNER, 10))),
                "keys": ids(tx.find(idempotency_keys=["k", "new"])),
                "deleted": tx.deleted(["done", "old"]),
                "owner": tx.get_owner(OWNER),
                "commands": tx.commands(OWNER),
            }

    def a_transaction_sees_its_own_writes(self) -> None:
        with self._opened() as store:
            _fill(store)
            with store.transact() as tx:
                _change_everything(tx)
                expect_equal(tx.find(ids=["done"]), [], "a deleted task is not found")
                expect_equal(tx.deleted(["done", "new"]), {"done"}, "deleted()")
                expect_equal(ids(tx.find(idempotency_keys=["new"])), ["new"], "find() by key")
                expect_equal(ids(tx.claimable(["mail"], 10)), ["new", "held", "later"], "claimable()")
                expect_equal(tx.next_due(), 1, "next_due()")
                expect_equal(ids(tx.hold_ended(NOW, 10)), ["queued"], "hold_ended()")
                expect_equal(ids(tx.marked("tag:b", 10)), ["queued"], "marked()")
                expect_equal([hold.target for hold in tx.holds()], ["b", "new"], "holds()")
                expect_equal(tx.pending(), 5, "pending()")
                expect_equal(tx.get_owner(OWNER), None, "get_owner()")

    def a_reader_sees_only_what_is_committed(self) -> None:
        with self._opened() as store:
            _fill(store)
            before = contents(store.reader())
            seen: list[Any] = []

            def look() -> None:
                try:
                    reader = store.reader()
                    seen.append((contents(reader), reader.get("new"), reader.was_deleted("done")))
                except Exception as error:  # it is reported by the comparison below
                    seen.append(error)

            # A store may make the reader wait for the end of the transaction, as long as it then tells the truth.
            reading = threading.Thread(target=look)
            with expect_error(_Deliberate, "the block's exception leaves as it was raised"):
                with store.transact() as tx:
                    _change_everything(tx)
                    reading.start()
                    raise _Deliberate
            reading.join()
            expect_equal(seen, [(before, None, False)], "a reader in another thread sees no open transaction")

    def reading_changes_nothing(self) -> None:
        with self._opened() as store:
            _fill(store)
            first, second = (contents(store.reader()) for _ in range(2))
            expect_equal(second, first, "two looks see the same")

    def closing_is_idempotent_and_later_use_is_refused(self) -> None:
        with self._opened() as store:
            _fill(store)
            store.close()
            store.close()
            with expect_error(StoreClosed, "transact() of a closed store"), store.transact():
                pass
            with expect_error(StoreClosed, "reading from a closed store"):
                store.reader().select(EVERYTHING, limit=1)

    def transactions_of_one_store_can_be_made_in_one_thread_and_reads_in_another(self) -> None:
        with self._opened() as store:
            seen: list[Any] = []

            def write() -> None:
                try:
                    _fill(store)
                except Exception as error:
                    seen.append(error)

            writing = threading.Thread(target=write)
            writing.start()
            writing.join()
            expect_equal(seen, [], "writing in a thread other than the opening one")
            expect_equal(len(store.reader().select(EVERYTHING, limit=10)), 6, "reading what another thread wrote")
