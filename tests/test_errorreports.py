"""What a body raised, as data: for every exception that there is, and some that should not be."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from taskengine import AttemptFailed, TaskDiscarded, TaskSnoozed, TaskStopped
from taskengine.actors.attempts import describe_end
from taskengine.actors.messages import Attempt
from taskengine.actors.settings import Settings
from taskengine.core.decide import AttemptOutcome, OutcomeKind
from taskengine.core.errors import DownstreamError
from taskengine.core.errortext import ErrorText
from taskengine.core.lifecycle import State
from taskengine.core.model import FailureKind, TaskRow, Wish, WishKind
from taskengine.core.timeouts import NO_TIMEOUTS
from taskengine.errorreports import report_of
from taskengine.ports import BodyEnd, ErrorReport
from taskengine.records import dump_failure, load_failure

LIMIT = 10_000


def report(error: BaseException, limit: int = LIMIT) -> ErrorReport:
    try:
        raise error
    except BaseException as raised:
        return report_of(raised, 3, limit)


def names(made: ErrorReport) -> list[str]:
    return [leaf[0] for leaf in made.leaves]


def test_an_exception_is_told_with_its_type_message_traceback_and_attempt() -> None:
    made = report(ValueError("no"))
    failure = made.failure
    assert (failure.kind, failure.type, failure.message) == (FailureKind.EXCEPTION, "ValueError", "no")
    assert (failure.attempt, failure.retryable, failure.detail) == (3, False, None)
    assert "test_errorreports.py" in failure.traceback
    assert names(made) == ["builtins.ValueError"]
    assert (made.retryable, made.retry_after) == (None, None), "the policy judges"


@pytest.mark.parametrize(
    ("error", "type_name", "message"),
    [
        (TaskStopped("tea"), "TaskStopped", "tea"),
        (TaskSnoozed(5.0, "not yet"), "TaskSnoozed", "snoozed for 5 s"),
        (TaskDiscarded("too late"), "TaskDiscarded", "too late"),
        (KeyboardInterrupt(), "KeyboardInterrupt", ""),
        (SystemExit(3), "SystemExit", "3"),
        (GeneratorExit(), "GeneratorExit", ""),
        (BaseException("bare"), "BaseException", "bare"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_what_is_no_error_by_its_class_is_told_like_one(error: BaseException, type_name: str, message: str) -> None:
    made = report(error)
    assert (made.failure.kind, made.failure.type, made.failure.message) == (FailureKind.EXCEPTION, type_name, message)
    assert (made.retryable, made.retry_after) == (None, None)
    assert len(made.leaves) == 1


def test_a_group_is_told_by_its_leaves() -> None:
    made = report(BaseExceptionGroup("both", [ValueError("a"), ExceptionGroup("in", [KeyError("b")]), TaskStopped()]))
    assert names(made) == ["builtins.ValueError", "builtins.KeyError", "taskengine.core.errors.TaskStopped"]
    assert "a" in made.failure.message


# --- a body's own verdict ---


def test_a_chosen_failure_is_told_as_the_body_said() -> None:
    made = report(
        AttemptFailed(
            "503", kind="http_status", retryable=True, retry_after=2, type_name="HTTP 503", detail={"status": 503}
        )
    )
    failure = made.failure
    assert (failure.kind, failure.type, failure.message) == (FailureKind.HTTP_STATUS, "HTTP 503", "503")
    assert failure.detail == {"status": 503}
    assert (made.retryable, made.retry_after) == (True, 2.0)
    assert type(made.retry_after) is float


def test_a_failed_exchange_is_a_connection_failure_that_is_retried() -> None:
    made = report(DownstreamError("reset"))
    assert (made.failure.kind, made.failure.type, made.retryable) == (FailureKind.CONNECTION, "DownstreamError", True)
    refused = report(DownstreamError("refused", kind="timeout_attempt", retryable=False))
    assert (refused.failure.kind, refused.retryable) == (FailureKind.TIMEOUT_ATTEMPT, False)


@pytest.mark.parametrize("kind", ["nonsense", "", "EXCEPTION", None, 5, ["exception"], {}])
def test_a_kind_that_is_none_is_an_exception(kind: Any) -> None:
    assert report(AttemptFailed("x", kind=kind)).failure.kind is FailureKind.EXCEPTION


@pytest.mark.parametrize("retryable", [None, 0, 1, "yes", []])
def test_a_verdict_that_is_none_is_left_to_the_policy(retryable: Any) -> None:
    assert report(AttemptFailed("x", retryable=retryable)).retryable is None


@pytest.mark.parametrize("wait", [None, -1, -0.5, float("nan"), True, "5", [], 1j, 10**400])
def test_a_wait_that_is_no_number_of_seconds_is_left_to_the_backoff(wait: Any) -> None:
    assert report(AttemptFailed("x", retry_after=wait)).retry_after is None


def test_a_wait_for_ever_is_passed_on_for_the_cap_to_cut() -> None:
    assert report(AttemptFailed("x", retry_after=float("inf"))).retry_after == float("inf")


@pytest.mark.parametrize("detail", [None, [], "x", 5])
def test_a_detail_that_is_no_mapping_is_dropped(detail: Any) -> None:
    assert report(AttemptFailed("x", detail=detail)).failure.detail is None


@pytest.mark.parametrize("type_name", [None, 5, b"x"])
def test_a_type_name_that_is_no_text_is_the_class_s(type_name: Any) -> None:
    assert report(AttemptFailed("x", type_name=type_name)).failure.type == "AttemptFailed"


def test_a_type_name_is_bounded_and_can_be_stored() -> None:
    made = report(AttemptFailed("x", type_name="\x00\ud800" * 10_000)).failure.type
    assert "\x00" not in made
    assert len(made.encode()) < 4_000


def test_message_and_traceback_keep_to_the_limit() -> None:
    failure = report(ValueError("ä" * 10_000), limit=300).failure
    assert len(failure.message.encode()) < 400
    assert len(failure.traceback.encode()) < 400


# --- misbehaving ones ---


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt("no words")

    __repr__ = __str__


class Liar(AttemptFailed):
    """Says of itself that it is something else, and refuses every question."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return ValueError
        raise RuntimeError(f"{name} is none of your business")


class BadMapping(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def __len__(self) -> int:
        raise RuntimeError("no size")


class EvilNumber(float):
    def __ge__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __float__(self) -> float:
        raise RuntimeError("no number")


def cyclic() -> BaseException:
    error = ValueError("again")
    error.__cause__ = other = KeyError("and again")
    other.__cause__ = error
    return error


def deep() -> BaseException:
    error: Exception = ValueError("core")
    for _ in range(5_000):
        error = ExceptionGroup("shell", [error])
    return error


def nameless() -> BaseException:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(f"{name} is none of your business")

    class Nameless(Exception, metaclass=Meta):
        pass

    return Nameless("x")


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        Liar("x"),
        cyclic(),
        deep(),
        nameless(),
        AttemptFailed("x", retry_after=EvilNumber(5)),
        ExceptionGroup("g", [Unprintable(), Liar("x"), ValueError("a")]),
        ValueError("\x00\ud800"),
        ValueError(*[Unprintable()] * 3),
    ],
    ids=["unprintable", "liar", "cyclic", "deep", "nameless", "evil number", "group", "surrogates", "bad arguments"],
)
def test_a_misbehaving_exception_is_told_as_well_as_can_be(error: BaseException) -> None:
    made = report_of(error, 3, LIMIT)
    assert made.failure.type
    assert made.failure.attempt == 3
    assert "\x00" not in made.failure.message + made.failure.traceback
    (made.failure.type + made.failure.message + made.failure.traceback).encode()
    assert made.leaves


def test_even_if_it_cannot_be_described_at_all_its_class_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: BaseException, *, limit: int) -> ErrorText:
        raise RecursionError("too deep to look")

    monkeypatch.setattr("taskengine.errorreports.describe_exception", refuse)
    made = report_of(AttemptFailed("x", kind="http_status", retryable=False), 3, LIMIT)
    assert (made.failure.type, made.failure.kind, made.retryable) == ("AttemptFailed", FailureKind.HTTP_STATUS, False)
    assert names(made) == ["taskengine.core.errors.AttemptFailed"]


def test_a_liar_is_judged_by_what_it_is_and_not_by_what_it_says() -> None:
    made = report_of(Liar("x"), 3, LIMIT)
    assert (made.failure.type, made.retryable, made.retry_after) == ("Liar", None, None)
    assert names(made)[0].endswith("Liar")


def test_a_detail_that_cannot_be_read_is_stored_as_words_that_say_so() -> None:
    failure = report(AttemptFailed("x", detail=BadMapping())).failure  # type: ignore[arg-type]
    stored = load_failure(dump_failure(failure))
    assert stored.message == "x"
    assert stored.detail is not None
    assert set(stored.detail) == {"unstorable"}


# --- what a body asks for by what it raises ---


def ended(error: BaseException, wish: Wish | None = None) -> AttemptOutcome:
    row = TaskRow(key=1, id="t", name="mail", args="[[],{}]", state=State.RUNNING, attempt=3)
    definition: Any = None  # only a returned value needs it
    return describe_end(BodyEnd(error=error), Attempt(row, wish=wish), definition, NO_TIMEOUTS, 1, Settings())


class Later(TaskSnoozed):
    pass


class Pointless(TaskDiscarded):
    pass


@pytest.mark.parametrize("kind", [TaskSnoozed, Later])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_snooze_is_one_also_out_of_task_groups(kind: type[TaskSnoozed], depth: int) -> None:
    error: BaseException = kind(2.5, "not yet")
    for _ in range(depth):
        error = BaseExceptionGroup("g", [error])
    outcome = ended(error)
    assert (outcome.kind, outcome.retry_after, outcome.reason) == (OutcomeKind.SNOOZED, 2.5, "not yet")


@pytest.mark.parametrize("kind", [TaskDiscarded, Pointless])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_discard_is_one_also_out_of_task_groups(kind: type[TaskDiscarded], depth: int) -> None:
    error: BaseException = kind("too late\x00")
    for _ in range(depth):
        error = BaseExceptionGroup("g", [error])
    outcome = ended(error)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.DISCARDED, "too late\ufffd")


def test_a_snooze_beside_another_error_is_a_failure() -> None:
    outcome = ended(BaseExceptionGroup("g", [TaskSnoozed(1.0), ValueError("no")]))
    assert (outcome.kind, len(outcome.leaves)) == (OutcomeKind.RAISED, 2)


def test_a_snooze_whose_delay_is_no_number_harms_nobody_but_its_attempt() -> None:
    error = TaskSnoozed(1.0)
    error.delay = "soon"  # type: ignore[assignment]
    outcome = ended(error)
    assert outcome.kind in (OutcomeKind.SNOOZED, OutcomeKind.RAISED)
    assert outcome.retry_after is None or type(outcome.retry_after) is float


async def test_a_stop_that_nobody_asked_for_is_the_body_s_own_error() -> None:
    outcome = ended(TaskStopped("tea"))
    assert outcome.kind is OutcomeKind.RAISED
    assert outcome.failure is not None
    assert outcome.failure.type == "TaskStopped"
    paused = ended(TaskStopped("tea"), Wish(kind=WishKind.PAUSE))
    assert paused.failure is not None


@pytest.mark.parametrize("kind", [WishKind.STOP, WishKind.CANCEL])
async def test_leaving_as_asked_is_no_error(kind: WishKind) -> None:
    outcome = ended(TaskStopped("tea"), Wish(kind=kind))
    assert (outcome.kind, outcome.failure) == (OutcomeKind.RAISED, None)
    failed = ended(ValueError("no"), Wish(kind=kind))
    assert failed.failure is not None, "the error is noted"
