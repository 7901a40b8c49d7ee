"""Two stores and a dict, driven by the same ticks, must agree after each of them."""

from typing import Any, TypeAlias

from attrs import define, evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from taskengine import MemoryStore, SqliteStore
from taskengine.actors.messages import Receipt, RequestAnswer
from taskengine.core.decide import OutcomeKind
from taskengine.core.lifecycle import CLAIMABLE, FINAL, LEASED, TIMED, State, Trigger
from taskengine.core.model import TaskFilter
from taskengine.ports import Store
from taskengine.testing.invariants import check_invariants
from tests.actors.ticking import NAMES, SECOND, Engine, cancel, deletion, make_row, order, recovery, requeue, submission
from tests.stores.places import temporary_path

EVERYTHING = TaskFilter()
OWNERS = ("one", "two")

ENDS = st.sampled_from(
    [
        OutcomeKind.RETURNED,
        OutcomeKind.RAISED,
        OutcomeKind.INTERRUPTED,
        OutcomeKind.ABANDONED,
        OutcomeKind.UNBEGUN,
        OutcomeKind.UNREADABLE,
    ]
)


Submitted: TypeAlias = tuple[str, str | None, float, int | None, str | None, int, str | None]
"""(name, key, delay in seconds, max attempts, recover, priority, which time limit)."""

LIMIT = 20 * SECOND


@define
class Expected:
    """What the simple model knows of a task."""

    name: str
    state: State
    attempt: int = 0
    owner: str | None = None


class Ticks(RuleBasedStateMachine):
    """Each rule makes the same tick on both stores."""

    tasks: Bundle[str] = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.path = temporary_path()
        self.stores: list[Store] = [MemoryStore(), SqliteStore(self.path.name, durability="fast")]
        for store in self.stores:
            store.open()
        self.engines: list[dict[str, Engine]] = [{}, {}]
        self.model: dict[str, Expected] = {}
        self.keys: dict[str, str] = {}
        self.count = 0
        self.births = 0

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.path.close()

    # --- doing one thing on both ---

    def both(self, owner: str | None, **work: Any) -> list[Any]:
        """Run a tick on each store; `work` holds functions that make its part of the batch for one engine."""
        results = []
        for engines in self.engines:
            engine = engines[owner] if owner is not None else Engine(engines[OWNERS[0]].store, owner=None)
            made = {name: make(engine) for name, make in work.items()}
            results.append(engine.tick(**made))
        return results

    @initialize(target=tasks)
    def begin(self) -> Any:
        for owner in OWNERS:
            self.be_born(owner)
        return multiple(*self.submit_rows([(name, None, 0, 3, "retry", 0, None) for name in NAMES * 2]))

    def be_born(self, owner: str) -> None:
        self.births += 1
        for store, engines in zip(self.stores, self.engines, strict=True):
            engine = Engine(store, owner=f"{owner}-{self.births}")
            if owner in engines:
                engine.now = engines[owner].now
            engines[owner] = engine

    def id_of(self, owner: str) -> str:
        name = self.engines[0][owner].owner
        assert name is not None
        return name

    # --- rules ---

    @rule(
        target=tasks,
        rows=st.lists(
            st.tuples(
                st.sampled_from([*NAMES, *NAMES, "unknown"]),
                st.sampled_from([None, None, "k1", "k2"]),
                st.sampled_from([0, 0, 0, 5]),
                st.sampled_from([3, 2, 1, None]),
                st.sampled_from(["retry", "retry", "lost", None]),
                st.integers(-1, 1),
                st.sampled_from([None, None, "total", "start"]),
            ),
            min_size=2,
            max_size=6,
        ),
    )
    def submit(self, rows: list[Submitted]) -> Any:
        return multiple(*self.submit_rows(rows))

    def submit_rows(self, rows: list[Submitted]) -> list[str]:
        made = []
        for name, key, delay, max_attempts, recover, priority, limit in rows:
            self.count += 1
            row = make_row(f"t{self.count}", name=name, max_attempts=max_attempts, recover=recover, priority=priority)
            row.idempotency_key, row.due_at = key, row.due_at + round(delay * SECOND)
            row.deadline_at = row.created_at + LIMIT if limit == "total" else None
            row.start_within = LIMIT if limit == "start" else None
            made.append(row)
        results = self.both(None, submits=lambda _: [submission(*(evolve(row) for row in made))])
        answers = [result.submitted[0][1] for result in results]
        if isinstance(answers[0], Exception):
            assert type(answers[0]) is type(answers[1])
            return []
        told = [[(receipt.id, receipt.created, receipt.state) for receipt in answer] for answer in answers]
        assert told[0] == told[1]
        for row, (id_, created, state) in zip(made, told[0], strict=True):
            if created:
                self.model[id_] = Expected(row.name, state)
                if row.idempotency_key is not None:
                    assert row.idempotency_key not in self.keys
                    self.keys[row.idempotency_key] = id_
            else:
                assert row.idempotency_key is not None
                assert self.keys[row.idempotency_key] == id_
        return [id_ for id_, created, _ in told[0] if created]

    @rule(owner=st.sampled_from(OWNERS), free=st.sampled_from([3, 1, 0]), prefetch=st.integers(0, 2))
    def claim(self, owner: str, free: int, prefetch: int) -> None:
        results = self.both(owner, claim=lambda _: order(free, prefetch))
        claimed = [[row.id for row in result.claimed] for result in results]
        assert claimed[0] == claimed[1]
        assert results[0].next_due == results[1].next_due
        assert results[0].promoted == results[1].promoted
        for id_ in claimed[0]:
            expected = self.model[id_]
            assert expected.state in CLAIMABLE | TIMED  # What is due is promoted in the same tick.
            assert expected.name in NAMES
            expected.state, expected.owner = State.STARTING, self.id_of(owner)
            expected.attempt += 1
        assert len(claimed[0]) <= free + prefetch

    @rule(
        owner=st.sampled_from(OWNERS),
        ends=st.lists(st.tuples(st.integers(0, 9), ENDS), min_size=1, max_size=3),
        wish=st.booleans(),
    )
    def settle(self, owner: str, ends: list[tuple[int, OutcomeKind]], wish: bool) -> None:
        """End some attempts; `wish`: a cancel of the first of them arrives in the same tick, too late."""
        live = sorted(self.engines[0][owner].live)
        chosen = {live[index % len(live)]: kind for index, kind in ends} if live else {}
        chosen = {id_: self._possible(owner, id_, kind) for id_, kind in chosen.items()}
        results = self.both(
            owner,
            settlements=lambda engine: [engine.ended(id_, kind) for id_, kind in chosen.items()],
            requests=lambda _: [cancel(id_) for id_ in list(chosen)[: int(wish)]],
        )
        settled = [[settlement.write.state for settlement in result.settled] for result in results]
        assert settled[0] == settled[1]
        assert not results[0].fenced
        assert not results[1].fenced
        for id_ in chosen:
            self._look(id_)

    def _possible(self, owner: str, id_: str, kind: OutcomeKind) -> OutcomeKind:
        has_begun = self.engines[0][owner].live[id_].began_at is not None
        if kind in (OutcomeKind.UNBEGUN, OutcomeKind.UNREADABLE) and has_begun:
            return OutcomeKind.INTERRUPTED
        return kind

    @rule(owner=st.sampled_from(OWNERS), index=st.integers(0, 9))
    def announce(self, owner: str, index: int) -> None:
        live = sorted(
            id_ for id_, attempt in self.engines[0][owner].live.items() if attempt.row.state is State.STARTING
        )
        if not live:
            return
        id_ = live[index % len(live)]
        self.both(owner, settlements=lambda engine: [engine.began(id_)])
        self.model[id_].state = State.RUNNING

    @rule(
        owner=st.sampled_from([None, *OWNERS]),
        task=tasks,
        trigger=st.sampled_from([Trigger.USER_CANCEL, Trigger.USER_STOP, Trigger.USER_RUN_NOW]),
    )
    def request(self, owner: str | None, task: str, trigger: Trigger) -> None:
        results = self.both(owner, requests=lambda _: [cancel(task, trigger)])
        answers = [result.answered[-1][1] if result.answered else None for result in results]
        assert type(answers[0]) is type(answers[1])
        if isinstance(answers[0], RequestAnswer):
            assert isinstance(answers[1], RequestAnswer)
            assert (answers[0].state, answers[0].is_remote) == (answers[1].state, answers[1].is_remote)
            if trigger is not Trigger.USER_RUN_NOW and not answers[0].is_remote:
                assert answers[0].state in FINAL | {State.STOPPING}
        self._look(task)

    @rule(owner=st.sampled_from(OWNERS))
    def pick_up_commands(self, owner: str) -> None:
        results = self.both(owner)
        assert len(results[0].answered) == len(results[1].answered)

    @rule(owner=st.sampled_from(OWNERS), proven_gone=st.booleans(), zombie=st.booleans())
    def die(self, owner: str, proven_gone: bool, zombie: bool) -> None:
        """One owner dies, the other settles what it left; `zombie`: it was not dead and reports too late."""
        other = OWNERS[1 - OWNERS.index(owner)]
        dead = self.id_of(owner)
        late = [[engines[owner].ended(id_) for id_ in sorted(engines[owner].live)] for engines in self.engines]
        results = self.both(other, recoveries=lambda _: [recovery(dead, proven_gone=proven_gone)])
        assert results[0].recovered[0][1] == results[1].recovered[0][1]
        if zombie:
            for engines, settlements in zip(self.engines, late, strict=True):
                result = engines[owner].tick(settlements=settlements)
                assert (len(result.fenced), result.settled, result.owner_gone) == (len(settlements), [], True)
        self.be_born(owner)

    @rule(task=consumes(tasks))
    def delete(self, task: str) -> None:
        results = self.both(None, deletes=lambda _: [deletion(task)])
        answers = [result.deleted[0][1] for result in results]
        assert type(answers[0]) is type(answers[1])
        if answers[0] is True:
            del self.model[task]
            self.keys = {key: id_ for key, id_ in self.keys.items() if id_ != task}
            assert all(store.reader().was_deleted(task) for store in self.stores)

    @rule(target=tasks, task=tasks)
    def requeue(self, task: str) -> Any:
        self.count += 1
        new = f"t{self.count}"
        results = self.both(None, requeues=lambda _: [requeue(task, new)])
        answers = [result.requeued[0][1] for result in results]
        assert type(answers[0]) is type(answers[1])
        if not isinstance(answers[0], Receipt):
            return multiple()
        self.model[new] = Expected(self.model[task].name, State.QUEUED)
        return new

    @rule(seconds=st.sampled_from([-100, 1, 10, 100]))
    def let_time_pass(self, seconds: int) -> None:
        for engines in self.engines:
            for engine in engines.values():
                engine.now += seconds * SECOND

    # --- after each ---

    def _look(self, id_: str) -> None:
        """Take over what a decision made of a task; what decisions may make is tested with `core.decide`."""
        row = self.stores[0].reader().get(id_)
        if row is not None:
            self.model[id_].state, self.model[id_].owner = row.state, row.owner

    @invariant()
    def stores_agree(self) -> None:
        memory, sqlite = (self._rows(store) for store in self.stores)
        assert memory == sqlite
        readers = [store.reader() for store in self.stores]
        assert readers[0].events(0, 10_000) == readers[1].events(0, 10_000)
        listed = [[row.id for row in reader.select(EVERYTHING, limit=999, claim_order=True)] for reader in readers]
        assert listed[0] == listed[1]
        assert readers[0].held(None) == readers[1].held(None)
        clocks = []
        for store in self.stores:
            with store.transact() as tx:
                clocks.append((tx.next_due(), sorted(row.id for row in tx.expired(2**60, 999)), tx.head(None)))
        assert clocks[0] == clocks[1]
        assert sorted(readers[0].ownerless()) == sorted(readers[1].ownerless())
        assert {owner.id for owner in readers[0].owners()} == {owner.id for owner in readers[1].owners()}

    def _rows(self, store: Store) -> dict[str, dict[str, Any]]:
        return {
            row.id: {name: getattr(row, name) for name in type(row).__annotations__}
            for row in store.reader().select(EVERYTHING, limit=10_000)
        }

    @invariant()
    def stores_agree_with_the_model(self) -> None:
        rows = self._rows(self.stores[0])
        assert rows.keys() == self.model.keys()
        for id_, expected in self.model.items():
            row = rows[id_]
            assert row["name"] == expected.name
            assert row["attempt"] == expected.attempt, "only a claim raises the attempt"
            if expected.state in FINAL:
                assert row["state"] is expected.state, "final states never change"
            if row["state"] in LEASED:
                assert row["owner"] is not None
            expected.state = row["state"]
            if row["idempotency_key"] is not None:
                assert self.keys[row["idempotency_key"]] == id_

    @invariant()
    def invariants_hold(self) -> None:
        for store in self.stores:
            assert check_invariants(store) == []


TestTicks = Ticks.TestCase
_profile = settings.get_current_profile_name()
TestTicks.settings = settings(
    settings.get_profile(_profile),
    max_examples=30 if _profile != "long" else 1000,
    stateful_step_count=30 if _profile != "long" else 80,
)
