"""One body in a child process, from the parent's side.

One anyio task does it all: it sends the call and then reads what the child says until the end. What happens meanwhile,
a stop, a pause, an interrupt, cancels that reading, which loses nothing, and is acted on in between.
"""

import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio

from taskengine import importable
from taskengine.core.errors import InvalidOption, TaskDiscarded, TaskSnoozed, TaskStopped
from taskengine.core.errortext import storable
from taskengine.core.model import Failure, FailureKind
from taskengine.eventloop import spawn
from taskengine.executors.process.children import Child, ChildGone, import_path
from taskengine.executors.process.frames import (
    Answer,
    Ask,
    Began,
    BrokenFrame,
    Discarded,
    End,
    Extend,
    FromChild,
    Line,
    Progress,
    Returned,
    Said,
    Snoozed,
    Start,
    Stopped,
    Unfit,
    Wishes,
    frame_limit,
)
from taskengine.ports import BodyEnd, Call, CallFacts, ErrorReport
from taskengine.signals import Voice

if TYPE_CHECKING:
    from taskengine.executors.process.executor import ProcessExecutor

TRIES = 3
"""Children that may turn out unfit before they are given the body; the next one is not better then."""

MAX_REASON_BYTES = 10_000

EXIT_CODE_SECONDS = 1.0
"""How long the exit code of a child may take that has closed its pipe."""

_HINTS = {"SIGKILL": " (did the kernel run out of memory?)", "SIGXCPU": " (more processor time than cpu_limit)"}


class ProcessBody:
    """A body in a child; the contract is `ports.Body`."""

    def __init__(self, pool: "ProcessExecutor", call: Call, facts: CallFacts) -> None:
        self._pool = pool
        self._call = call
        self._facts = facts
        self._limit = frame_limit(facts.max_value_bytes, facts.max_error_bytes)
        self._child: Child | None = None
        self._force = anyio.CancelScope()
        """Around the conversation; cancelled by `interrupt` and `abandon`."""
        self._nap = anyio.CancelScope()
        """Around waiting for the child; cancelled when there is something to tell it."""
        self._told: Wishes | None = None
        """What the child knows of the signals."""
        self._has_begun = False
        self._problem = "none could be started"
        self._is_interrupted = False
        self._is_abandoned = False

    async def run(self) -> BodyEnd:
        """See `Body.run`.

        Cancellation: kills the child and all that it has started, then passes on.
        """
        try:
            importable.refuse_unfit(self._call.function)
        except InvalidOption as error:
            return BodyEnd(error=error)
        self._call.signals.listen(self._notice_wishes)
        if not self._pool.reserve_spare():
            return await self._run_somewhere()
        end: BodyEnd | None = None
        async with anyio.create_task_group() as tg:
            spawn(tg, self._pool.start_spare, name="taskengine spare child")
            end = await self._run_somewhere()
        assert end is not None, "nobody cancels this group from inside"
        return end

    def interrupt(self) -> None:
        """See `Body.interrupt`: SIGTERM, and SIGKILL after a third of `kill_grace`, to the whole process group."""
        self._is_interrupted = True
        self._force.cancel()

    def abandon(self) -> None:
        """See `Body.abandon`. SIGKILL has been sent, or is sent now; it is only its effect that is not waited for."""
        self._is_abandoned = True
        self._force.cancel()
        if self._child is not None:
            self._child.hurry()

    def where(self) -> str:
        """See `Body.where`."""
        function = self._call.function
        if self._child is None:
            return "not begun"
        verb = "in" if self._has_begun else "before"
        return f"process {self._child.pid}, {verb} {function.__module__}.{function.__qualname__}"

    # --- finding a child ---

    async def _run_somewhere(self) -> BodyEnd:
        tries = 0
        while tries < TRIES:
            if self._must_end:
                return self._forced_end()
            # Idle ones that somebody has killed cost nothing; there are only so many of them.
            tries += not self._pool.has_idle
            try:
                child = await self._pool.take()
            except OSError as error:
                self._problem = f"{type(error).__name__}: {error}"
                continue
            end = await self._run_in(child)
            if end is not None:
                return end
        return self._failed("ChildUnavailable", f"no child process could take it: {self._problem}")

    async def _run_in(self, child: Child) -> BodyEnd | None:
        """Run it in this child; None if the child ended before it could begin."""
        self._child = child
        end: BodyEnd | None = None
        try:
            with anyio.CancelScope() as self._force:
                if self._must_end:  # since the child was asked for
                    self._force.cancel()
                end = await self._converse(child)
        except (ChildGone, BrokenFrame) as error:
            return await self._bury(child, error)
        except BaseException:
            await self._pool.kill(child, self._grace)
            raise
        if end is None:
            await self._pool.kill(child, self._grace)
            return self._forced_end()
        self._child = None
        if _has_no_memory(end):
            await self._pool.kill(child, 0)  # It may be full of what the body has left there.
        else:
            await self._pool.take_back(child)
        return end

    @property
    def _must_end(self) -> bool:
        return self._is_interrupted or self._is_abandoned

    @property
    def _grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return 0 if self._is_abandoned else self._facts.kill_grace / 3

    def _forced_end(self) -> BodyEnd:
        if self._is_abandoned:
            return BodyEnd(is_abandoned=True)
        return BodyEnd(error=TaskStopped("terminated"))

    # --- the conversation ---

    async def _converse(self, child: Child) -> BodyEnd:
        await child.send(self._start_message(child))
        voice = self._facts.voice
        while True:
            await self._tell_wishes(child)
            message = child.take(self._limit)
            if message is None:
                await self._wait_for_more(child)
            elif isinstance(message, Began):
                self._has_begun = True
            elif isinstance(message, Unfit):
                return self._failed("ChildUnavailable", message.problem)
            elif isinstance(message, Ask):
                await child.send(_answer(message, voice))
            elif isinstance(message, End):
                return self._end_of(message)
            else:
                _relay(message, voice)

    async def _wait_for_more(self, child: Child) -> None:
        with anyio.CancelScope() as self._nap:
            await child.receive_more()

    def _notice_wishes(self) -> None:
        self._nap.cancel()

    async def _tell_wishes(self, child: Child) -> None:
        while (wishes := self._wishes()) != self._told:  # They may change while they are being sent.
            self._told = wishes
            await child.send(wishes)

    def _wishes(self) -> Wishes:
        signals = self._call.signals
        reason = None if signals.reason is None else storable(signals.reason, limit=MAX_REASON_BYTES)
        return Wishes(signals.is_stop_requested, signals.is_pause_requested, reason, signals.pause_number)

    def _start_message(self, child: Child) -> Start:
        facts, function = self._facts, self._call.function
        self._told = self._wishes()
        path = None
        if child.sys_path != sys.path:
            path, child.sys_path = import_path(), list(sys.path)
        child.calls += 1
        return Start(
            module=function.__module__,
            qualname=function.__qualname__,
            sys_path=path,
            task_id=facts.task_id,
            name=facts.name,
            attempt=facts.attempt,
            takes_context=facts.takes_context,
            arguments=facts.arguments,
            metadata=dict(facts.metadata),
            idempotency_key=facts.idempotency_key,
            remaining=facts.voice.remaining(),
            wishes=self._told,
            max_value_bytes=facts.max_value_bytes,
            max_error_bytes=facts.max_error_bytes,
            memory_limit=self._pool.memory_limit,
            cpu_limit=self._pool.cpu_limit,
        )

    # --- its end ---

    def _end_of(self, message: End) -> BodyEnd:
        if isinstance(message, Returned):
            return BodyEnd(result=message.result)
        if isinstance(message, Stopped):
            return BodyEnd(error=TaskStopped(message.reason))
        if isinstance(message, Snoozed):
            return BodyEnd(error=TaskSnoozed(message.delay, message.reason))
        if isinstance(message, Discarded):
            return BodyEnd(error=TaskDiscarded(message.reason))
        failure = Failure(
            kind=message.kind,
            type=message.type_name,
            message=message.message,
            traceback=message.traceback,
            attempt=self._facts.attempt,
            detail=message.detail,
        )
        report = ErrorReport(
            failure=failure, leaves=message.leaves, retryable=message.retryable, retry_after=message.retry_after
        )
        return BodyEnd(report=report)

    async def _bury(self, child: Child, error: ChildGone | BrokenFrame) -> BodyEnd | None:
        """Report a child that ended on its own, or babbled; None if the body had not begun."""
        if isinstance(error, ChildGone):
            with anyio.CancelScope(shield=True):
                await child.wait_for_exit(EXIT_CODE_SECONDS)
        code = child.exit_code
        await self._pool.kill(child, 0)
        if self._must_end:
            return self._forced_end()
        problem, detail = _explain_exit(code) if isinstance(error, ChildGone) else _explain_garbage(error)
        if not self._has_begun:
            self._problem = f"the last one {problem} before it could begin"
            return None
        return self._failed("ChildCrashed", f"the child process {child.pid} {problem}", detail)

    def _failed(self, type_name: str, message: str, detail: dict[str, Any] | None = None) -> BodyEnd:
        failure = Failure(
            kind=FailureKind.CRASHED, type=type_name, message=message, attempt=self._facts.attempt, detail=detail
        )
        return BodyEnd(report=ErrorReport(failure=failure, retryable=True))


def _relay(message: FromChild, voice: Voice) -> None:
    """Say in the parent what the body has said in the child."""
    if isinstance(message, Said):
        if message.word == "begun":
            voice.begun()
        elif message.word == "checkpoint":
            voice.checkpoint()
        elif message.word == "heartbeat":
            voice.heartbeat()
        elif message.word == "reached_pause":
            voice.reached_pause()
        elif message.word == "left_pause":
            voice.left_pause()
    elif isinstance(message, Progress):
        voice.progress(message.text)
    elif isinstance(message, Line):
        voice.log(message.level, message.message)
    elif isinstance(message, Extend):
        voice.extend(attempt=message.attempt, idle=message.idle, total=message.total)


def _answer(question: Ask, voice: Voice) -> Answer:
    if question.what == "remaining":
        return Answer(seconds=voice.remaining())
    try:
        return Answer(path=voice.artifact_dir())
    except OSError as error:
        return Answer(problem=str(error))


def _has_no_memory(end: BodyEnd) -> bool:
    return end.report is not None and any("builtins.MemoryError" in names for names in end.report.leaves)


def _explain_garbage(error: BrokenFrame) -> tuple[str, dict[str, Any]]:
    return f"wrote over its pipe to the engine: {error}", {"problem": str(error)}


def _explain_exit(code: int | None) -> tuple[str, dict[str, Any]]:
    if code is None:
        return "has closed its pipe to the engine", {"problem": "its pipe was closed"}
    if code >= 0:
        return f"ended with exit code {code}", {"exit_code": code}
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}{_HINTS.get(name, '')}", {"signal": name}
