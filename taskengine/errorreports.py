"""What a body raised, as data: in the process that raised it, and never failing whatever the exception is like."""

from collections.abc import Mapping, Sequence
from typing import Any

from taskengine.core.errors import AttemptFailed, DownstreamError
from taskengine.core.errortext import ErrorText, describe_exception, storable
from taskengine.core.model import Failure, FailureKind
from taskengine.core.retry import ErrorNames, error_names
from taskengine.ports import ErrorReport

_KINDS = frozenset(kind.value for kind in FailureKind)


def report_of(error: BaseException, attempt: int, limit: int) -> ErrorReport:
    """Describe an exception.

    Args:
        attempt: number of the attempt that raised it.
        limit: bytes of its message and of its traceback.
    """
    # type() and not isinstance: the latter asks the object for its __class__, which it may refuse.
    kind = type(error)
    verdict, retry_after = None, None
    if issubclass(kind, AttemptFailed | DownstreamError):
        verdict = read_safely(error, "retryable", bool)
        retry_after = read_safely(error, "retry_after", float)
    return ErrorReport(
        failure=_failure_of(error, attempt, limit),
        leaves=_leaves_of(error, limit),
        retryable=verdict,
        retry_after=retry_after,
    )


def _leaves_of(error: BaseException, limit: int) -> Sequence[ErrorNames]:
    try:
        return describe_exception(error, limit=limit).leaves
    except Exception:
        return (error_names(type(error)),)


def _failure_of(error: BaseException, number: int, limit: int) -> Failure:
    try:
        text = describe_exception(error, limit=limit)
    except Exception:
        text = ErrorText(type=type(error).__name__, message="", traceback="", leaves=())
    kind, type_name, detail = None, None, None
    if issubclass(type(error), AttemptFailed | DownstreamError):
        kind, type_name = read_safely(error, "kind", str), read_safely(error, "type_name", str)
        detail = read_safely(error, "detail", Mapping)
    return Failure(
        kind=FailureKind(kind) if kind in _KINDS else FailureKind.EXCEPTION,
        type=text.type if type_name is None else storable(type_name, limit=1_000),
        message=text.message,
        traceback=text.traceback,
        attempt=number,
        detail=detail,
    )


def read_safely(error: BaseException, name: str, kind: type[Any]) -> Any:
    """Read what a body put on its exception, if it is of the right type."""
    try:
        value = getattr(error, name, None)
        if kind is float:
            is_wait = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            return float(value) if is_wait and value is not None else None
        return value if isinstance(value, kind) else None
    except Exception:
        return None
