"""Checks of what is kept beside the tasks: holds of many, and what bodies say of themselves."""

from attrs import evolve

from taskengine.core.lifecycle import Trigger
from taskengine.core.model import HoldScope, LogRow, SideRow
from taskengine.testing.contract_tools import (
    NOW,
    Checks,
    claim,
    columns,
    expect_equal,
    make_hold,
    make_row,
    move,
    one,
    submit,
)


def _line(key: int, number: int, attempt: int = 1, message: str = "line") -> LogRow:
    return LogRow(key, attempt, number, NOW + number, 20, message)


class SideChecks(Checks):
    """See the module."""

    # --- holds of many ---

    def holds_come_back_as_they_were_oldest_first(self) -> None:
        holds = [
            make_hold("", HoldScope.ALL, actor="jürgen", reason="why 長", until=NOW + 9, created_at=NOW),
            make_hold("größe", HoldScope.NAME, created_at=NOW + 1),
            make_hold("größe", created_at=NOW + 2, is_released=True),
            make_hold("%", created_at=NOW + 3, reason=""),
        ]
        with self._opened() as store:
            with store.transact() as tx:
                for hold in reversed(holds):
                    tx.put_hold(hold)
                expect_equal(tx.holds(), holds, "holds() in the transaction")
            expect_equal(store.reader().holds(), holds, "holds() after it")

    def a_hold_stands_in_place_of_one_of_the_same(self) -> None:
        first, other = make_hold("a"), make_hold("a", HoldScope.NAME, created_at=NOW + 1)
        with self._opened() as store:
            with store.transact() as tx:
                tx.put_hold(first)
                tx.put_hold(other)
            second = evolve(first, actor="another", until=NOW + 5, created_at=NOW + 7, is_released=True)
            with store.transact() as tx:
                tx.put_hold(second)
                expect_equal(tx.holds(), [other, second], "holds()")
                tx.drop_hold(HoldScope.TAG, "a")
                tx.drop_hold(HoldScope.TAG, "never there")
            expect_equal(store.reader().holds(), [other], "holds() after one was dropped")

    def every_change_of_a_hold_is_noticed(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                before = tx.head(None)
                tx.put_hold(make_hold("a"))
                tx.put_hold(make_hold("a", is_released=True))
                tx.save_head(before)
                expect_equal(
                    tx.head(None).holds_version, before.holds_version + 2, "after two holds, and the head's save"
                )
            with store.transact() as tx:
                tx.drop_hold(HoldScope.TAG, "a")
                expect_equal(tx.head("nobody").holds_version, before.holds_version + 3, "after one was dropped")

    # --- side data ---

    def the_newest_side_data_is_kept(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                first, second, third = (row.key for row in submit(tx, *(make_row(f"t{n}") for n in range(3))))
                tx.put_sides([SideRow(first, 1, NOW, '{"größe":1}'), SideRow(second, 2, NOW, None)])
            reader = store.reader()
            expected = {first: SideRow(first, 1, NOW, '{"größe":1}'), second: SideRow(second, 2, NOW, None)}
            expect_equal(reader.sides([first, second, third, 999]), expected, "sides()")
            expect_equal((reader.sides([third]), reader.sides(range(0))), ({}, {}), "sides() of none")
            for what, rows, kept in (
                ("seen again", [SideRow(first, 1, NOW + 5, None)], SideRow(first, 1, NOW + 5, '{"größe":1}')),
                ("an older attempt", [SideRow(first, 0, NOW + 6, "0")], SideRow(first, 1, NOW + 5, '{"größe":1}')),
                ("two at once", [SideRow(first, 1, n, str(n)) for n in (7, 8)], SideRow(first, 1, 8, "8")),
                ("a new attempt says nothing yet", [SideRow(first, 2, NOW, None)], SideRow(first, 2, NOW, None)),
            ):
                with store.transact() as tx:
                    tx.put_sides(rows)
                expect_equal(reader.sides([first]), {first: kept}, what)

    def what_a_body_says_changes_nothing_of_its_task(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, make_row("a"))
                row = one(claim(tx, "a"))
                tx.put_sides([SideRow(row.key, 1, NOW, "1")])
                tx.append_logs([_line(row.key, 1)], keep=9)
                expect_equal(columns(one(tx.find(ids=["a"]))), columns(row), "the task")
            expect_equal(len(store.reader().history("a")), 2, "its history")

    def what_a_body_says_goes_with_its_task(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                rows = submit(tx, make_row("gone"), make_row("kept"))
                tx.put_sides([SideRow(row.key, 1, NOW, "1") for row in rows])
                tx.append_logs([_line(row.key, 1) for row in rows], keep=9)
                move(tx, "gone", Trigger.USER_CANCEL)
            gone, kept = (row.key for row in rows)
            with store.transact() as tx:
                tx.delete([gone])
                tx.put_sides([SideRow(gone, 1, NOW, "2"), SideRow(kept, 1, NOW, "2")])
                tx.append_logs([_line(key, 2) for key in (gone, kept)], keep=9)
            reader = store.reader()
            expect_equal(reader.sides([gone, kept]), {kept: SideRow(kept, 1, NOW, "2")}, "side data")
            expect_equal((reader.logs("gone", limit=9), len(reader.logs("kept", limit=9))), ([], 2), "captured lines")

    # --- captured lines ---

    def captured_lines_come_back_as_they_were_oldest_first(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                key, other = (row.key for row in submit(tx, make_row("a"), make_row("b")))
                lines = [
                    LogRow(key, 1, 1, NOW + 9, 10, "größe 長 \U0001f600"),
                    LogRow(key, 1, 2, NOW, 50, ""),
                    LogRow(key, 2, 1, NOW, 20, '["\\u0000" \x01]'),
                ]
                tx.append_logs([lines[2], lines[1], LogRow(other, 1, 1, NOW, 20, "other"), lines[0]], keep=9)
                tx.append_logs([], keep=9)
            reader = store.reader()
            expect_equal(reader.logs("a", limit=9), lines, "all attempts")
            expect_equal(reader.logs("a", attempt=1, limit=9), lines[:2], "one attempt")
            expect_equal(reader.logs("a", limit=2), lines[1:], "the last two")
            expect_equal(reader.logs("a", attempt=1, limit=1), lines[1:2], "the last of one attempt")
            expect_equal((reader.logs("a", attempt=7, limit=9), reader.logs("absent", limit=9)), ([], []), "none")

    def only_the_last_lines_of_an_attempt_are_kept(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                key, other = (row.key for row in submit(tx, make_row("a"), make_row("b")))
                tx.append_logs([_line(key, n) for n in range(1, 6)] + [_line(other, 1)], keep=5)
                tx.append_logs([_line(key, n, attempt=2) for n in range(1, 4)], keep=5)
            kept = [self._numbers(store.reader().logs("a", attempt=attempt, limit=99)) for attempt in (1, 2)]
            expect_equal(kept, [[1, 2, 3, 4, 5], [1, 2, 3]], "up to the limit")
            with store.transact() as tx:
                tx.append_logs([_line(key, n) for n in (6, 7)] + [_line(other, n) for n in range(2, 20)], keep=5)
            reader = store.reader()
            kept = [self._numbers(reader.logs("a", attempt=attempt, limit=99)) for attempt in (1, 2)]
            expect_equal(kept, [[3, 4, 5, 6, 7], [1, 2, 3]], "beyond the limit")
            expect_equal(self._numbers(reader.logs("b", limit=99)), [15, 16, 17, 18, 19], "of another task")
            with store.transact() as tx:
                tx.append_logs([_line(key, 90)], keep=3)
            kept_lines = self._numbers(store.reader().logs("a", attempt=1, limit=99))
            expect_equal(kept_lines, [6, 7, 90], "numbers with gaps, and a lower limit")

    def a_line_that_is_there_is_left_as_it_is(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                (row,) = submit(tx, make_row("a"))
                tx.append_logs([_line(row.key, 1, message="first")], keep=9)
            with store.transact() as tx:  # as after a commit that was reported as failed
                tx.append_logs([_line(row.key, 1, message="second"), _line(row.key, 2)], keep=9)
            found = [(line.number, line.message) for line in store.reader().logs("a", limit=9)]
            expect_equal(found, [(1, "first"), (2, "line")], "logs()")

    def _numbers(self, lines: list[LogRow]) -> list[int]:
        return [line.number for line in lines]
