"""Tasks by name: the decorator, the check of arguments and results, the registry."""

import enum
import functools
import inspect
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskengine.arguments import short_repr
from taskengine.codec import NotJson, load
from taskengine.context import TaskContext
from taskengine.core.errors import DuplicateTask, InvalidArguments, InvalidOption, InvalidResult, UnknownTask
from taskengine.core.lifecycle import State
from taskengine.core.model import Failure, FailureKind, TaskEnd, TaskRow
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts
from taskengine.records import callback_arguments, dump_failure, load_callbacks, load_timeouts
from taskengine.registry import Registry, TaskCall, TaskDefinition, check_callback, task
from taskengine.signals import Signals, Voice

if TYPE_CHECKING:
    from decimal import Decimal as Hidden

    import taskengine.context as unseen

T = TypeVar("T")
NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Colour(enum.StrEnum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: int


@attrs.frozen
class Point:
    x: int
    y: float = 0.0


@attrs.frozen
class Sharper(Point):
    z: int = 0


@attrs.frozen(eq=False)
class Incomparable:
    x: int


@dataclass
class Job:
    at: datetime
    by: Point


def make_context() -> TaskContext:
    return TaskContext(
        task_id="t",
        name="n",
        attempt=1,
        metadata={},
        idempotency_key="t",
        signals=Signals(),
        voice=cast("Voice", None),  # nobody speaks here
    )


def define(function: Callable[..., Any], **options: Any) -> TaskDefinition:
    return TaskDefinition.of(function, **options)


def round_trip(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    definition = define(function)
    return definition.decode_arguments(definition.encode_arguments(args, kwargs))


# --- the decorator ----------------------------------------------------------------------------------------------


@task
async def resize(ctx: TaskContext, path: str, *, width: int = 800) -> str:
    """Resize a picture."""
    return f"{path} at {width} in {ctx.task_id}"


@task(name="add.up", retry=RetryPolicy(max_attempts=5), recover="lost")
def add(left: int, right: int = 1) -> int:
    return left + right


def plain(value, *, more=None):  # type: ignore[no-untyped-def]  # what a task without annotations does
    return value


def test_a_decorated_function_is_still_the_function() -> None:
    assert isinstance(cast("object", resize), FunctionType)
    assert resize.__name__ == "resize"
    assert inspect.getdoc(resize) == "Resize a picture."
    assert inspect.iscoroutinefunction(resize)
    assert not inspect.iscoroutinefunction(add)
    assert add(2, 3) == 5


def test_a_decorated_async_function_is_called_as_before() -> None:
    coroutine = resize(make_context(), "cat.png", width=3)
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    assert end.value.value == "cat.png at 3 in t"


def test_bind_makes_a_call_without_the_context() -> None:
    call = resize.bind("cat.png", width=640)
    assert (call.name, call.args, dict(call.kwargs)) == ("resize", ("cat.png",), {"width": 640})
    assert call.definition is resize.definition


def test_calls_compare_by_name_and_arguments_alone() -> None:
    assert resize.bind("a", width=1) == TaskCall.of("resize", "a", width=1)
    assert resize.bind("a") != resize.bind("b")
    assert TaskCall.of("x").definition is None


def test_a_call_can_have_arguments_of_any_name() -> None:
    assert dict(TaskCall.of("x", name="n", args=1, definition=2).kwargs) == {"name": "n", "args": 1, "definition": 2}


class BadRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")


def test_the_repr_of_a_call_is_bounded_and_never_fails() -> None:
    assert repr(TaskCall.of("x", 1, a="b")) == "TaskCall(name='x', args=(1,), kwargs={'a': 'b'})"
    assert len(repr(TaskCall.of("x", "y" * 10**6, list(range(10**5))))) < 1000
    assert "BadRepr" in repr(TaskCall.of("x", BadRepr(), a=BadRepr()))
    cycle: list[Any] = []
    cycle.append(cycle)
    assert len(repr(TaskCall.of("x", cycle))) < 1000


def test_a_call_is_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        resize.bind("a").name = "b"  # type: ignore[misc]


def test_options_of_the_decorator_are_in_the_definition() -> None:
    definition = add.definition
    assert (definition.name, definition.max_attempts, definition.recover) == ("add.up", 5, "lost")
    assert definition.retry == RetryPolicy(max_attempts=5)
    assert not definition.is_async
    assert not definition.takes_context


def test_defaults_of_a_definition_are_the_engines() -> None:
    definition = resize.definition
    assert (definition.name, definition.max_attempts, definition.recover) == ("resize", 3, "retry")
    assert (definition.retry, definition.check) == (None, None)
    assert (definition.executor, definition.timeouts, definition.keep_artifacts) == (None, None, None)
    assert (definition.callbacks, definition.stored_timeouts, definition.stored_callbacks) == ({}, None, None)
    assert definition.is_async
    assert definition.takes_context


def test_explicit_max_attempts_win_over_those_of_the_policy() -> None:
    assert define(plain, max_attempts=2, retry=RetryPolicy(max_attempts=7)).max_attempts == 2
    assert define(plain, retry=RetryPolicy()).max_attempts == 3


def test_decorating_a_task_again_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"it is the task 'add\.up' already"):
        task(name="other")(add)


def test_a_wrapper_of_a_task_can_become_a_task_of_its_own() -> None:
    @task(name="outer")
    @functools.wraps(add)
    def outer(left: int, right: int = 1) -> int:
        return add(left, right) + 1

    assert outer.definition.name == "outer"
    assert outer.definition.function is outer
    assert add.definition.name == "add.up"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 1_000_001),
        ("max_attempts", True),
        ("max_attempts", 1.0),
        ("recover", "ignore"),
        ("recover", None),
        ("recover", []),
        ("executor", "fiber"),
        ("executor", ""),
        ("executor", ["thread"]),
        ("executor", "loop"),
        ("timeout", 0),
        ("timeout", True),
        ("timeout", "5"),
        ("timeout", math.inf),
        ("on_success", ""),
        ("on_failure", "a b"),
        ("on_settled", 3),
        ("on_success", math.sqrt),
        ("on_success", TaskCall.of("resize")),
        ("keep_artifacts", "sometimes"),
        ("keep_artifacts", True),
        ("priority", 1),
        ("retry", 3),
        ("check", 3),
        ("name", ""),
        ("name", "a b"),
        ("name", "a\n"),
        ("name", "größe"),
        ("name", "x" * 201),
        ("name", "a/b"),
        ("name", 3),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        define(plain, **{option: value})
    assert refusal.value.option == option


@pytest.mark.parametrize("name", ["a", "x" * 200, "mod.fn", "a:b-c_1.2"])
def test_names_of_the_allowed_characters_are_taken(name: str) -> None:
    assert define(plain, name=name).name == name


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class WithMethod:
    async def method(self, value: int) -> int:
        return value

    async def __call__(self, ctx: TaskContext, value: Point) -> int:
        return value.x


class Generating:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (lambda: 1, "a lambda has no name"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (functools.partial(generator), "is a generator"),
        (Generating(), "is a generator"),
        (WithMethod, "is a class"),
        (3, "cannot be called"),
        ("resize", "cannot be called"),
        (TaskCall.of("resize"), "a call of 'resize'; pass the task itself"),
        (BadRepr(), "cannot be called"),
    ],
    ids=short_repr,
)
def test_what_cannot_be_a_task_is_refused_with_the_reason(thing: Any, words: str) -> None:
    for use in (task, Registry().add, functools.partial(Registry().register, "name")):
        with pytest.raises(InvalidOption, match=words):
            use(thing)


def test_what_takes_no_attributes_is_pointed_to_register() -> None:
    with pytest.raises(InvalidOption, match=r"use register\(name, function\)"):
        task(WithMethod().method)
    with pytest.raises(InvalidOption, match=r"use register\(name, function\)"):
        task(len)


def test_what_has_no_name_or_no_signature_is_told_so() -> None:
    with pytest.raises(InvalidOption, match="has no __name__"):
        Registry().add(functools.partial(add, 1))
    with pytest.raises(InvalidOption, match="has no signature"):
        Registry().register("getattr", getattr)


# --- where it runs, how long, and what follows ------------------------------------------------------------------


async def runs_async() -> None: ...


@pytest.mark.parametrize(
    ("function", "executor"),
    [
        (plain, "thread"),
        (plain, "inline"),
        (plain, "process"),
        (runs_async, "loop"),
        (runs_async, "process"),
        (plain, None),
        (runs_async, None),
    ],
)
def test_a_function_names_an_executor_that_can_run_it(function: Callable[..., Any], executor: Any) -> None:
    assert define(function, executor=executor).executor == executor


@pytest.mark.parametrize(
    ("function", "executor", "words"),
    [
        (plain, "loop", "'loop' is for async functions"),
        (runs_async, "thread", "'thread' is for sync functions"),
        (runs_async, "inline", "'inline' is for sync functions"),
        (functools.partial(plain, 1), "process", "partial"),
        (WithMethod(), "process", ""),
    ],
    ids=short_repr,
)
def test_an_executor_that_cannot_run_the_function_is_refused(
    function: Callable[..., Any], executor: Any, words: str
) -> None:
    with pytest.raises(InvalidOption, match=f"^executor: .*{words}"):
        define(function, name="n", executor=executor)


def test_a_local_function_cannot_go_to_a_child_process() -> None:
    def local() -> None: ...

    with pytest.raises(InvalidOption, match=r"^executor: "):
        task(executor="process")(local)


@task(executor="process")
def heavy(value: int) -> int:
    return value


def shadowed() -> None: ...


lost_sight_of = shadowed


def shadowed() -> None: ...  # type: ignore[no-redef]  # the name leads here now


def test_the_name_of_a_process_task_must_lead_back_to_it_at_the_registration() -> None:
    assert Registry([heavy, heavy]).get("heavy").executor == "process"
    definition = define(lost_sight_of, executor="process")
    with pytest.raises(InvalidOption, match=r"^executor: "):
        Registry([definition])
    assert Registry([define(lost_sight_of, executor="thread")]).names == ("shadowed",)


def test_a_timeout_given_as_a_number_is_that_of_each_attempt() -> None:
    definition = define(plain, timeout=5)
    assert definition.timeouts == Timeouts(attempt=5)
    assert definition.stored_timeouts is not None
    assert load_timeouts(definition.stored_timeouts) == Timeouts(attempt=5)


def test_timeouts_are_taken_as_they_are() -> None:
    timeouts = Timeouts(start=1, idle=2, final="idle")
    assert define(plain, timeout=timeouts).timeouts is timeouts
    assert define(plain, timeout=Timeouts()).stored_timeouts == "{}"


@pytest.mark.parametrize("keep", ["always", "failed", "never"])
def test_artifacts_are_kept_as_told(keep: Any) -> None:
    assert define(plain, keep_artifacts=keep).keep_artifacts == keep


@task
def on_end(end: TaskEnd) -> str:
    return f"{end.name} {end.state}"


@task(name="told")
async def on_end_with_context(ctx: TaskContext, end: TaskEnd) -> None: ...


def test_callbacks_are_kept_as_names() -> None:
    definition = define(plain, on_success=on_end, on_failure=on_end_with_context, on_settled="else.where")
    assert definition.callbacks == {"success": "on_end", "failure": "told", "settled": "else.where"}
    assert definition.stored_callbacks is not None
    assert load_callbacks(definition.stored_callbacks) == definition.callbacks
    assert define(plain, on_failure="x", on_success=None).callbacks == {"failure": "x"}


@task
def takes_nothing() -> None: ...


@task
def takes_two(one: int, two: int) -> None: ...


@pytest.mark.parametrize("callback", [takes_nothing, takes_two], ids=short_repr)
def test_a_callback_that_cannot_be_called_with_one_end_is_refused(callback: Any) -> None:
    with pytest.raises(InvalidOption, match=r"^on_settled: the task .* is called with one TaskEnd: "):
        define(plain, on_settled=callback)
    with pytest.raises(InvalidOption, match=r"^on_success: "):
        check_callback("on_success", callback.definition)


def test_a_wrapper_of_a_task_is_no_callback() -> None:
    with pytest.raises(InvalidOption, match=r"^on_success: .* is neither a task nor the name of one"):
        define(plain, on_success=functools.wraps(on_end)(lambda end: None))


def told_as_dict(end: dict[str, Any]) -> None: ...


def told_as_bare_dict(end: dict) -> None: ...  # type: ignore[type-arg]


def told_untyped(end):  # type: ignore[no-untyped-def]
    ...


FAILURE = Failure(kind=FailureKind.EXCEPTION, type="ValueError", message="x", attempt=2, detail={"a": [1]})
ROW = TaskRow(1, "t", "n", "[[],{}]", State.RUNNING, attempt=2, label="l", metadata='{"k":[1]}')


@pytest.mark.parametrize("function", [on_end, on_end_with_context], ids=short_repr)
def test_a_callback_gets_the_end_as_its_annotation_says(function: Any) -> None:
    decode = function.definition.decode_arguments
    succeeded = callback_arguments(ROW, State.SUCCEEDED, '{"a":[1,2.5]}', None)
    assert decode(succeeded) == (
        (
            TaskEnd(
                id="t", name="n", state="succeeded", attempt=2, value={"a": [1, 2.5]}, label="l", metadata={"k": [1]}
            ),
        ),
        {},
    )
    (failed,), _ = decode(callback_arguments(ROW, State.FAILED, None, dump_failure(FAILURE)))
    assert type(failed) is TaskEnd
    assert failed.failure is not None
    assert (failed.value, failed.failure["kind"], failed.failure["detail"]) == (None, "exception", {"a": [1]})


@pytest.mark.parametrize("function", [told_as_dict, told_as_bare_dict, told_untyped], ids=short_repr)
def test_a_callback_that_wants_a_dict_gets_one(function: Any) -> None:
    (end,), _ = define(function).decode_arguments(callback_arguments(ROW, State.LOST, None, None))
    assert type(end) is dict
    assert (end["id"], end["state"], end["value"], end["failure"]) == ("t", "lost", None, None)


# --- context and async ------------------------------------------------------------------------------------------


def hidden(ctx: "unseen.TaskContext", value: int, other: "Hidden") -> None: ...


def quoted(ctx: "TaskContext", value: "int") -> "str":
    return ctx.task_id * value


def annotated(ctx: Annotated[TaskContext, "note"]) -> None: ...


def second(value: int, ctx: TaskContext) -> None: ...


def undecided(ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (hidden, True),
        (quoted, True),
        (annotated, True),
        (WithMethod(), True),
        (functools.partial(quoted, value=1), True),
        (second, False),
        (undecided, False),
        (plain, False),
        (make_context, False),
    ],
)
def test_the_context_is_found_by_the_annotation_of_the_first_parameter(
    function: Callable[..., Any], takes: bool
) -> None:
    assert define(function, name="f").takes_context is takes


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (resize, True),
        (functools.partial(functools.partial(resize), width=1), True),
        (WithMethod(), True),
        (WithMethod().method, True),
        (add, False),
        (functools.partial(add, 1), False),
    ],
)
def test_async_bodies_are_told_from_sync_ones(function: Callable[..., Any], is_async: bool) -> None:
    assert define(function, name="f").is_async is is_async


def test_quoted_annotations_are_resolved_one_by_one() -> None:
    assert round_trip(hidden, 1, [2]) == ((1, [2]), {})
    with pytest.raises(InvalidArguments, match="Expected `int`, got `str`"):
        round_trip(hidden, "1", 2)
    with pytest.raises(InvalidArguments, match="its annotation 'Hidden' cannot be evaluated"):
        round_trip(hidden, 1, NOW)


class Delegating:
    __call__ = WithMethod()


def test_a_callable_without_readable_annotations_counts_as_untyped() -> None:
    assert not define(Delegating(), name="f").takes_context


# --- the signature ----------------------------------------------------------------------------------------------


def every_kind(a: Any, /, b: Any, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **others: Any) -> None: ...


def no_extras(a: Any, /, b: Any, c: Any = 3, *, d: Any, e: Any = 5) -> None: ...


names = st.sampled_from(["a", "b", "c", "d", "e", "f", "self", "args"])


@given(st.lists(st.integers(), max_size=5), st.dictionaries(names, st.integers(), max_size=5))
def test_arguments_fit_exactly_if_python_could_make_the_call(args: list[int], kwargs: dict[str, int]) -> None:
    for function in (every_kind, no_extras, plain, add):
        definition = define(function)
        try:
            function(*args, **kwargs)
            fits = True
        except TypeError:
            fits = False
        if fits:
            text = definition.encode_arguments(tuple(args), kwargs)
            assert load(text) == [args, kwargs]
            assert definition.decode_arguments(text) == (tuple(args), kwargs)
        else:
            with pytest.raises(InvalidArguments):
                definition.encode_arguments(tuple(args), kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'path'"),
        (("a", "b"), {}, "too many positional arguments"),
        (("a",), {"path": "b"}, "multiple values for argument 'path'"),
        (("a",), {"widht": 1}, "unexpected keyword argument 'widht'"),
        (("a",), {"ctx": 1}, "unexpected keyword argument 'ctx'"),
    ],
)
def test_a_call_that_does_not_fit_names_the_mistake_and_the_signature(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArguments, match=words) as refusal:
        resize.definition.encode_arguments(args, kwargs)
    assert refusal.value.name == "resize"
    assert "resize(path: str, *, width: int = 800)" in str(refusal.value)


def test_the_context_cannot_be_given_by_name_where_any_name_is_taken() -> None:
    def open_to_all(ctx: TaskContext, **values: Any) -> None: ...

    assert round_trip(open_to_all, a=1) == ((), {"a": 1})
    with pytest.raises(InvalidArguments, match="passed by the engine"):
        round_trip(open_to_all, ctx=1)

    def by_position(ctx: TaskContext, /, **values: Any) -> None: ...

    assert round_trip(by_position, ctx=1) == ((), {"ctx": 1})


def test_a_default_whose_repr_fails_does_not_hide_the_mistake() -> None:
    def odd(a: Any, b: Any = BadRepr()) -> None: ...  # noqa: B008

    with pytest.raises(InvalidArguments, match=r"missing a required argument.*odd\(a, b\)"):
        round_trip(odd)


def test_defaults_are_not_stored() -> None:
    assert add.definition.encode_arguments((1,), {}) == "[[1],{}]"


def test_the_same_arguments_give_the_same_text() -> None:
    definition = define(every_kind)
    first = definition.encode_arguments((1, {"x": 1, "y": 2}), {"d": 1, "z": 2, "y": 3})
    assert first == definition.encode_arguments((1, {"y": 2, "x": 1}), {"y": 3, "z": 2, "d": 1})


def test_named_arguments_can_be_any_mapping() -> None:
    assert add.definition.encode_arguments((1,), MappingProxyType({"right": 2})) == '[[1],{"right":2}]'


# --- values by annotation ---------------------------------------------------------------------------------------


def typed(
    count: int = 0,
    ratio: float = 0.0,
    at: datetime = NOW,
    point: Point | None = None,
    ids: "set[uuid.UUID]" = frozenset(),  # type: ignore[assignment]
    price: Decimal = Decimal(0),
    raw: bytes = b"",
    colour: Colour = Colour.RED,
    pair: Pair | None = None,
    by_number: dict[int, Point] = {},  # noqa: B006
    job: Job | None = None,
    numbers: Sequence[int] = (),
    anything: Mapping[str, Any] = {},
    exact: tuple[int, str] = (0, ""),
    text: str = "",
    flag: bool = False,
    many: list[Point] = [],  # noqa: B006
) -> None: ...


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", 3),
        ("ratio", 1.5),
        ("ratio", 3),
        ("at", NOW),
        ("point", Point(1, 2.5)),
        ("point", None),
        ("ids", {uuid.UUID(int=1), uuid.UUID(int=2)}),
        ("price", Decimal("1.10")),
        ("raw", b"\x00\xff"),
        ("colour", Colour.RED),
        ("pair", Pair(1, 2)),
        ("by_number", {1: Point(1), 20: Point(2), 3: Point(3)}),
        ("job", Job(NOW, Point(1))),
        ("numbers", [1, 2]),
        ("anything", {"a": [1, {"b": None}]}),
        ("exact", (1, "a")),
        ("text", "\x00"),
        ("text", ""),
        ("flag", False),
        ("many", [Point(1), Point(2)]),
    ],
)
def test_a_value_comes_back_equal_and_of_the_annotated_type(name: str, value: Any) -> None:
    args, kwargs = round_trip(typed, **{name: value})
    assert args == ()
    assert kwargs == {name: value}
    assert type(kwargs[name]) is type(value) or name in ("ratio", "numbers")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", "3", "Expected `int`, got `str`"),
        ("count", True, "Expected `int`, got `bool`"),
        ("count", 3.5, "Expected `int`, got `float`"),
        ("count", None, "Expected `int`, got `null`"),
        ("count", 10**5000, "more than 4000 digits"),
        ("ratio", "1.5", "Expected `float`, got `str`"),
        ("ratio", math.nan, "is nan"),
        ("ratio", True, "Expected `float`, got `bool`"),
        ("at", "2026-11-30T00:00:00Z", "not equal"),
        ("at", 3, "Expected `datetime`, got `int`"),
        ("point", {"x": 1}, "not equal"),
        ("point", Sharper(1), "not equal"),
        ("point", Point("1"), r"Expected `int`, got `str` - at `\$\.x`"),  # type: ignore[arg-type]
        ("point", Point(1, math.inf), r"\$\.y is inf"),
        ("price", "1.10", "not equal"),
        ("raw", "AA==", "not equal"),
        ("colour", "blue", "Invalid enum value"),
        ("ids", ["x"], "Invalid UUID"),
        ("by_number", {"x": Point(1)}, "Expected `int`, got `str`"),
        ("anything", {"at": NOW}, "not equal"),
        ("anything", {"at": math.nan}, r"\$\.at is nan"),
        ("anything", {1: 2}, "not equal"),
        ("text", "\ud800", "lone surrogate"),
        ("text", b"a", "not equal"),
        ("flag", 1, "Expected `bool`, got `int`"),
        ("many", [Point(1), object()], r"\$\[1\] is a object"),
        ("numbers", [1, "2"], r"Expected `int`, got `str` - at `\$\[1\]`"),
        ("exact", (1, "a", 2), "length 2"),
    ],
    ids=short_repr,
)
def test_a_value_that_would_change_or_does_not_belong_is_refused_at_submit(name: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidArguments, match=f"(?s)parameter '{name}'.*{words}"):
        define(typed).encode_arguments((), {name: value})


def test_each_parameter_is_converted_by_its_own_annotation() -> None:
    def mixed(at: datetime, anything: Any, count: int) -> None: ...

    assert round_trip(mixed, NOW, {"a": 1}, count=3) == ((NOW, {"a": 1}), {"count": 3})


def test_a_tuple_is_accepted_for_a_list_and_the_other_way_round() -> None:
    assert round_trip(typed, numbers=(1, 2)) == ((), {"numbers": [1, 2]})
    assert round_trip(typed, exact=[1, "a"]) == ((), {"exact": (1, "a")})
    assert round_trip(typed, anything={"a": (1, (2,))}) == ((), {"anything": {"a": [1, [2]]}})


def test_a_class_without_equality_is_refused_rather_than_trusted() -> None:
    def use(value: Incomparable) -> None: ...

    with pytest.raises(InvalidArguments, match="not equal"):
        round_trip(use, Incomparable(1))


def test_an_equality_that_raises_counts_as_not_equal() -> None:
    @attrs.frozen(eq=False)
    class Touchy:
        x: int

        def __eq__(self, other: object) -> bool:
            raise ValueError("don't touch")

        __hash__ = None  # type: ignore[assignment]

    def use(value: Touchy) -> None: ...

    with pytest.raises(InvalidArguments, match="not equal"):
        round_trip(use, Touchy(1))


@pytest.mark.parametrize("value", [None, 0, "", [], {}, {"a": [1.5, True]}, "x\x00y"])
def test_plain_values_need_no_annotation(value: Any) -> None:
    assert round_trip(plain, value, more=value) == ((value,), {"more": value})


def test_tuples_become_lists_without_an_annotation() -> None:
    assert round_trip(plain, (1, (2,))) == (([1, [2]],), {})


@pytest.mark.parametrize("value", [NOW, Point(1), {1, 2}, b"x", Decimal(1), Colour.RED, {1: 2}, math.nan, object()])
def test_other_values_without_an_annotation_are_refused_with_the_fix(value: Any) -> None:
    with pytest.raises(InvalidArguments, match=r"parameter 'more': .*annotate it with the type, or pass plain JSON"):
        define(plain).encode_arguments((1,), {"more": value})


def unusual(
    path: Path = Path(),
    either: str | datetime = "",
    variable: T = None,  # type: ignore[assignment]
    thing: object = None,
    locks: list[complex] | None = None,
) -> T:
    return variable


@pytest.mark.parametrize("name", ["path", "either", "variable", "thing", "locks"])
def test_an_annotation_that_json_cannot_follow_counts_as_none(name: str) -> None:
    assert round_trip(unusual, **{name: {"a": 1}}) == ((), {name: {"a": 1}})
    with pytest.raises(InvalidArguments, match=f"parameter '{name}': .*JSON cannot be decoded as"):
        round_trip(unusual, **{name: NOW})


def test_extra_arguments_are_checked_by_their_annotation_too() -> None:
    def many(*points: Point, **times: datetime) -> None: ...

    assert round_trip(many, Point(1), Point(2), a=NOW) == ((Point(1), Point(2)), {"a": NOW})
    with pytest.raises(InvalidArguments, match=r"parameter 'points'"):
        round_trip(many, Point(1), 3)
    with pytest.raises(InvalidArguments, match=r"parameter 'times'"):
        round_trip(many, a=3)


def test_arguments_over_the_limit_are_refused() -> None:
    with pytest.raises(InvalidArguments, match="limit is 1,048,576"):
        define(plain).encode_arguments(("x" * 2**20,), {})
    with pytest.raises(InvalidArguments, match="limit is 1,048,576"):
        define(plain).encode_arguments(("x" * 2**19,), {"more": "x" * 2**19})


def test_the_tasks_own_check_sees_the_arguments_before_they_are_stored() -> None:
    seen: list[Any] = []

    def check(left: int, right: int = 1) -> None:
        seen.append((left, right))
        if left < 0:
            raise InvalidOption("left", "is negative")

    definition = define(add, check=check)
    assert definition.encode_arguments((1,), {"right": 2}) == '[[1],{"right":2}]'
    with pytest.raises(InvalidOption, match="is negative"):
        definition.encode_arguments((-1,), {})
    with pytest.raises(InvalidArguments):
        definition.encode_arguments((), {})
    assert seen == [(1, 2), (-1, 1)]


@pytest.mark.parametrize("text", ["", "{", "nan"])
def test_stored_text_that_is_no_json_is_told_from_arguments_that_do_not_fit(text: str) -> None:
    with pytest.raises(NotJson):
        add.definition.decode_arguments(text)


@pytest.mark.parametrize(
    "text", ["3", "[]", "[1,{}]", "[[1],[]]", "[[1],{},3]", "[[],{}]", "[[1,2,3],{}]", '[[1],{"x":1}]', '[["1"],{}]']
)
def test_stored_arguments_that_do_not_fit_are_refused(text: str) -> None:
    with pytest.raises(InvalidArguments):
        add.definition.decode_arguments(text)


def test_stored_text_is_never_evaluated() -> None:
    assert define(plain).decode_arguments("[[\"__import__('os')\"],{}]") == (("__import__('os')",), {})


# --- results ----------------------------------------------------------------------------------------------------


def returning(annotation: Any) -> TaskDefinition:
    def function() -> None: ...

    function.__annotations__["return"] = annotation
    return define(function)


@pytest.mark.parametrize("value", [None, 0, "", False, [], {}, 0.0, [None], {"a": 1}])
def test_falsy_and_plain_results_are_results(value: Any) -> None:
    definition = define(plain)
    back = definition.decode_result(definition.encode_result(value))
    assert (type(back), back) == (type(value), value)


def test_none_is_null() -> None:
    assert define(plain).encode_result(None) == returning(None).encode_result(None) == "null"


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "x"),
        (float, 1),
        (Point, Point(1)),
        (list[Point], [Point(1)]),
        (dict[int, str], {1: "a", 10: "b"}),
        (Point | None, None),
        (datetime, NOW),
        (tuple[int, ...], (1, 2)),
        (set[int], {3, 1, 2}),
        (dict[str, Any], {"a": None}),
        (int | str, 3),
        (dict, {"a": 1}),
        (list[Any], [1]),
    ],
)
def test_results_come_back_by_the_return_annotation(annotation: Any, value: Any) -> None:
    definition = returning(annotation)
    assert definition.decode_result(definition.encode_result(value)) == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, 3),
        (None, 3),
        (int, None),
        (Point, {"x": 1}),
        (list[Any], [NOW]),
        (dict[str, Any], {"a": math.nan}),
        (str, "\ud800"),
        (Path, Path()),
        (Any, {1}),
    ],
)
def test_a_result_that_is_not_what_was_promised_is_refused(annotation: Any, value: Any) -> None:
    with pytest.raises(InvalidResult, match="result of task 'function': the returned value"):
        returning(annotation).encode_result(value)


@pytest.mark.parametrize("value", [BadRepr(), (n for n in [1]), lambda: 1, open, 1j, {1, 2}])
def test_results_that_json_cannot_hold_are_refused_without_an_annotation(value: Any) -> None:
    with pytest.raises(InvalidResult):
        define(plain).encode_result(value)


def test_a_tuple_is_a_list_as_an_untyped_result() -> None:
    assert define(plain).encode_result((1, 2)) == "[1,2]"


def test_a_stored_result_of_another_type_is_refused() -> None:
    with pytest.raises(NotJson):
        returning(Point).decode_result("3")
    with pytest.raises(NotJson):
        define(plain).decode_result("{")


# --- the registry -----------------------------------------------------------------------------------------------


def test_a_registry_takes_tasks_definitions_and_plain_functions() -> None:
    registry = Registry([resize, define(add, name="add"), plain])
    assert registry.names == ("add", "plain", "resize")
    assert registry.get("resize") is resize.definition
    assert registry.get("plain").function is plain
    assert "plain" in registry
    assert "other" not in registry
    assert len(registry) == 3


def test_the_same_function_twice_is_fine() -> None:
    registry = Registry([resize, resize, plain, plain])
    assert registry.register("plain", plain) is registry.get("plain")
    assert len(registry) == 2


def test_two_functions_under_one_name_are_refused() -> None:
    with pytest.raises(DuplicateTask, match="two tasks are named 'resize'"):
        Registry([resize]).register("resize", plain)


def test_one_function_with_different_options_under_one_name_is_refused() -> None:
    with pytest.raises(DuplicateTask):
        Registry([plain]).register("plain", plain, max_attempts=1)


@pytest.mark.parametrize(
    "options",
    [
        {"executor": "thread"},
        {"timeout": 1},
        {"on_success": "other"},
        {"on_failure": "other"},
        {"on_settled": "other"},
        {"keep_artifacts": "never"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_option_counts_when_a_name_is_taken_twice(options: Any) -> None:
    with pytest.raises(DuplicateTask):
        Registry([plain]).register("plain", plain, **options)
    registry = Registry()
    assert registry.register("plain", plain, **options) is registry.register("plain", plain, **options)


def test_one_function_may_have_several_names() -> None:
    registry = Registry([add])
    registry.register("plus", add)
    registry.register("one.more", functools.partial(add, 1))
    assert registry.names == ("add.up", "one.more", "plus")
    assert registry.get("one.more").encode_arguments((), {"right": 2}) == '[[],{"right":2}]'


def test_a_method_can_be_registered_twice_by_the_same_object() -> None:
    owner = WithMethod()
    registry = Registry()
    registry.register("method", owner.method)
    registry.register("method", owner.method)
    with pytest.raises(DuplicateTask):
        registry.register("method", WithMethod().method)


def test_registering_nothing_globally() -> None:
    assert Registry().names == ()


@pytest.mark.parametrize("name", ["resise", "RESIZE", "", "nothing like it", "\ud800"])
def test_an_unknown_name_lists_what_is_known(name: str) -> None:
    with pytest.raises(UnknownTask) as refusal:
        Registry([resize]).get(name)
    assert refusal.value.known == ("resize",)
    assert ("did you mean 'resize'?" in str(refusal.value)) == (name == "resise")


def test_a_name_that_is_no_name_is_unknown() -> None:
    with pytest.raises(UnknownTask):
        Registry().get([])  # type: ignore[arg-type]


def test_a_task_below_another_decorator_is_refused_where_it_would_be_bypassed() -> None:
    @functools.wraps(add)
    def wrapper(*args: Any) -> Any:
        return add(*args)

    with pytest.raises(InvalidOption, match="put @task above the other decorators"):
        Registry([wrapper])


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not bound")


def test_a_module_gives_its_tasks_and_calls_its_hook() -> None:
    module = ModuleType("jobs")
    calls: list[Any] = []
    vars(module).update(
        one=resize, again=resize, two=add, helper=plain, number=3, broken=Broken(), register=calls.append
    )
    registry, engine = Registry(), object()
    found = registry.register_module(module, engine)
    assert set(found) == {resize.definition, add.definition}
    assert registry.names == ("add.up", "resize")
    assert calls == [engine]


def test_a_module_whose_task_is_called_register_has_no_hook() -> None:
    @task
    def register(value: int) -> int:
        return value

    module = ModuleType("jobs")
    vars(module)["register"] = register
    registry = Registry()
    registry.register_module(module, object())
    assert registry.names == ("register",)
    registry.register_module(ModuleType("empty"), object())
    assert len(registry) == 1
