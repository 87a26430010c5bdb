"""The entry: accepts requests and forwards each to the replica that the router chooses."""

import logging
from typing import Any

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.engine.api import EngineFailed
from paceline.integrations.ray.everywhere import (
    Combination,
    ForwardedRequest,
    WholeResponse,
    combination_for,
)
from paceline.server.errors import (
    BROKEN,
    MESSAGES,
    UNAVAILABLE,
    ApiError,
    ErrorBody,
    error_response,
    fault_of,
)
from paceline.server.middleware import BodyLimit, BoundedBody
from paceline.server.schemas.completions import event
from paceline.server.schemas.messages import message_event
from paceline.server.settings import ServerSettings

log = logging.getLogger(__name__)

TRIES = 3  # of a request whose replicas die before the first part of the body
RESPONSES = "/v1/responses"
START, BODY = "http.response.start", "http.response.body"
DIED = "the replica that generated this response has died; send the request again"


class Entry:
    """Has no state but that of its router, so there can be several.

    It bounds bodies. Keys and all else are checked by the application of the replica.
    """

    def __init__(self, engines: DeploymentHandle[Any], server: ServerSettings) -> None:
        self._engines: Any = engines
        self._answers = self._engines.options(stream=True, method_name="answer")
        self._server = server

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return Router(default=self._answer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            limit = BodyLimit("body_bytes", self._server.body_bytes)
            bounded = BoundedBody(receive, limit, self._server.body_s)
            body = await Request(scope, bounded).body()
            request = ForwardedRequest.of(scope, body)
            if combined := combination_for(scope["path"]):
                await self._ask_all(request, combined, send)
            else:
                await self._forward(request, send)
        except ApiError as error:
            await error_response(error, scope["path"])(scope, receive, send)
        except (BackPressureError, DeploymentUnavailableError) as error:
            refused = ApiError(UNAVAILABLE, str(error))
            await error_response(refused, scope["path"])(scope, receive, send)

    async def _forward(self, request: ForwardedRequest, send: Send) -> None:
        """Send the response of a replica; of another one if the first dies before it responds."""
        for _ in range(TRIES):
            response = ResponseSender(request.scope["path"], send)
            if await response.pass_on(self._answers.remote(request)):
                return
        problem = f"{TRIES} replicas have died before they responded; see their logs"
        raise ApiError(UNAVAILABLE, problem, code="replica_died")

    async def _ask_all(self, request: ForwardedRequest, combined: Combination, send: Send) -> None:
        asked = self._engines.broadcast("respond", request)
        answers = await asked.results_async(return_exceptions=True)
        responses = [one for one in answers if isinstance(one, WholeResponse)]
        if not responses:
            raise ApiError(UNAVAILABLE, "no replica responds; see their logs")
        chosen = combined(responses)
        start = {"type": START, "status": chosen.status, "headers": chosen.headers}
        await send(start)
        await send({"type": BODY, "body": chosen.body, "more_body": False})


class ResponseSender:
    """Holds the start of a response back until there is a part of the body: until then, another
    replica can respond."""

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._start: Message | None = None
        self._begun = False

    async def pass_on(self, messages: Any) -> bool:
        """Send the messages of a replica. False if it died and nothing was sent."""
        try:
            async for group in messages:
                for message in group:
                    await self._pass(message)
        except RayActorError:
            log.exception("a replica died while it answered a request")
            if self._begun:
                await self._break_off()
            return self._begun
        finally:
            messages.cancel()  # has no effect on one that has ended
        return True

    async def _pass(self, message: Message) -> None:
        if message["type"] == START:
            self._start = message
            return
        if not self._begun:
            assert self._start is not None
            await self._send(self._start)
            self._begun = True
        await self._send(message)

    async def _break_off(self) -> None:
        """End a stream with an error event; cut any other response off."""
        assert self._start is not None
        kind = Headers(raw=self._start["headers"]).get("content-type", "")
        if not kind.startswith("text/event-stream"):
            raise EngineFailed(DIED)
        body = last_event(self._path, ApiError(BROKEN, DIED, code="replica_died").body)
        await self._send({"type": BODY, "body": body, "more_body": False})


def last_event(path: str, error: ErrorBody) -> bytes:
    """An error in the shape of the API that the path belongs to."""
    if MESSAGES in path:
        return message_event("error", error=fault_of(error))
    if RESPONSES in path:
        detail = error.error
        return message_event("error", code=detail.code, message=detail.message, param=None)
    return event(error)
