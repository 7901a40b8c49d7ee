"""Checks of what a transaction keeps besides tasks: counters, history, owners, commands."""

from attrs import evolve

from taskengine.core.lifecycle import STORED, WAITING, State, Trigger
from taskengine.core.model import CommandKind, CommandRow, HistoryRow
from taskengine.testing.contract_tools import (
    NOW,
    OWNER,
    Checks,
    claim,
    expect,
    expect_equal,
    ids,
    make_owner,
    make_row,
    move,
    submit,
)


def _command(id_: str, created_at: int, owner: str = OWNER) -> CommandRow:
    return CommandRow(
        id=id_,
        task_id="task-1",
        owner=owner,
        kind=CommandKind.STOP if id_ == "stop" else CommandKind.CANCEL,
        actor="jürgen",
        reason=None if id_ == "stop" else "why 長",
        created_at=created_at,
    )


class RecordChecks(Checks):
    """See the module."""

    # --- counters ---

    def the_head_is_kept(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                head = tx.head(None)
                head.next_key, head.next_position, head.last_rank = 2**40, 2**41, 2**55
                tx.save_head(head)
                expect_equal(tx.head(None), head, "in the transaction")
            with store.transact() as tx:
                expect_equal(tx.head(None), head, "after the commit")
            expect_equal(store.reader().last_position(), 2**41 - 1, "last_position() follows the head")

    def the_head_tells_who_is_there(self) -> None:
        with self._opened() as store, store.transact() as tx:
            tx.put_owner(make_owner("a"))
            tx.put_owner(make_owner("b"))
            tx.put_command(_command("c1", NOW, owner="b"))
            told = {}
            for owner in ("a", "b", "absent", None):
                head = tx.head(owner)
                told[owner] = (head.owner_known, head.other_owners, head.has_commands)
            expected = {
                "a": (True, 1, False),
                "b": (True, 1, True),
                "absent": (False, 2, False),
                None: (True, 2, False),
            }
            expect_equal(told, expected, "(owner_known, other_owners, has_commands)")

    def tallies_add_up(self) -> None:
        with self._opened() as store:
            for states, triggers in (
                ({("mail", State.QUEUED): 5, ("größe", State.LOST): 1}, {Trigger.USER_SUBMIT: 6}),
                ({("mail", State.QUEUED): -2, ("mail", State.RUNNING): 2}, {Trigger.CLAIMER_CLAIM: 2}),
                ({("mail", State.RUNNING): -2}, {}),
                ({}, {Trigger.USER_SUBMIT: 1}),
                ({}, {}),
            ):
                with store.transact() as tx:
                    tx.tally(states, triggers)
            kept_states, kept_triggers = store.reader().tallies()
            expected = {("mail", State.QUEUED): 3, ("größe", State.LOST): 1}
            expect_equal({key: n for key, n in kept_states.items() if n}, expected, "by name and state")
            expect_equal(kept_triggers, {Trigger.USER_SUBMIT: 7, Trigger.CLAIMER_CLAIM: 2}, "by trigger")

    def pending_counts_every_waiting_state_of_every_name(self) -> None:
        with self._opened() as store, store.transact() as tx:
            tx.tally({(f"name{n}", state): 10**n for n, state in enumerate(sorted(STORED))}, {})
            expected = sum(10**n for n, state in enumerate(sorted(STORED)) if state in WAITING)
            expect_equal(tx.pending(), expected, "pending()")

    # --- history ---

    def history_rows_come_back_as_they_were(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                (row,) = submit(tx, make_row("a"))
                head = tx.head(None)
                rows = [
                    HistoryRow(
                        row.key,
                        version,
                        State.QUEUED,
                        state,
                        NOW - version,
                        trigger,
                        'größe "長"',
                        "" if version % 2 else None,
                        version,
                        '{"f":"\\u0000"}' if version % 3 else None,
                    )
                    for version, (state, trigger) in enumerate(
                        ((state, trigger) for state in State for trigger in Trigger), start=2
                    )
                ]
                tx.append(rows, head.next_position)
                head.next_position += len(rows)
                tx.save_head(head)
            found = store.reader().history("a")
            expect_equal([at for at, _ in found], list(range(1, len(rows) + 2)), "positions")
            expect_equal([row for _, row in found][1:], rows, "rows")

    def positions_are_consecutive_over_all_tasks(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *(make_row(f"t{n}") for n in range(3)))
            with store.transact() as tx:
                claim(tx, "t1")
                move(tx, "t1", Trigger.EXECUTOR_LAUNCHED)
                move(tx, "t0", Trigger.USER_CANCEL)
            reader = store.reader()
            expect_equal([event[0] for event in reader.events(0, 99)], [1, 2, 3, 4, 5, 6], "events()")
            expect_equal([at for at, _ in reader.history("t1")], [2, 4, 5], "history()")
            expect_equal([row.version for _, row in reader.history("t1")], [1, 2, 3], "versions")
            expect_equal(reader.last_position(), 6, "last_position()")
            expect_equal(reader.history("absent"), [], "history() of nothing")

    def events_are_read_by_cursor(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *(make_row(f"t{n}", name=f"name{n}") for n in range(10)))
            reader = store.reader()
            expect_equal(
                [event[:3] for event in reader.events(4, 3)],
                [(5, "t4", "name4"), (6, "t5", "name5"), (7, "t6", "name6")],
                "three behind the fourth",
            )
            expect_equal([event[0] for event in reader.events(8, 3)], [9, 10], "the last")
            expect_equal(reader.events(10, 3), [], "behind the last")
            expect_equal(reader.events(99, 3), [], "far behind the last")

    # --- owners ---

    def owners_come_and_go(self) -> None:
        first = make_owner("a", names=("mail", "größe"), pid=2**22, process_started="12345678901")
        second = make_owner("b", boot_id="", pid_namespace="")
        with self._opened() as store:
            with store.transact() as tx:
                tx.put_owner(first)
                tx.put_owner(second)
                expect_equal((tx.get_owner("a"), tx.get_owner("c")), (first, None), "get_owner()")
            expect_equal(sorted(store.reader().owners(), key=lambda row: row.id), [first, second], "owners()")
            with store.transact() as tx:
                tx.drop_owner("a")
                tx.drop_owner("never there")
            expect_equal(store.reader().owners(), [second], "owners() after one was dropped")

    def a_beat_rises_by_one_and_tells_whether_the_owner_is_there(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                tx.put_owner(make_owner("a"))
                tx.put_owner(make_owner("b"))
            for _ in range(3):
                with store.transact() as tx:
                    expect_equal((tx.beat("a"), tx.beat("absent")), (True, False), "beat()")
            beats = {owner.id: owner.beat for owner in store.reader().owners()}
            expect_equal(beats, {"a": 3, "b": 0}, "the beats")
            with store.transact() as tx:
                tx.drop_owner("a")
                expect_equal(tx.beat("a"), False, "beat() of an owner that was dropped")

    def tasks_whose_owner_is_gone_are_noticed(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                tx.put_owner(make_owner("a"))
                submit(tx, *(make_row(f"t{n}") for n in range(4)))
                claim(tx, "t0", owner="a")
                claim(tx, "t1", "t2", owner="b")
            expect_equal(store.reader().ownerless(), ["b"], "ownerless()")
            with store.transact() as tx:
                tx.drop_owner("a")
                move(tx, "t1", Trigger.OWNER_REQUEUE)
            expect_equal(sorted(store.reader().ownerless()), ["a", "b"], "after another was dropped")
            with store.transact() as tx:
                move(tx, "t2", Trigger.OWNER_REQUEUE)
            expect_equal(store.reader().ownerless(), ["a"], "after one holds nothing any more")

    # --- commands ---

    def commands_wait_for_their_owner_oldest_first(self) -> None:
        newer, older, other = _command("c1", NOW + 1), _command("stop", NOW), _command("c3", NOW, "other")
        with self._opened() as store:
            with store.transact() as tx:
                for command in (newer, older, other):
                    tx.put_command(command)
            with store.transact() as tx:
                expect_equal(tx.commands(OWNER), [older, newer], "commands()")
                tx.drop_commands(["stop", "absent"])
                expect_equal(tx.commands(OWNER), [newer], "after one was carried out")
                expect_equal(tx.commands("other"), [other], "the other owner's")
                expect(tx.head(OWNER).has_commands, "has_commands")
                tx.drop_commands(["c1"])
                expect(not tx.head(OWNER).has_commands, "has_commands after the last")

    def a_command_is_of_any_kind(self) -> None:
        with self._opened() as store, store.transact() as tx:
            sent = [evolve(_command(kind.value, NOW), kind=kind) for kind in sorted(CommandKind)]
            for command in sent:
                tx.put_command(command)
            expect_equal(tx.commands(OWNER), sent, "commands()")

    def a_command_that_is_there_is_left_as_it_is(self) -> None:
        first = _command("c1", NOW)
        with self._opened() as store, store.transact() as tx:
            tx.put_command(first)
            tx.put_command(evolve(first, reason="another", owner="other"))
            expect_equal(tx.commands(OWNER), [first], "commands()")
            expect_equal(tx.commands("other"), [], "the other owner's")

    def an_owner_s_commands_go_with_it(self) -> None:
        with self._opened() as store, store.transact() as tx:
            tx.put_owner(make_owner())
            tx.put_command(_command("c1", NOW))
            tx.put_command(_command("c2", NOW, owner="other"))
            tx.drop_owner(OWNER)
            expect_equal(tx.commands(OWNER), [], "the dropped owner's")
            expect_equal([command.id for command in tx.commands("other")], ["c2"], "the other's")

    def a_claim_needs_no_owner_s_row(self) -> None:
        with self._opened() as store, store.transact() as tx:
            submit(tx, make_row("a"))
            expect_equal(ids(claim(tx, "a", owner="without a row")), ["a"], "claim()")
