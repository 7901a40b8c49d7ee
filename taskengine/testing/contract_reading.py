"""Checks of the reading side: listings, and the small questions."""

from typing import Any

from attrs import evolve

from taskengine.core.lifecycle import FINAL, LEASED, State, Trigger
from taskengine.core.model import TaskFilter, from_micros
from taskengine.ports import Reader, Store
from taskengine.testing.contract_tools import (
    EVERYTHING,
    NOW,
    Checks,
    claim,
    expect_equal,
    ids,
    make_row,
    move,
    submit,
)

SECOND = 1_000_000


def _fill(store: Store) -> None:
    """Store t0 … t5: two names, tags, a second apart, in five states."""
    with store.transact() as tx:
        submit(
            tx,
            make_row("t0", rank=9, created_at=NOW, tags='["a"]'),
            make_row("t1", rank=8, created_at=NOW + SECOND, tags='["a","b"]', name="größe"),
            make_row("t2", State.SCHEDULED, created_at=NOW + 2 * SECOND, tags='["b"]'),
            make_row("t3", rank=7, created_at=NOW + 3 * SECOND, name="größe"),
            make_row("t4", rank=6, created_at=NOW + 4 * SECOND, tags='["ab","A"," a"]'),
            make_row("t5", rank=5, created_at=NOW + 5 * SECOND, tags='["%","größe"]'),
        )
        claim(tx, "t3", "t4")
        move(tx, "t3", Trigger.EXECUTOR_LAUNCHED)
        move(tx, "t3", Trigger.EXECUTOR_COMPLETED, result="1")


def _select(reader: Reader, where: TaskFilter = EVERYTHING, **options: Any) -> list[str]:
    return ids(reader.select(where, **{"limit": 99, **options}))


class ReadingChecks(Checks):
    """See the module."""

    def what_is_not_there_is_told_apart(self) -> None:
        with self._opened() as store:
            _fill(store)
            reader = store.reader()
            expect_equal(reader.get("absent"), None, "get()")
            expect_equal(reader.was_deleted("absent"), False, "was_deleted()")
            expect_equal(reader.select(EVERYTHING, limit=0), [], "select() with limit 0")

    def a_listing_is_newest_first(self) -> None:
        with self._opened() as store:
            _fill(store)
            expect_equal(_select(store.reader()), ["t5", "t4", "t3", "t2", "t1", "t0"], "all tasks")

    def a_listing_is_filtered_by_each_field(self) -> None:
        cases: list[tuple[TaskFilter, list[str]]] = [
            (TaskFilter(ids=("t4", "t1", "absent")), ["t4", "t1"]),
            (TaskFilter(ids=()), []),
            (TaskFilter(states=frozenset({State.QUEUED})), ["t5", "t1", "t0"]),
            (TaskFilter(states=FINAL | LEASED), ["t4", "t3"]),
            (TaskFilter(states=frozenset()), []),
            (TaskFilter(name="größe"), ["t3", "t1"]),
            (TaskFilter(name="gr%"), []),
            (TaskFilter(tag="a"), ["t1", "t0"]),
            (TaskFilter(tag="b"), ["t2", "t1"]),
            (TaskFilter(tag="%"), ["t5"]),
            (TaskFilter(tag="größe"), ["t5"]),
            (TaskFilter(tag="absent"), []),
            (TaskFilter(created_after=from_micros(NOW + 4 * SECOND)), ["t5", "t4"]),
            (TaskFilter(created_before=from_micros(NOW + SECOND)), ["t0"]),
        ]
        with self._opened() as store:
            _fill(store)
            for where, expected in cases:
                expect_equal(_select(store.reader(), where), expected, f"{where}")

    def fields_of_a_filter_combine_with_and(self) -> None:
        where = TaskFilter(
            ids=("t0", "t1", "t3", "t5"),
            states=frozenset({State.QUEUED}),
            name="größe",
            tag="b",
            created_after=from_micros(NOW + SECOND),
            created_before=from_micros(NOW + 2 * SECOND),
        )
        with self._opened() as store:
            _fill(store)
            reader = store.reader()
            expect_equal(_select(reader, where), ["t1"], "all fields")
            for change in (
                {"ids": ("t0",)},
                {"states": FINAL},
                {"name": "mail"},
                {"tag": "a "},
                {"created_after": from_micros(NOW + SECOND + 1)},
                {"created_before": from_micros(NOW + SECOND)},
            ):
                expect_equal(_select(reader, evolve(where, **change)), [], f"all fields, and {change} does not fit")

    def a_listing_is_read_page_by_page(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *(make_row(f"t{n}", tags='["odd"]' if n % 2 else None) for n in range(25)))
            reader = store.reader()
            for where in (EVERYTHING, TaskFilter(tag="odd")):
                found: list[str] = []
                before = None
                while page := reader.select(where, limit=4, before_key=before):
                    found.extend(ids(page))
                    before = page[-1].key
                expect_equal(found, _select(reader, where), "the pages together")

    def deleting_leaves_the_order_of_a_listing(self) -> None:
        with self._opened() as store:
            _fill(store)
            with store.transact() as tx:
                row = move(tx, "t2", Trigger.USER_CANCEL)
            try:
                with store.transact() as tx:
                    tx.delete([row.key])
                    raise InterruptedError
            except InterruptedError:
                pass
            expect_equal(_select(store.reader()), ["t5", "t4", "t3", "t2", "t1", "t0"], "after a rollback")
            expect_equal(_select(store.reader(), TaskFilter(tag="b")), ["t2", "t1"], "by tag, after a rollback")
            with store.transact() as tx:
                tx.delete([row.key])
            expect_equal(_select(store.reader()), ["t5", "t4", "t3", "t1", "t0"], "after a commit")
            expect_equal(_select(store.reader(), TaskFilter(tag="b")), ["t1"], "by tag, after a commit")

    def the_queue_can_be_listed_as_it_will_be_claimed(self) -> None:
        with self._opened() as store:
            _fill(store)
            reader = store.reader()
            expect_equal(_select(reader, claim_order=True), ["t5", "t1", "t0"], "all names")
            expect_equal(_select(reader, claim_order=True, limit=2), ["t5", "t1"], "the first two")
            expect_equal(_select(reader, TaskFilter(name="größe"), claim_order=True), ["t1"], "one name")
            with store.transact() as tx:
                claim(tx, "t5")
                move(tx, "t5", Trigger.ENGINE_RELEASE, held='{"actor":"user"}')
            expect_equal(_select(reader, claim_order=True), ["t1", "t0"], "without what is held")

    def holds_are_counted_on_unfinished_tasks(self) -> None:
        with self._opened() as store:
            _fill(store)
            with store.transact() as tx:
                claim(tx, "t0", "t1")
                for id_ in ("t0", "t1", "t4"):
                    move(tx, id_, Trigger.ENGINE_RELEASE, held='{"actor":"user"}')
            reader = store.reader()
            counted = [reader.held(names) for names in (None, ["mail"], ["größe", "absent"], [])]
            expect_equal(counted, [3, 2, 1, 0], "held() of all, of two names, of none")
            with store.transact() as tx:
                move(tx, "t0", Trigger.USER_CANCEL)
            expect_equal(reader.held(None), 2, "held() after one was cancelled")

    def what_waits_under_a_tag_is_counted_with_the_held(self) -> None:
        with self._opened() as store:
            _fill(store)
            with store.transact() as tx:
                claim(tx, "t1")
                move(tx, "t1", Trigger.ENGINE_RELEASE, held='{"actor":"user"}')
                submit(tx, make_row("running", tags='["a","b"]'))
                claim(tx, "running")
            reader = store.reader()
            for names, tags, expected in (
                (None, ["a"], 2),  # t0 waits under it, t1 is held
                (None, ["a", "b", "a"], 3),  # each once
                (None, ["absent"], 1),
                (["mail"], ["a", "b"], 2),
                (["größe"], ["b"], 1),
                ([], ["a"], 0),
            ):
                expect_equal(reader.held(names, tags), expected, f"held({names}, {tags})")

    def a_listing_tells_the_held_from_the_others(self) -> None:
        with self._opened() as store:
            _fill(store)
            with store.transact() as tx:
                claim(tx, "t0", "t1")
                for id_ in ("t0", "t1"):
                    move(tx, id_, Trigger.ENGINE_RELEASE, held='{"actor":"user"}')
            reader = store.reader()
            for where, expected in (
                (TaskFilter(held=True), ["t1", "t0"]),
                (TaskFilter(held=False), ["t5", "t4", "t3", "t2"]),
                (TaskFilter(held=True, tag="b"), ["t1"]),
                (TaskFilter(held=True, name="mail"), ["t0"]),
                (TaskFilter(held=True, ids=("t0", "t2")), ["t0"]),
                (TaskFilter(held=False, states=frozenset({State.QUEUED})), ["t5"]),
            ):
                expect_equal(_select(reader, where), expected, f"{where}")
            expect_equal(_select(reader, TaskFilter(held=True), limit=1), ["t1"], "the newest held one")
            expect_equal(_select(reader, TaskFilter(held=True), claim_order=True), [], "none of them will be claimed")

    def a_listing_tells_what_was_requeued_from_the_others(self) -> None:
        with self._opened() as store:
            with store.transact() as tx:
                submit(tx, *(make_row(f"t{n}") for n in range(3)))
                submit(tx, *(make_row(f"again{n}", requeued_from="t1") for n in range(2)))
                gone = make_row("gone", requeued_from="t2")
                submit(tx, gone)
                move(tx, "gone", Trigger.USER_CANCEL)
                tx.delete([gone.key])
            reader = store.reader()
            expect_equal(_select(reader, TaskFilter(requeued=True)), ["t1"], "requeued")
            expect_equal(_select(reader, TaskFilter(requeued=False)), ["again1", "again0", "t2", "t0"], "not requeued")
            expect_equal(_select(reader, TaskFilter(requeued=False, ids=("t1", "t0"))), ["t0"], "among ids")

    def the_finished_among_ids_are_told(self) -> None:
        with self._opened() as store:
            _fill(store)
            reader = store.reader()
            expect_equal(reader.finished([f"t{n}" for n in range(6)] + ["absent"]), {"t3"}, "finished()")
            expect_equal(reader.finished([]), set(), "finished() of none")
