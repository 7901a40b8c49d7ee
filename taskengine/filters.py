"""What a listing is filtered by, as given by people and as asked of a store."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from taskengine.codec import check_text
from taskengine.core.errors import InvalidOption
from taskengine.core.lifecycle import State, parse_state
from taskengine.core.model import TaskFilter

FilterStates = Iterable[State | str] | State | str | None


def check_seconds(option: str, seconds: object) -> float | None:
    """Check a time to wait.

    Raises:
        InvalidOption: neither None nor a number of seconds that is not negative.
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidOption(option, f"{seconds!r} is not a number of seconds, 0 or more")
    return float(seconds)


def make_filter(
    *,
    ids: Sequence[str] | None = None,
    states: FilterStates = None,
    name: str | None = None,
    tag: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    held: bool | None = None,
    requeued: bool | None = None,
) -> TaskFilter:
    """Check what a listing is filtered by; see `TaskFilter` for what each means.

    Raises:
        InvalidOption: a word that is no state, a naive datetime, something else than yes or no.
    """
    for option, text in (("name", name), ("tag", tag)):
        if text is not None:
            check_text(option, text, limit=500)
    for option, instant in (("created_after", created_after), ("created_before", created_before)):
        if instant is not None and instant.tzinfo is None:
            raise InvalidOption(option, f"{instant!r} has no time zone; pass an aware datetime")
    for option, wanted in (("held", held), ("requeued", requeued)):
        if wanted is not None and not isinstance(wanted, bool):
            raise InvalidOption(option, f"{wanted!r} is neither True nor False, nor None")
    return TaskFilter(
        ids=None if ids is None else tuple(ids),
        states=_read_states(states),
        name=name,
        tag=tag,
        created_after=created_after,
        created_before=created_before,
        held=held,
        requeued=requeued,
    )


def _read_states(states: FilterStates) -> frozenset[State] | None:
    if states is None:
        return None
    words: Iterator[State | str] = iter([states] if isinstance(states, str) else states)
    try:
        return frozenset(parse_state(word) for word in words)
    except ValueError as error:
        raise InvalidOption("states", str(error)) from error
