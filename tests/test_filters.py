"""What a listing is filtered by: what is taken and what is refused."""

from datetime import datetime
from typing import Any

import pytest

from taskengine.core.errors import InvalidOption
from taskengine.core.lifecycle import State
from taskengine.core.model import TaskFilter
from taskengine.filters import make_filter


def test_without_conditions_all_is_meant() -> None:
    assert make_filter() == TaskFilter()


@pytest.mark.parametrize("wanted", [True, False, None])
@pytest.mark.parametrize("option", ["held", "requeued"])
def test_a_listing_may_ask_for_held_and_requeued_tasks_and_for_the_others(option: str, wanted: bool | None) -> None:
    found = make_filter(states="failed", **{option: wanted})  # type: ignore[arg-type]  # one of several options
    assert found == TaskFilter(states=frozenset({State.FAILED}), **{option: wanted})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("held", "yes"),
        ("held", 0),
        ("requeued", 1),
        ("requeued", []),
        ("states", "done"),
        ("name", ""),
        ("tag", 3),
        ("created_after", datetime(2026, 11, 30)),
        ("created_before", datetime(2026, 11, 30)),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        make_filter(**{option: value})
    assert refusal.value.option == option
