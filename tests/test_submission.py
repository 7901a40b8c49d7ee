"""From a call and its options to a row: timeouts and callbacks, of the definition and of the submission."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from taskengine import records
from taskengine.core.errors import InvalidOption, UnknownTask
from taskengine.core.model import SubmitOptions, TaskEnd, TaskRow
from taskengine.core.timeouts import Timeouts
from taskengine.registry import Registry, TaskCall, task
from taskengine.submission import Submissions

NOW = 1_000_000_000


@task
def on_end(end: TaskEnd) -> None: ...


@task
def takes_nothing() -> None: ...


@task
def plain(value: int = 0) -> int:
    return value


@task(timeout=Timeouts(start=2, attempt=3, total=60), on_failure=on_end, on_settled="takes_nothing.too")
def timed(value: int = 0) -> int:
    return value


@task(timeout=5, on_success="on_end")
def told(value: int = 0) -> int:
    return value


def submissions(*tasks: Callable[..., Any], is_client: bool = False) -> Submissions:
    return Submissions(
        registry=Registry(tasks), is_client=is_client, now=lambda: NOW, new_id=lambda: "new", max_value_bytes=1000
    )


ENGINE = submissions(on_end, takes_nothing, plain, told)
CLIENT = submissions(is_client=True)


def naming(option: str, name: Any) -> SubmitOptions:
    options: dict[str, Any] = {option: name}
    return SubmitOptions(**options)


def limits_of(row: TaskRow) -> tuple[Timeouts | None, int | None, int | None]:
    timeouts = None if row.timeouts is None else records.load_timeouts(row.timeouts)
    return timeouts, row.deadline_at, row.start_within


def callbacks_of(row: TaskRow) -> dict[str, str] | None:
    return None if row.callbacks is None else records.load_callbacks(row.callbacks)


# --- timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SubmitOptions(), SubmitOptions(label="l", delay=5)])
def test_a_task_without_timeouts_and_callbacks_has_none_stored(options: SubmitOptions) -> None:
    row = ENGINE.row(plain.bind(), options)
    assert (*limits_of(row), row.callbacks) == (None, None, None, None)


@pytest.mark.parametrize("options", [SubmitOptions(), SubmitOptions(delay=timedelta(days=1))])
def test_the_definitions_timeouts_are_stored_with_each_task(options: SubmitOptions) -> None:
    row = CLIENT.row(timed.bind(), options)
    assert limits_of(row) == (Timeouts(start=2, attempt=3, total=60), NOW + 60_000_000, 2_000_000)


def test_submitted_timeouts_replace_those_of_the_definition_as_a_whole() -> None:
    row = CLIENT.row(timed.bind(), SubmitOptions(timeout=Timeouts(idle=1, final="idle")))
    assert limits_of(row) == (Timeouts(idle=1, final="idle"), None, None)
    row = CLIENT.row(timed.bind(), SubmitOptions(timeout=Timeouts()))
    assert limits_of(row) == (Timeouts(), None, None)


def test_submitted_timeouts_give_a_task_its_instants() -> None:
    row = ENGINE.row(plain.bind(), SubmitOptions(timeout=Timeouts(start=1, total=2), delay=100))
    assert limits_of(row) == (Timeouts(start=1, total=2), NOW + 2_000_000, 1_000_000)


def test_a_plain_number_is_the_timeout_of_each_attempt() -> None:
    row = ENGINE.row(told.bind(), SubmitOptions(timeout=7))
    assert limits_of(row) == (Timeouts(attempt=7), None, None)


@pytest.mark.parametrize("timeout", [0, -1, True, "5", []])
def test_a_submitted_timeout_that_cannot_be_used_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^timeout: "):
        ENGINE.row(plain.bind(), SubmitOptions(timeout=timeout))


def test_a_client_that_knows_only_the_name_leaves_the_limits_to_the_claim() -> None:
    assert limits_of(CLIENT.row(TaskCall.of("timed"))) == (None, None, None)
    row = CLIENT.row(TaskCall.of("timed"), SubmitOptions(timeout=Timeouts(total=1)))
    assert limits_of(row) == (Timeouts(total=1), NOW + 1_000_000, None)


# --- callbacks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [SubmitOptions(), SubmitOptions(label="l")])
def test_the_definitions_callbacks_are_stored_with_each_task(options: SubmitOptions) -> None:
    assert callbacks_of(ENGINE.row(told.bind(), options)) == {"success": "on_end"}


def test_a_submitted_callback_replaces_only_the_definitions_callback_for_the_same_end() -> None:
    row = CLIENT.row(timed.bind(), SubmitOptions(on_failure="mine", on_success="also"))
    assert callbacks_of(row) == {"success": "also", "failure": "mine", "settled": "takes_nothing.too"}
    assert timed.definition.callbacks == {"failure": "on_end", "settled": "takes_nothing.too"}


@pytest.mark.parametrize(
    ("option", "end"), [("on_success", "success"), ("on_failure", "failure"), ("on_settled", "settled")]
)
def test_each_callback_can_be_submitted(option: str, end: str) -> None:
    assert callbacks_of(ENGINE.row(plain.bind(), naming(option, "on_end"))) == {end: "on_end"}


def test_a_task_itself_may_stand_for_its_name() -> None:
    options = SubmitOptions(on_settled=on_end)
    assert callbacks_of(ENGINE.row(plain.bind(), options)) == {"settled": "on_end"}


@pytest.mark.parametrize("option", ["on_success", "on_failure", "on_settled"])
def test_an_engine_with_tasks_refuses_a_callback_that_it_does_not_know(option: str) -> None:
    with pytest.raises(UnknownTask, match="'on_ent'; did you mean 'on_end'"):
        ENGINE.row(plain.bind(), naming(option, "on_ent"))


def test_an_engine_with_tasks_refuses_a_task_whose_own_callback_it_does_not_know() -> None:
    engine = submissions(told)
    with pytest.raises(UnknownTask, match="'on_end'"):
        engine.row(told.bind())
    with pytest.raises(UnknownTask, match="'on_end'"):
        engine.row(told.bind(), SubmitOptions(on_failure="told"))
    assert callbacks_of(engine.row(told.bind(), SubmitOptions(on_success="told"))) == {"success": "told"}


def test_a_callback_that_cannot_be_called_with_an_end_is_refused_at_submit() -> None:
    with pytest.raises(InvalidOption, match=r"^on_success: the task 'takes_nothing' is called with one TaskEnd"):
        ENGINE.row(plain.bind(), SubmitOptions(on_success="takes_nothing"))


def test_a_client_may_name_any_callback() -> None:
    row = CLIENT.row(TaskCall.of("whatever"), SubmitOptions(on_success="any.where"))
    assert callbacks_of(row) == {"success": "any.where"}
    assert callbacks_of(CLIENT.row(told.bind())) == {"success": "on_end"}


@pytest.mark.parametrize("name", ["", "a b", "x" * 201, "\x00", "\ud800", 3, plain.bind()])
def test_a_client_too_must_name_a_callback_by_a_name(name: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^on_success: "):
        CLIENT.row(TaskCall.of("whatever"), SubmitOptions(on_success=name))
