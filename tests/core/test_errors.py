"""Errors: one base, whose fault it is, fields first."""

import inspect
from collections.abc import Callable

import pytest

from taskengine.core import errors
from taskengine.core.errors import TaskEngineError

EXAMPLES: dict[type[BaseException], Callable[[], BaseException]] = {
    errors.TaskEngineError: lambda: errors.TaskEngineError("x"),
    errors.UsageError: lambda: errors.UsageError("x"),
    errors.IllegalTransition: lambda: errors.IllegalTransition(state="queued", trigger="user:pause"),
    errors.InvalidOption: lambda: errors.InvalidOption("delay", "is negative"),
    errors.InvalidArguments: lambda: errors.InvalidArguments("resize", "missing 'path'"),
    errors.InvalidResult: lambda: errors.InvalidResult("resize", "is a set"),
    errors.UnknownTask: lambda: errors.UnknownTask("resise", ("resize",)),
    errors.DuplicateTask: lambda: errors.DuplicateTask("resize"),
    errors.IdempotencyConflict: lambda: errors.IdempotencyConflict(key="k", task_id="t"),
    errors.NotFinished: lambda: errors.NotFinished(task_id="t", state="running", operation="requeue"),
    errors.EngineNotRunning: lambda: errors.EngineNotRunning(),
    errors.QueueFull: lambda: errors.QueueFull(max_pending=5, pending=5),
    errors.StoreError: lambda: errors.StoreError("x"),
    errors.StoreUnavailable: lambda: errors.StoreUnavailable("x"),
    errors.StoreFull: lambda: errors.StoreFull("x"),
    errors.StoreGone: lambda: errors.StoreGone("x"),
    errors.TaskUnsuccessful: lambda: errors.TaskUnsuccessful(task_id="t", state="failed", failure=None),
    errors.StoreIncompatible: lambda: errors.StoreIncompatible("x"),
    errors.StoreClosed: lambda: errors.StoreClosed("x"),
    errors.DownstreamError: lambda: errors.DownstreamError("reset"),
    errors.GoneError: lambda: errors.GoneError("x"),
    errors.TaskNotFound: lambda: errors.TaskNotFound("t"),
    errors.TaskExpired: lambda: errors.TaskExpired("t"),
    errors.TaskStopped: lambda: errors.TaskStopped(),
    errors.TaskSnoozed: lambda: errors.TaskSnoozed(5.0),
    errors.TaskDiscarded: lambda: errors.TaskDiscarded("too late"),
    errors.AttemptFailed: lambda: errors.AttemptFailed("no"),
}

CONTROL: set[type[BaseException]] = {errors.TaskStopped, errors.TaskSnoozed, errors.TaskDiscarded}
"""Not errors, but how a body leaves when it was asked to, or wants to."""

defined = [item for item in vars(errors).values() if inspect.isclass(item) and item.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", defined, ids=lambda kind: kind.__name__)
def test_every_error_has_an_example_here_with_a_message_and_a_docstring(kind: type[BaseException]) -> None:
    example = EXAMPLES[kind]()
    assert type(example) is kind
    assert str(example)
    assert inspect.getdoc(kind)


@pytest.mark.parametrize("kind", defined, ids=lambda kind: kind.__name__)
def test_every_error_but_those_that_control_bodies_has_the_one_base(kind: type[BaseException]) -> None:
    assert issubclass(kind, TaskEngineError) != (kind in CONTROL)


@pytest.mark.parametrize("kind", sorted(CONTROL, key=str))
def test_what_controls_a_body_cannot_be_swallowed_by_except_exception(kind: type[BaseException]) -> None:
    assert issubclass(kind, BaseException)
    assert not issubclass(kind, Exception)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.InvalidOption, ValueError),
        (errors.InvalidArguments, TypeError),
        (errors.InvalidResult, TypeError),
        (errors.UnknownTask, LookupError),
        (errors.TaskNotFound, LookupError),
        (errors.TaskExpired, errors.TaskNotFound),
        (errors.StoreFull, errors.StoreUnavailable),
        (errors.StoreClosed, errors.StoreError),
    ],
)
def test_errors_can_be_caught_by_the_kind_that_python_users_expect(kind: type, base: type) -> None:
    assert issubclass(kind, base)


def test_an_unknown_task_names_what_is_known() -> None:
    assert "resize" in str(errors.UnknownTask("x", ("resize",)))
    assert "known: none" in str(errors.UnknownTask("x"))


def test_an_expired_task_keeps_its_id_and_says_that_it_existed() -> None:
    error = errors.TaskExpired("t-1")
    assert error.task_id == "t-1"
    assert "existed" in str(error)


def test_a_conflict_of_a_chosen_id_says_so() -> None:
    error = errors.IdempotencyConflict(key="a", task_id="a", what="id")
    assert str(error).startswith("id 'a' belongs to task a")


def test_a_failed_attempt_carries_its_fields() -> None:
    error = errors.AttemptFailed(
        "503", kind="http_status", retryable=True, retry_after=2.0, type_name="HTTP 503", detail={"status": 503}
    )
    assert (error.message, error.kind, error.retryable, error.retry_after) == ("503", "http_status", True, 2.0)
    assert (error.type_name, error.detail) == ("HTTP 503", {"status": 503})


def test_a_downstream_error_is_a_retryable_connection_failure_unless_said_otherwise() -> None:
    error = errors.DownstreamError("reset")
    assert (error.kind, error.retryable) == ("connection", True)


def test_a_stop_keeps_its_reason() -> None:
    assert errors.TaskStopped("tea").reason == "tea"
    assert str(errors.TaskStopped()) == "stop requested"


def test_a_snooze_keeps_its_delay_and_its_reason() -> None:
    error = errors.TaskSnoozed(2.5, "not yet")
    assert (error.delay, error.reason, str(error)) == (2.5, "not yet", "snoozed for 2.5 s")


def test_a_discard_keeps_its_reason() -> None:
    error = errors.TaskDiscarded("the user is gone")
    assert (error.reason, str(error)) == ("the user is gone", "the user is gone")
