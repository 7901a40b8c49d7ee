"""The writing half of an engine beside submissions: what people ask of stored tasks."""

from collections.abc import Callable
from typing import Any, Protocol

import anyio

from taskengine.actors.messages import Delete, Receipt, Reply, Request, RequestAnswer, Requeue
from taskengine.actors.settings import Settings
from taskengine.codec import check_text
from taskengine.core.lifecycle import FINAL, Trigger
from taskengine.core.model import Task
from taskengine.ids import new_id
from taskengine.views import Views


class Post(Protocol):
    """The way to the persister."""

    async def send(self, message: Any) -> None:
        """Send one message; raises EngineNotRunning when the engine is being left."""

    def deadline(self, patience: float | None = None) -> float:
        """Return the monotonic instant after which an outage of the store is told to the caller."""


class Controls:
    """Requests, each as a message to the persister and its answer."""

    def __init__(self, *, post: Post, views: Views, settings: Settings) -> None:
        self._post = post
        self._views = views
        self._settings = settings

    async def _send(self, make: "Callable[[Reply[Any]], Any]") -> Any:
        reply: Reply[Any] = Reply()
        await self._post.send(make(reply))
        return await reply.wait()

    async def requeue(self, task_id: str, *, keep_key: bool, actor: str) -> Receipt:
        """See `Engine.requeue`."""
        check_text("actor", actor, limit=200)
        deadline = self._post.deadline()
        receipt: Receipt = await self._send(
            lambda reply: Requeue(task_id, new_id(), keep_key, actor, reply, deadline=deadline)
        )
        return receipt

    async def delete(self, task_id: str) -> None:
        """See `Engine.delete`."""
        deadline = self._post.deadline()
        await self._send(lambda reply: Delete(task_id, reply, deadline=deadline))

    async def cancel(self, task_id: str, *, reason: str | None, actor: str, timeout: float | None) -> Task:
        """See `Engine.cancel`."""
        answer = await self._ask(task_id, Trigger.USER_CANCEL, reason, actor, self._settings.cancel_wait)
        if answer.state not in FINAL:
            with anyio.move_on_after(self._settings.cancel_wait if timeout is None else timeout):
                await self._views.outcome(task_id, None)
        return await self._views.get(task_id)

    async def run_now(self, task_id: str, *, actor: str) -> Task:
        """See `Engine.run_now`."""
        await self._ask(task_id, Trigger.USER_RUN_NOW, None, actor, None)
        return await self._views.get(task_id)

    async def _ask(
        self, task_id: str, trigger: Trigger, reason: str | None, actor: str, patience: float | None
    ) -> RequestAnswer:
        check_text("actor", actor, limit=200)
        if reason is not None:
            check_text("reason", reason, limit=2_000)
        deadline = self._post.deadline(patience)
        answer: RequestAnswer = await self._send(
            lambda reply: Request(task_id, trigger, actor, reason, new_id(), reply, deadline=deadline)
        )
        return answer
