"""Which functions may be run, and under which names.

`@task` attaches a definition to a function and registers nothing: the function stays the plain function that it was,
with `bind` and `definition` beside it. A `Registry` belongs to one engine. What is stored is a name and JSON values;
which function that means is decided here and nowhere else.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import ModuleType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from attrs import field, frozen

from taskengine import defaults, importable, records
from taskengine.arguments import CallShape, code_of, short_repr
from taskengine.context import TaskContext
from taskengine.core.errors import DuplicateTask, InvalidArguments, InvalidOption, UnknownTask
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts, to_timeouts
from taskengine.taskoptions import (
    ExecutorName,
    KeepArtifacts,
    Recover,
    TaskOptions,
    check_executor,
    check_name,
    check_word,
    refuse_unknown,
    resolve_attempts,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")
C = ParamSpec("C")


@frozen
class TaskCall(Generic[T_co]):
    """One call to be made later: a name and the arguments, as given. `T` is what the task returns."""

    name: str
    args: tuple[Any, ...] = field(default=(), repr=short_repr)
    kwargs: Mapping[str, Any] = field(factory=dict, repr=short_repr)
    definition: "TaskDefinition | None" = field(default=None, eq=False, repr=False)
    """Of a call made with `bind`; None for one that only knows the name."""

    @staticmethod
    def of(name: str, /, *args: Any, **kwargs: Any) -> "TaskCall[Any]":
        """Call a task by its name, where its function is not at hand; the arguments are checked when it is claimed."""
        return TaskCall(name, args, kwargs)


@frozen(kw_only=True, eq=False)
class TaskDefinition:
    """A function as a task: its name, its signature and how it is to be treated. Make one with `TaskDefinition.of`."""

    name: str
    function: Callable[..., Any]
    takes_context: bool
    """The first parameter is annotated with TaskContext and filled by the engine."""
    is_async: bool
    retry: RetryPolicy | None
    """None: the engine's default policy."""
    max_attempts: int
    """Charged attempts before it fails for good."""
    recover: Recover
    check: Callable[..., object] | None
    """Called at submit with the arguments; raises InvalidOption or InvalidArguments if it does not like them."""
    executor: ExecutorName | None
    """None: `loop` for an async function, the engine's `default_executor` for a sync one."""
    timeouts: Timeouts | None
    callbacks: Mapping[str, str]
    """`success`, `failure` or `settled` -> name of the task that is submitted with the end."""
    keep_artifacts: KeepArtifacts | None
    """None: as the engine has it."""
    shape: CallShape = field(repr=False)
    stored_timeouts: str | None = field(repr=False)
    """The timeouts as rows keep them; encoded once, since every submit needs it."""
    stored_callbacks: str | None = field(repr=False)

    @classmethod
    def of(
        cls, function: Callable[..., Any], *, name: str | None = None, **options: Unpack[TaskOptions]
    ) -> "TaskDefinition":
        """Define a function, sync or async, as a task.

        Args:
            function: what to run; no lambda, generator or class. For a child process: one that can be imported by name.
            name: what it is submitted under; default is its `__name__`.
            **options: see `TaskOptions`.

        Raises:
            InvalidOption: one of these cannot be used; the message names the fix.
        """
        _refuse_unfit(function)
        chosen = _name_of(function) if name is None else check_name("name", name)
        refuse_unknown(options)
        retry, recover, check = options.get("retry"), options.get("recover", "retry"), options.get("check")
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidOption("retry", f"{short_repr(retry)} is not a RetryPolicy")
        check_word("recover", recover, Recover)
        keep_artifacts = options.get("keep_artifacts")
        if keep_artifacts is not None:
            check_word("keep_artifacts", keep_artifacts, KeepArtifacts)
        if check is not None and not callable(check):
            raise InvalidOption("check", f"{short_repr(check)} cannot be called")
        shape = CallShape.of(chosen, function)
        is_async = inspect.iscoroutinefunction(code_of(function))
        executor = options.get("executor")
        if executor is not None:
            check_executor(executor, function, is_async=is_async)
        timeouts, callbacks = to_timeouts(options.get("timeout")), read_callbacks(options)
        return cls(
            name=chosen,
            function=function,
            takes_context=shape.takes_context,
            is_async=is_async,
            retry=retry,
            max_attempts=resolve_attempts(options.get("max_attempts"), retry),
            recover=recover,
            check=check,
            executor=executor,
            timeouts=timeouts,
            callbacks=callbacks,
            keep_artifacts=keep_artifacts,
            shape=shape,
            stored_timeouts=None if timeouts is None else records.dump_timeouts(timeouts),
            stored_callbacks=records.dump_callbacks(callbacks) if callbacks else None,
        )

    def encode_arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limit: int = defaults.MAX_VALUE_BYTES
    ) -> str:
        """Check arguments and encode them as the JSON text `[args, kwargs]`; defaults are not filled in.

        Args:
            limit: largest size of the text, in bytes of UTF-8.

        Raises:
            InvalidArguments: they do not fit the signature or the annotations, or cannot be kept as JSON.
            InvalidOption: the task's own `check` refused them.
        """
        named = kwargs if type(kwargs) is dict else dict(kwargs)
        self.shape.fit(args, named)
        if self.check is not None:
            self.check(*args, **named)
        return self.shape.encode(args, named, limit)

    def decode_arguments(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decode stored arguments by the annotations.

        Raises:
            NotJson: the text is not JSON at all.
            InvalidArguments: it does not fit the signature or the annotations.
        """
        return self.shape.decode(text)

    def encode_result(self, value: Any, *, limit: int = defaults.MAX_VALUE_BYTES) -> str:
        """Encode what the body returned, by the return annotation if there is one.

        Args:
            limit: largest size of the text, in bytes of UTF-8.

        Raises:
            InvalidResult: it cannot be kept as JSON, or is not what the annotation says.
        """
        return self.shape.encode_result(value, limit)

    def decode_result(self, text: str) -> Any:
        """Decode a stored result by the return annotation.

        Raises:
            NotJson: the text is no JSON of that type.
        """
        return self.shape.result.decode(text)


# --- the decorator ----------------------------------------------------------------------------------------------


class TaskFunction(Protocol[C, R_co, P, T_co]):
    """A decorated function: called as before, and with `bind` as a task."""

    @property
    def __name__(self) -> str: ...

    @property
    def definition(self) -> TaskDefinition:
        """The specification that `@task` attached."""

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> R_co:
        """Call the plain function, here and now."""

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[T_co]:
        """Make a call for `Engine.submit`; the TaskContext is left out, the engine passes it."""


class TaskDecorator(Protocol):
    """What `task(...)` with options returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, T]], /
    ) -> TaskFunction[Concatenate[TaskContext, P], Coroutine[Any, Any, T], P, T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, T], P, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[TaskContext, P], T], /
    ) -> TaskFunction[Concatenate[TaskContext, P], T, P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> TaskFunction[P, T, P, T]: ...


@overload
def task(
    function: Callable[Concatenate[TaskContext, P], Coroutine[Any, Any, T]], /
) -> TaskFunction[Concatenate[TaskContext, P], Coroutine[Any, Any, T], P, T]: ...
@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> TaskFunction[P, Coroutine[Any, Any, T], P, T]: ...
@overload
def task(
    function: Callable[Concatenate[TaskContext, P], T], /
) -> TaskFunction[Concatenate[TaskContext, P], T, P, T]: ...
@overload
def task(function: Callable[P, T], /) -> TaskFunction[P, T, P, T]: ...
@overload
def task(*, name: str | None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a task, as `@task` or `@task(name=..., retry=..., ...)`; see `TaskOptions` for the options.

    The function itself is returned, with two attributes more, and nothing is registered: pass it to
    `Engine(..., tasks=[...])`.

    Raises:
        InvalidOption: the function or an option cannot be used; the message names the fix.
    """
    if function is None:
        return functools.partial(_attach, **options)
    return _attach(function, **options)


def _attach(function: Callable[..., Any], /, **options: Any) -> Callable[..., Any]:
    own = _attached(function)
    if own is not None and own.function is function:
        raise InvalidOption("task", f"it is the task {own.name!r} already; register(name, function) gives other names")
    definition = TaskDefinition.of(function, **options)

    def bind(*args: Any, **kwargs: Any) -> TaskCall[Any]:
        return TaskCall(definition.name, args, kwargs, definition)

    if inspect.ismethod(function) or not hasattr(function, "__dict__"):
        raise InvalidOption("task", f"{short_repr(function)} takes no attributes; use register(name, function)")
    vars(function).update(bind=bind, definition=definition)
    return function


def _attached(item: object) -> TaskDefinition | None:
    try:
        definition = getattr(item, "definition", None)
    except Exception:  # a module may hold anything, such as a proxy that is not bound yet
        return None
    return definition if isinstance(definition, TaskDefinition) else None


def _refuse_unfit(function: object) -> None:
    problem = None
    if isinstance(function, TaskCall):
        problem = f"this is a call of {function.name!r}; pass the task itself"
    elif not callable(function):
        problem = f"{short_repr(function)} cannot be called"
    elif isinstance(function, type):
        problem = f"{function.__qualname__} is a class; pass a function"
    elif inspect.isgeneratorfunction(code_of(function)) or inspect.isasyncgenfunction(code_of(function)):
        problem = f"{short_repr(function)} is a generator; a body is called once and returns its result"
    elif getattr(function, "__name__", None) == "<lambda>":
        problem = "a lambda has no name that a stored task or another process could find; use def"
    if problem is not None:
        raise InvalidOption("task", problem)


def _name_of(function: object) -> str:
    name = getattr(function, "__name__", None)
    if name is None:
        raise InvalidOption("name", f"{short_repr(function)} has no __name__; use register(name, function)")
    return check_name("name", name)


def read_callbacks(options: Mapping[str, Any]) -> dict[str, str]:
    """Take `on_success`, `on_failure` and `on_settled` out of some options.

    Returns:
        `success`, `failure` or `settled` -> the name of the task; only what is given.

    Raises:
        InvalidOption: one of them is neither a task that can be called with a TaskEnd, nor a name, nor None.
    """
    return {
        event: _name_callback(option, options[option])
        for event, option in records.CALLBACKS.items()
        if options.get(option) is not None
    }


def _name_callback(option: str, callback: object) -> str:
    if isinstance(callback, str):
        return check_name(option, callback)
    definition = _attached(callback)
    if definition is None or definition.function is not callback:
        raise InvalidOption(option, f"{short_repr(callback)} is neither a task nor the name of one")
    check_callback(option, definition)
    return definition.name


def check_callback(option: str, definition: TaskDefinition) -> None:
    """Check that a task can be called with one TaskEnd.

    Raises:
        InvalidOption: it cannot.
    """
    try:
        definition.shape.fit((None,), {})
    except InvalidArguments as exc:
        raise InvalidOption(option, f"the task {definition.name!r} is called with one TaskEnd: {exc.problem}") from exc


# --- the registry -----------------------------------------------------------------------------------------------


class Registry:
    """The tasks that one engine can run, by name. Not for use from several threads at once while it is filled."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._definitions: dict[str, TaskDefinition] = {}
        self._names: tuple[str, ...] = ()
        for item in items:
            self.add(item)

    @property
    def names(self) -> tuple[str, ...]:
        """Names that can be run, sorted."""
        return self._names

    def __contains__(self, name: object) -> bool:
        return name in self._definitions

    def __len__(self) -> int:
        return len(self._definitions)

    def add(self, item: "Callable[..., Any] | TaskDefinition") -> TaskDefinition:
        """Take a decorated task, a definition, or a plain function under its own name.

        Raises:
            DuplicateTask: another function, or the same with other options, has the name.
            InvalidOption: it cannot be a task; the message names the fix.
        """
        return self._put(item if isinstance(item, TaskDefinition) else _define(item))

    def register(self, name: str, function: Callable[..., Any], **options: Unpack[TaskOptions]) -> TaskDefinition:
        """Take a function under a name; see `TaskOptions`. A decorated task is taken as the function it is.

        Raises:
            DuplicateTask: another function, or the same with other options, has the name.
            InvalidOption: the function or an option cannot be used.
        """
        return self._put(TaskDefinition.of(function, name=name, **options))

    def register_module(self, module: ModuleType, engine: Any) -> tuple[TaskDefinition, ...]:
        """Take the decorated tasks among a module's attributes, then call its `register(engine)` if it has one.

        Returns:
            The definitions found as attributes; what the hook registers is not among them.
        """
        found = tuple(self.add(item) for item in list(vars(module).values()) if _is_task(item))
        hook = vars(module).get("register")
        if callable(hook) and not _is_task(hook):
            hook(engine)
        return found

    def get(self, name: str) -> TaskDefinition:
        """Look up a name.

        Raises:
            UnknownTask: it is not registered here; the message names the nearest one.
        """
        try:
            return self._definitions[name]
        except (KeyError, TypeError):
            raise UnknownTask(name, self._names) from None

    def _put(self, definition: TaskDefinition) -> TaskDefinition:
        known = self._definitions.get(definition.name)
        if known is None:
            if definition.executor == "process":
                importable.check_resolves(definition.function)
            self._definitions[definition.name] = definition
            self._names = tuple(sorted(self._definitions))
            return definition
        if _options_of(known) != _options_of(definition):
            raise DuplicateTask(definition.name)
        return known


def _is_task(item: object) -> bool:
    definition = _attached(item)
    return definition is not None and definition.function is item


def _define(item: Callable[..., Any]) -> TaskDefinition:
    own = _attached(item)
    if own is None:
        return TaskDefinition.of(item)
    if own.function is not item:
        raise InvalidOption(
            "tasks", f"{short_repr(item)} wraps the task {own.name!r}; put @task above the other decorators"
        )
    return own


_OPTION_FIELDS = (
    "function",
    "retry",
    "max_attempts",
    "recover",
    "check",
    "executor",
    "timeouts",
    "callbacks",
    "keep_artifacts",
)


def _options_of(definition: TaskDefinition) -> tuple[Any, ...]:
    return tuple(getattr(definition, name) for name in _OPTION_FIELDS)
