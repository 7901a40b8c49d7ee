"""From a call and its options to the row that is stored: everything that can be refused is refused here."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from taskengine import codec, records
from taskengine.arguments import short_repr
from taskengine.core.errors import InvalidArguments, InvalidOption, UnknownTask
from taskengine.core.lifecycle import State
from taskengine.core.model import SubmitOptions, TaskRow, to_micros
from taskengine.core.retry import RetryPolicy
from taskengine.core.timeouts import Timeouts, to_timeouts
from taskengine.registry import Registry, TaskCall, TaskDefinition, check_callback, read_callbacks

MAX_TOKEN = 500
"""Characters of an id, key, label or tag."""

MAX_TAGS = 100
MAX_PRIORITY = 1_000_000
MAX_DELAY = 1e10
"""Seconds; 300 years, which still is an instant that a datetime can name."""

DEFAULT_OPTIONS = SubmitOptions()


class Submissions:
    """Makes rows for one engine."""

    def __init__(
        self,
        *,
        registry: Registry,
        is_client: bool,
        now: Callable[[], int],
        new_id: Callable[[], str],
        max_value_bytes: int,
    ) -> None:
        self._registry = registry
        self._is_client = is_client
        self._now = now
        self._new_id = new_id
        self._max_value_bytes = max_value_bytes

    def row(self, call: TaskCall[object], options: SubmitOptions = DEFAULT_OPTIONS) -> TaskRow:
        """Check a call and its options.

        Raises:
            UnknownTask: this engine has tasks, and none of that name, or of that of a callback.
            InvalidArguments: the arguments do not fit, or are no JSON.
            InvalidOption: an option has a value that cannot be used.
        """
        if not isinstance(call, TaskCall):
            raise InvalidOption(
                "call",
                f"{short_repr(call)} is not a call: write engine.submit(my_task.bind(...)), and not the function, its "
                "name or its result",
            )
        definition = self._definition_of(call)
        args = self._encode(call, definition)
        now = self._now()
        row = TaskRow(key=0, id=options.id or self._new_id(), name=call.name, args=args, state=State.QUEUED)
        row.created_at = row.due_at = now
        if definition is not None:
            row.max_attempts, row.recover = definition.max_attempts, definition.recover
            if definition.timeouts is not None:
                _set_timeouts(row, definition.timeouts, definition.stored_timeouts)
        if options is not DEFAULT_OPTIONS:
            self._apply(row, options, now)
            timeouts = to_timeouts(options.timeout)
            if timeouts is not None:
                # As a whole in place of the definition's, also where it sets no limit at all.
                _set_timeouts(row, timeouts, records.dump_timeouts(timeouts))
        if (definition is not None and definition.callbacks) or _has_callbacks(options):
            row.callbacks = self._callbacks(definition, options)
        row.send_key = row.idempotency_key
        return row

    def _definition_of(self, call: TaskCall[object]) -> TaskDefinition | None:
        if call.name in self._registry:
            return self._registry.get(call.name)
        if self._is_client:
            return call.definition
        raise UnknownTask(call.name, self._registry.names)

    def _encode(self, call: TaskCall[object], definition: TaskDefinition | None) -> str:
        try:
            if definition is not None:
                return definition.encode_arguments(call.args, call.kwargs, limit=self._max_value_bytes)
            codec.check_text("name", call.name, limit=200)
            return codec.dump_plain([list(call.args), dict(call.kwargs)], limit=self._max_value_bytes)
        except codec.NotJson as error:
            raise InvalidArguments(call.name, error.problem) from error

    def _apply(self, row: TaskRow, options: SubmitOptions, now: int) -> None:
        if options.id is not None:
            codec.check_text("id", options.id, limit=MAX_TOKEN)
        if options.idempotency_key is not None:
            row.idempotency_key = codec.check_text("idempotency_key", options.idempotency_key, limit=MAX_TOKEN)
        if options.label is not None:
            row.label = codec.check_text("label", options.label, limit=MAX_TOKEN)
        row.due_at = _due_at(options, now)
        row.priority = _whole("priority", options.priority, -MAX_PRIORITY, MAX_PRIORITY)
        if options.tags:
            row.tags = msgspec.json.encode(_tags(options.tags)).decode()
        if options.metadata is not None:
            row.metadata = self._metadata(options)
        if options.retry is not None:
            if not isinstance(options.retry, RetryPolicy):
                raise InvalidOption("retry", f"{short_repr(options.retry)} is not a RetryPolicy")
            row.retry = records.dump_policy(options.retry)
            row.max_attempts = options.retry.max_attempts or row.max_attempts
        if options.max_attempts is not None:
            row.max_attempts = _whole("max_attempts", options.max_attempts, 1, 1_000_000)
        if options.recover is not None:
            if options.recover not in ("retry", "lost"):
                raise InvalidOption("recover", f"{options.recover!r} is neither 'retry' nor 'lost'")
            row.recover = options.recover

    def _callbacks(self, definition: TaskDefinition | None, options: SubmitOptions) -> str | None:
        callbacks = {} if definition is None else definition.callbacks
        submitted = read_callbacks({option: getattr(options, option) for option in records.CALLBACKS.values()})
        if submitted:
            callbacks = {**callbacks, **submitted}
        if not self._is_client:
            for end, name in callbacks.items():
                check_callback(records.CALLBACKS[end], self._registry.get(name))
        if not submitted:
            return None if definition is None else definition.stored_callbacks
        return records.dump_callbacks(callbacks)

    def _metadata(self, options: SubmitOptions) -> str:
        metadata = options.metadata
        if not isinstance(metadata, dict):
            raise InvalidOption("metadata", f"{metadata!r} is not a dict")
        try:
            return codec.dump_plain(metadata, limit=self._max_value_bytes)
        except codec.NotJson as error:
            raise InvalidOption("metadata", error.problem) from error


def _has_callbacks(options: SubmitOptions) -> bool:
    return options.on_success is not None or options.on_failure is not None or options.on_settled is not None


def _set_timeouts(row: TaskRow, timeouts: Timeouts, text: str | None) -> None:
    row.timeouts = text
    row.deadline_at, row.start_within = timeouts.deadline_at(row.created_at), timeouts.start_within()


def _due_at(options: SubmitOptions, now: int) -> int:
    if options.delay is not None and options.due_at is not None:
        raise InvalidOption("delay", "give a delay or a due_at, not both")
    if options.due_at is not None:
        if not isinstance(options.due_at, datetime):
            raise InvalidOption("due_at", f"{short_repr(options.due_at)} is not a datetime")
        try:
            return to_micros(options.due_at)
        except ValueError as error:
            raise InvalidOption("due_at", str(error)) from error
    delay = options.delay
    if delay is None:
        return now
    seconds: object = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_DELAY:
        raise InvalidOption("delay", f"{delay!r} is not a number of seconds from 0 to {MAX_DELAY:g}, nor a timedelta")
    return now + round(seconds * 1_000_000)


def _whole(option: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidOption(option, f"{value!r} is not a whole number from {low:,} to {high:,}")
    return value


def _tags(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str):
        raise InvalidOption("tags", f"{tags!r} is one string; pass a list of tags")
    found = list(dict.fromkeys(codec.check_text("tags", tag, limit=MAX_TOKEN) for tag in tags))
    if len(found) > MAX_TAGS:
        raise InvalidOption("tags", f"{len(found)} tags are more than {MAX_TAGS}")
    return found
