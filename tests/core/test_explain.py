"""Why a task is not running: every reason by example, and which of several is told."""

from datetime import UTC, datetime
from typing import Any

import pytest

from taskengine.core.explain import Explanation, OwnerFacts, Surroundings, covers, explain
from taskengine.core.lifecycle import FINAL, LEASED, STORED, State
from taskengine.core.model import Hold, HoldRow, HoldScope, TaskRow, Wish, from_micros
from tests.core.deciding import CANCEL, NOW, PAUSE, SECOND, STOP, leased, unowned

ABLE = OwnerFacts(id="o1", pid=11, names=("mail", "print"))
UNABLE = OwnerFacts(id="o2", pid=22, names=("print",))
TOMORROW = datetime(2030, 1, 2, tzinfo=UTC)


def many(scope: HoldScope, target: str = "", **values: Any) -> HoldRow:
    return HoldRow(
        **{
            "scope": scope,
            "target": target,
            "actor": "bob",
            "reason": "tea",
            "until": None,
            "created_at": NOW,
            **values,
        }
    )


def ask(
    row: TaskRow,
    *,
    held: Hold | None = None,
    wish: Wish | None = None,
    holds: tuple[HoldRow, ...] = (),
    owners: tuple[OwnerFacts, ...] = (ABLE,),
    ahead: int | None = None,
    tags: tuple[str, ...] = (),
    failure: str | None = None,
) -> Explanation:
    around = Surroundings(holds=holds, owners=owners, ahead=ahead, tags=tags)
    return explain(row, around, held=held, wish=wish, now=NOW, failure=failure)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_has_ended_is_told_with_its_end(state: State) -> None:
    told = ask(unowned(state), holds=(many(HoldScope.ALL),))
    assert (told.code, told.sentence, dict(told.data)) == ("ended", f"it has ended: {state.value}", {"state": state})


@pytest.mark.parametrize("state", sorted(FINAL))
def test_an_end_is_told_with_who_asked_for_it_or_with_what_went_wrong(state: State) -> None:
    told = ask(unowned(state), wish=CANCEL, failure="ValueError: no\n  more")
    words: tuple[str, dict[str, Any]] = ("", {})
    if state in (State.STOPPED, State.CANCELLED):
        words = (", asked by anna: no more", {"wish": "cancel", "actor": "anna", "reason": "no more"})
    elif state in (State.FAILED, State.LOST):
        words = (": ValueError: no more", {"failure": "ValueError: no\n  more"})
    assert told.sentence == f"it has ended: {state.value}{words[0]}"
    assert told.data == {"state": state, **words[1]}


@pytest.mark.parametrize(
    ("state", "wish", "code", "sentence"),
    [
        (State.STARTING, None, "claimed", "it is claimed and about to begin"),
        (State.RUNNING, None, "running", "it is running"),
        (State.PAUSING, PAUSE, "pausing", "its body is to pause at its next checkpoint, asked by carl: lunch"),
        (State.PAUSED, PAUSE, "paused", "its body is paused at a checkpoint, asked by carl: lunch"),
        (State.STOPPING, STOP, "stopping", "its body is being ended, asked by bob: later"),
        (State.STOPPING, CANCEL, "stopping", "its body is being ended, asked by anna: no more"),
        (State.STOPPING, None, "stopping", "its body is being ended"),
    ],
)
def test_what_has_a_body_is_told_with_what_was_asked_of_it(
    state: State, wish: Wish | None, code: str, sentence: str
) -> None:
    told = ask(leased(state), wish=wish)
    assert (told.code, told.sentence) == (code, sentence)
    asked = {} if wish is None else {"wish": wish.kind.value, "actor": wish.actor, "reason": wish.reason}
    assert told.data == {"owner": "me", "attempt": 2, **asked}


def test_a_wish_without_a_reason_is_told_without_a_colon() -> None:
    told = ask(leased(State.PAUSED), wish=Wish(kind=PAUSE.kind, actor="carl"))
    assert told.sentence == "its body is paused at a checkpoint, asked by carl"


@pytest.mark.parametrize("state", sorted(LEASED))
def test_what_is_in_somebody_s_hands_is_not_explained_by_holds(state: State) -> None:
    told = ask(leased(state, held="H"), held=Hold(actor="bob"), holds=(many(HoldScope.ALL),))
    assert not told.code.startswith("held")


# --- held ---

WITHOUT_BODY = sorted({State.QUEUED, State.SCHEDULED, State.BLOCKED, State.RETRY_WAIT})


@pytest.mark.parametrize("state", WITHOUT_BODY)
def test_a_hold_of_the_task_itself_comes_before_every_other_reason(state: State) -> None:
    told = ask(unowned(state, held="H"), held=Hold(actor="bob", reason="tea", until=TOMORROW), owners=())
    assert told.code == "held"
    assert told.sentence == "it is held by bob until 2030-01-02T00:00:00+00:00: tea"
    assert told.data == {"actor": "bob", "reason": "tea", "until": "2030-01-02T00:00:00+00:00"}


def test_a_hold_without_reason_and_end_is_told_in_few_words() -> None:
    told = ask(unowned(State.QUEUED, held="H"), held=Hold(actor="bob"))
    assert (told.sentence, told.data) == ("it is held by bob", {"actor": "bob", "reason": None, "until": None})


def test_a_hold_that_cannot_be_read_is_a_hold_all_the_same() -> None:
    told = ask(unowned(State.QUEUED, held="?"), held=None)
    assert (told.code, told.sentence) == ("held", "it is held by nobody knows whom")


@pytest.mark.parametrize("state", WITHOUT_BODY)
@pytest.mark.parametrize(
    ("scope", "target", "code", "what"),
    [
        (HoldScope.ALL, "", "held_all", "everything is held"),
        (HoldScope.NAME, "mail", "held_name", "tasks named 'mail' are held"),
        (HoldScope.TAG, "nightly", "held_tag", "tasks tagged 'nightly' are held"),
    ],
)
def test_a_hold_of_many_is_told_with_what_it_is_about(
    state: State, scope: HoldScope, target: str, code: str, what: str
) -> None:
    until = NOW + SECOND
    told = ask(unowned(state), holds=(many(scope, target, until=until),), tags=("daily", "nightly"))
    end = from_micros(until).isoformat()
    assert (told.code, told.sentence) == (code, f"{what} by bob until {end}: tea")
    assert told.data == {"target": target or None, "actor": "bob", "reason": "tea", "until": end}


def test_a_mark_of_a_hold_of_many_is_told_as_that_hold() -> None:
    marked = unowned(State.QUEUED, held="H")
    told = ask(
        marked, held=Hold(actor="bob", by="tag:nightly"), holds=(many(HoldScope.TAG, "nightly"),), tags=("nightly",)
    )
    assert (told.code, told.sentence) == ("held_tag", "tasks tagged 'nightly' are held by bob: tea")


@pytest.mark.parametrize(
    "hold",
    [
        many(HoldScope.ALL, is_released=True),
        many(HoldScope.ALL, until=NOW),
        many(HoldScope.NAME, "print"),
        many(HoldScope.TAG, "nightly"),
    ],
    ids=["released", "over", "another name", "another tag"],
)
def test_a_hold_that_stands_no_longer_or_is_about_others_explains_nothing(hold: HoldRow) -> None:
    assert ask(unowned(State.QUEUED), holds=(hold,)).code == "next"
    assert ask(unowned(State.QUEUED), holds=(hold, many(HoldScope.NAME, "mail"))).code == "held_name"


def test_a_hold_covers_all_or_those_of_its_name_or_tag() -> None:
    row = unowned(State.QUEUED)
    assert covers(many(HoldScope.ALL), row, ())
    assert covers(many(HoldScope.NAME, "mail"), row, ())
    assert not covers(many(HoldScope.NAME, "nightly"), row, ("nightly",))
    assert covers(many(HoldScope.TAG, "nightly"), row, ("nightly",))
    assert not covers(many(HoldScope.TAG, "mail"), row, ("nightly",))


# --- waiting ---


def test_what_waits_for_others_is_blocked() -> None:
    told = ask(unowned(State.BLOCKED), owners=())
    assert (told.code, told.sentence) == ("blocked", "it waits for upstream tasks")


def test_what_is_due_later_tells_when() -> None:
    due = NOW + 90 * SECOND
    told = ask(unowned(State.SCHEDULED, due_at=due))
    text = from_micros(due).isoformat()
    assert (told.code, told.sentence) == ("not_due", f"it is due at {text}")
    assert told.data == {"due_at": text, "in_seconds": 90.0}


def test_what_waits_for_its_next_attempt_tells_which_one_failed() -> None:
    due = NOW - SECOND
    told = ask(unowned(State.RETRY_WAIT, due_at=due))
    text = from_micros(due).isoformat()
    assert (told.code, told.sentence) == ("retrying", f"attempt 2 failed; the next one is due at {text}")
    assert told.data == {"due_at": text, "in_seconds": 0.0}, "never negative"


# --- queued ---


def test_without_a_process_nothing_runs() -> None:
    assert ask(unowned(State.QUEUED), owners=()).code == "no_owner"


def test_a_name_that_no_process_knows_is_told_with_the_processes() -> None:
    told = ask(unowned(State.QUEUED), owners=(UNABLE,))
    assert (told.code, told.data) == ("unknown_name", {"processes": [22]})
    assert "'mail'" in told.sentence


@pytest.mark.parametrize(
    ("ahead", "code", "words"),
    [(3, "no_slot", "3 tasks are ahead"), (0, "next", "it is next"), (None, "next", "it is next")],
)
def test_what_waits_for_a_slot_tells_how_many_are_ahead_and_who_could_run_it(
    ahead: int | None, code: str, words: str
) -> None:
    told = ask(unowned(State.QUEUED), owners=(UNABLE, ABLE), ahead=ahead)
    assert told.code == code
    assert words in told.sentence
    assert told.data == {"processes": [11], "ahead": ahead}


@pytest.mark.parametrize("state", sorted(STORED))
def test_every_stored_state_has_an_explanation_in_one_sentence(state: State) -> None:
    told = ask(leased(state) if state in LEASED else unowned(state))
    assert told.code
    assert "\n" not in told.sentence


def test_a_body_whose_process_is_gone_is_not_said_to_be_at_work() -> None:
    row = leased(State.RUNNING)
    around = Surroundings(gone=frozenset({row.owner or ""}))
    told = explain(row, around, held=None, wish=None, now=NOW)
    assert told.code == "running"
    assert told.sentence == "it is running, but its process is gone: the next engine on this store recovers it"
    assert told.data["owner_is_gone"] is True
