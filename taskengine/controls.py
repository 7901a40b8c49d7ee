"""The writing half of an engine beside submissions: what people ask of stored tasks.

Each request is a message to the persister and its answer. Where a body has a say in what comes of it, the answer is
waited for in the history, so that it makes no difference which process runs the body.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import anyio
from attrs import evolve

from taskengine.actors.messages import Delete, PutHold, Receipt, ReleaseHold, Reply, Request, RequestAnswer, Requeue
from taskengine.actors.settings import Settings
from taskengine.codec import check_text
from taskengine.core.errors import IllegalTransition, NotFinished, TaskNotFound
from taskengine.core.lifecycle import FINAL, UNFINISHED, WAITING, State, Trigger
from taskengine.core.model import HoldRow, HoldScope, Task, TaskFilter, TaskRow
from taskengine.ids import new_id
from taskengine.ports import ArtifactStore, Reader
from taskengine.views import Views

CHUNK = 500
"""Tasks that a request for many takes at a time."""

REMOTE_MARGIN = 2.0
"""Seconds that another process has beyond its own windows to hear of a request and to answer."""

DEAD = frozenset({State.FAILED, State.LOST})
"""What ended for good otherwise than anybody wished."""


HELD = frozenset({"held", *(f"held_{scope.value}" for scope in HoldScope)})
"""Codes of explanations."""


class Post(Protocol):
    """The way to the persister."""

    async def send(self, message: Any) -> None:
        """Send one message; raises EngineNotRunning when the engine is being left."""

    def deadline(self, patience: float | None = None) -> float:
        """Return the monotonic instant after which an outage of the store is told to the caller."""


class Controls:
    """Requests, each as a message to the persister and its answer."""

    def __init__(
        self, *, post: Post, views: Views, settings: Settings, artifacts: ArtifactStore, now: Callable[[], int]
    ) -> None:
        self._post = post
        self._views = views
        self._settings = settings
        self._artifacts = artifacts
        self._now = now

    async def _send(self, make: Callable[[Reply[Any]], Any]) -> Any:
        reply: Reply[Any] = Reply()
        await self._post.send(make(reply))
        return await reply.wait()

    # --- finished tasks ---

    async def requeue(self, task_id: str, *, keep_key: bool, actor: str) -> Receipt:
        """See `Engine.requeue`."""
        _check_words(actor, None)
        deadline = self._post.deadline()
        receipt: Receipt = await self._send(
            lambda reply: Requeue(task_id, new_id(), keep_key, actor, reply, deadline=deadline)
        )
        return receipt

    async def requeue_many(self, where: TaskFilter, *, keep_key: bool, actor: str) -> int:
        """See `Engine.requeue_many`."""
        _check_words(actor, None)
        where = evolve(where, states=(where.states or DEAD) & FINAL)
        count = 0
        async for rows in _Chunks(self._views, where):
            deadline = self._post.deadline()
            replies: list[Reply[Receipt]] = []
            for row in rows:
                replies.append(Reply())
                message = Requeue(row.id, new_id(), keep_key, actor, replies[-1], is_once=True, deadline=deadline)
                await self._post.send(message)
            for reply in replies:
                try:
                    receipt = await reply.wait()
                except (TaskNotFound, NotFinished):
                    continue  # It was deleted in the meantime.
                count += receipt.created  # Somebody else may have been quicker.
        return count

    async def delete(self, task_id: str) -> None:
        """See `Engine.delete`."""
        deadline = self._post.deadline()
        await self._send(lambda reply: Delete(task_id, reply, deadline=deadline))
        await self._artifacts.clean(task_id)

    # --- ending ---

    async def cancel(self, task_id: str, *, reason: str | None, actor: str, timeout: float | None) -> Task:
        """See `Engine.cancel`."""
        wait = self._settings.cancel_wait if timeout is None else timeout
        return await self._end(task_id, Trigger.USER_CANCEL, reason, actor, wait)

    async def stop(self, task_id: str, *, reason: str | None, actor: str, timeout: float | None) -> Task:
        """See `Engine.stop`."""
        settings = self._settings
        longest = settings.stop_grace + settings.kill_grace + REMOTE_MARGIN
        return await self._end(task_id, Trigger.USER_STOP, reason, actor, longest if timeout is None else timeout)

    async def _end(self, task_id: str, trigger: Trigger, reason: str | None, actor: str, wait: float) -> Task:
        answer = await self._ask(task_id, trigger, reason, actor)
        if answer.state not in FINAL:
            with anyio.move_on_after(wait):
                await self._views.outcome(task_id, None)
        return await self._views.get(task_id)

    async def run_now(self, task_id: str, *, actor: str) -> Task:
        """See `Engine.run_now`."""
        await self._ask(task_id, Trigger.USER_RUN_NOW, None, actor)
        return await self._views.get(task_id)

    # --- pausing ---

    async def pause(self, task_id: str, *, reason: str | None, actor: str) -> bool:
        """See `Engine.pause`."""
        answer = await self._ask(task_id, Trigger.USER_PAUSE, reason, actor)
        if answer.state in FINAL or answer.state is State.STOPPING:
            return False
        if answer.state is State.PAUSED or (answer.is_held and answer.state in WAITING):
            return True
        window = self._settings.pause_window + REMOTE_MARGIN
        judge = _says_paused_there if answer.is_remote else _says_paused
        return await self._verdict(task_id, answer.version, judge, window)

    async def resume(self, task_id: str, *, reason: str | None, actor: str) -> bool:
        """See `Engine.resume`."""
        answer = await self._ask(task_id, Trigger.USER_RESUME, reason, actor)
        if answer.is_remote:
            return await self._verdict(task_id, answer.version, _says_resumed, self._settings.cancel_wait)
        if answer.state in WAITING:
            return (await self._views.explain(task_id)).code not in HELD  # A hold of many may leave no mark on it.
        return answer.state not in FINAL and answer.state is not State.STOPPING and not answer.is_held

    async def _verdict(
        self, task_id: str, version: int, judge: "Callable[[Reader, TaskRow, int], bool | None]", wait: float
    ) -> bool:
        """Look after each commit until the history behind `version` tells; False when the wait is over."""
        verdict: bool | None = None

        def look(reader: Reader) -> bool:
            nonlocal verdict
            row = reader.get(task_id)
            verdict = False if row is None else judge(reader, row, version)
            return verdict is not None

        with anyio.move_on_after(wait):
            await self._views.until(look)
        return bool(verdict)

    # --- many ---

    async def ask_many(self, where: TaskFilter, trigger: Trigger, *, reason: str | None, actor: str) -> int:
        """Make a request for every unfinished task that matches; return how many were changed or handed on by it."""
        _check_words(actor, reason)
        where = evolve(where, states=UNFINISHED if where.states is None else UNFINISHED & where.states)
        count = 0
        async for rows in _Chunks(self._views, where):
            deadline = self._post.deadline()
            replies: list[Reply[RequestAnswer]] = []
            for row in rows:
                replies.append(Reply())
                await self._post.send(Request(row.id, trigger, actor, reason, new_id(), replies[-1], deadline=deadline))
            for reply in replies:
                try:
                    answer = await reply.wait()
                except (TaskNotFound, IllegalTransition):
                    continue  # It has gone on in the meantime.
                count += answer.is_changed
        return count

    async def hold(self, scope: HoldScope, target: str, *, reason: str | None, actor: str, until: int | None) -> None:
        """See `Engine.hold`."""
        _check_words(actor, reason)
        hold = HoldRow(scope=scope, target=target, actor=actor, reason=reason, until=until, created_at=self._now())
        deadline = self._post.deadline()
        await self._send(lambda reply: PutHold(hold, reply, deadline=deadline))

    async def release(self, scope: HoldScope, target: str) -> bool:
        """See `Engine.release`."""
        deadline = self._post.deadline()
        was_there: bool = await self._send(lambda reply: ReleaseHold(scope, target, reply, deadline=deadline))
        return was_there

    async def _ask(self, task_id: str, trigger: Trigger, reason: str | None, actor: str) -> RequestAnswer:
        _check_words(actor, reason)
        is_quick = trigger in (Trigger.USER_CANCEL, Trigger.USER_STOP)
        deadline = self._post.deadline(self._settings.cancel_wait if is_quick else None)
        answer: RequestAnswer = await self._send(
            lambda reply: Request(task_id, trigger, actor, reason, new_id(), reply, deadline=deadline)
        )
        return answer


class _Chunks:
    """The tasks that match, newest first, a chunk at a time."""

    def __init__(self, views: Views, where: TaskFilter) -> None:
        self._views = views
        self._where = where
        self._before: int | None = None

    def __aiter__(self) -> "_Chunks":
        return self

    async def __anext__(self) -> Sequence[TaskRow]:
        rows = await self._views.matching(self._where, limit=CHUNK, before_key=self._before)
        if not rows:
            raise StopAsyncIteration
        self._before = rows[-1].key
        return rows


def _check_words(actor: str, reason: str | None) -> None:
    check_text("actor", actor, limit=200)
    if reason is not None:
        check_text("reason", reason, limit=2_000)


def _says_paused(reader: Reader, row: TaskRow, version: int) -> bool | None:
    if row.state in WAITING and row.held is None:
        return False  # It was held, given back, and freed again by somebody else.
    return _says_paused_there(reader, row, version)


def _says_paused_there(reader: Reader, row: TaskRow, version: int) -> bool | None:
    if row.state in FINAL or row.state is State.STOPPING:
        return False
    if row.held is not None and row.state in WAITING:
        return True
    for _, move in reader.history(row.id):
        if move.version > version:
            if move.trigger is Trigger.RUNTIME_PAUSE_REACHED:
                return True
            if move.trigger in (Trigger.RUNTIME_PAUSE_MISSED, Trigger.USER_RESUME):
                return False
    return None


def _says_resumed(reader: Reader, row: TaskRow, version: int) -> bool | None:
    if row.state in FINAL or row.state is State.STOPPING:
        return False
    moves = [move.trigger for _, move in reader.history(row.id) if move.version > version]
    if Trigger.USER_RESUME in moves or Trigger.RUNTIME_PAUSE_MISSED in moves:
        return True
    if row.state in (State.PAUSING, State.PAUSED):
        return None
    return row.held is None
