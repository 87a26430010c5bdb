"""A replica: an engine, and the routes of `paceline serve` over it."""

import asyncio
import logging
import os
from asyncio import Queue, Task, create_task, to_thread
from collections.abc import AsyncGenerator
from functools import cached_property
from typing import Any, cast

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.types import Message

from paceline.core.system.host import keep_heap
from paceline.engine.api import EngineFailed
from paceline.engine.transport.front_end_link import PeerVerb
from paceline.hub.repository_files import silent
from paceline.integrations.ray.everywhere import ForwardedRequest, ReceivedRequest, WholeResponse
from paceline.server.context import ServerContext
from paceline.server.routes.operations import answer_peer
from paceline.server.settings import ServerSettings
from paceline.wiring.processes.serving import loaded

ANSWER_S = 5.0  # for the other replicas to answer


class RayPeers:
    """Each replica has its own engine and its own open requests and stored responses. If a replica
    does not answer, the others do."""

    def __init__(self) -> None:
        self._own = serve.get_replica_context().replica_id.unique_id

    @cached_property
    def _replicas(self) -> Any:
        """Made when it is needed: while a replica starts, its deployment may not exist yet."""
        context, untyped = serve.get_replica_context(), cast("Any", serve)
        return untyped.get_deployment_handle(context.deployment, context.app_name)

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        asked = self._replicas.broadcast("answer_peer", self._own, verb, names)
        try:
            answers = await asked.results_async(timeout_s=ANSWER_S, return_exceptions=True)
        except (TimeoutError, RayServeException, RayError):
            return []
        return [one for one in answers if isinstance(one, list)]


log = logging.getLogger(__name__)

REPLICA = b"x-paceline-replica"  # the header that names the replica which responds
FLUSH_S = 1.0  # for the last answers of an engine that is gone


class EngineReplica:
    """Ray creates it in a process of its own and calls it on one event loop.

    A crash of the engine ends the process, and Ray starts another replica.
    """

    async def __init__(self, model: str, server: ServerSettings, settings: dict[str, Any]) -> None:
        given = {**settings, "on_core_crash": "exit"}
        found = await to_thread(loaded, model, silent, given)
        self._engine = found.engine()
        self._app = found.application(self._engine, model, server)
        self._context: ServerContext = self._app.state.context
        self._context.peers = RayPeers()
        await self._context.read_adapters()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._answering: set[Task[None]] = set()
        self._watching = create_task(self._end_with_engine())
        keep_heap()

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message]]:
        """The messages of the response, in groups: those that were there at the same time.

        If Ray closes or cancels the generator, the client has hung up, or the entry is gone.
        """
        received = ReceivedRequest(request.body)
        sent: Queue[Message | None] = Queue()  # None: the application has returned

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REPLICA, self._name.encode())]
            sent.put_nowait(message)

        def ended(task: Task[None]) -> None:
            self._answering.discard(task)
            sent.put_nowait(None)
            if not task.cancelled() and (error := task.exception()):  # and 500 was sent
                log.error("a request failed", exc_info=error)

        task = create_task(self._app(request.scope, received.receive, send))
        self._answering.add(task)
        task.add_done_callback(ended)
        try:
            while messages := await together(sent):
                yield messages
        finally:
            received.hung_up.set()

    async def respond(self, request: ForwardedRequest) -> WholeResponse:
        """The whole response, to a request that goes to all replicas."""
        start, *parts = [one async for group in self.answer(request) for one in group]
        body = b"".join(part.get("body", b"") for part in parts)
        return WholeResponse(self._name, start["status"], [*start["headers"]], body)

    async def answer_peer(
        self, asking: str, verb: PeerVerb, names: tuple[str, ...]
    ) -> list[Any] | None:
        """Answer another replica. None for this one, which has looked already."""
        return None if asking == self._name else await answer_peer(self._context, verb, names)

    async def check_health(self) -> None:
        """Called by Ray; an exception means that the replica is to be replaced."""
        if reason := self._engine.healthy():
            raise EngineFailed(reason)

    async def _end_with_engine(self) -> None:
        reason = await self._engine.gone()
        log.error("the replica ends: %s", reason)
        await asyncio.sleep(FLUSH_S)
        os._exit(1)

    async def __del__(self) -> None:
        """Called by Ray once the open requests have ended, or after `drain_s`."""
        self._watching.cancel()
        await self._engine.shutdown()


async def together(sent: "Queue[Message | None]") -> list[Message]:
    """The messages that are there, at least one; none if there will be no more."""
    messages: list[Message] = []
    while not messages or not sent.empty():
        if (message := await sent.get()) is None:
            sent.put_nowait(None)  # for the next call
            break
        messages.append(message)
    return messages
