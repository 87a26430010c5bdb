"""Routes of hosting platforms: /ping and /invocations of SageMaker, and /server_info."""

import os
import platform
from dataclasses import asdict
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from paceline import __version__
from paceline.core.cores import usable_cores
from paceline.server.body import check_values
from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, UNAVAILABLE, ApiError
from paceline.server.schemas.openapi import ERRORS, GENERATED, INVOKED, PROBED

# The route of an invocation by the field that only its bodies have.
INVOKED_ROUTES = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def hosting_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["hosting"])

    @router.get("/ping", response_class=Response, responses=PROBED)
    async def ping() -> Response:
        """Report whether the engine works, as SageMaker asks."""
        return pong(context)

    @router.post("/ping", response_class=Response, responses=PROBED)
    async def ping_by_post() -> Response:
        """The same."""
        return pong(context)

    @router.post("/invocations", responses=GENERATED, openapi_extra=INVOKED)
    async def invoke(request: Request) -> Response:
        """Answer a chat, a completion or a response, by the fields of the body."""
        body = await request.body()
        check_values(body, context.settings.body_values)
        return Invocation(body)

    @router.get("/server_info", responses=ERRORS)
    async def describe_server(config_format: Literal["text", "json"] = "text") -> dict[str, Any]:
        """The settings and the machine, under the names of vLLM. Keys are left out."""
        config = configuration(context)
        return {
            "vllm_config": str(config) if config_format == "text" else config,
            "vllm_env": environment(),
            "system_env": {
                "paceline": __version__,
                "python": platform.python_version(),
                "system": platform.platform(),
                "cores": usable_cores(),
            },
        }

    return router


def pong(context: ServerContext) -> Response:
    if reason := context.engine.healthy():
        raise ApiError(UNAVAILABLE, reason, code="unhealthy")
    return Response()


def configuration(context: ServerContext) -> dict[str, Any]:
    """The settings of the server, and those of the engine that were given."""
    server = asdict(context.settings)
    server["api_keys"] = len(context.settings.api_keys)
    return {
        "model": context.models[0],
        "max_model_len": context.engine.max_model_len,
        **context.given_settings,
        **server,
    }


def environment() -> dict[str, str]:
    """Variables of paceline, without those that look like secrets."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PACELINE_")}
    return {name: own[name] for name in sorted(own) if not any(word in name for word in SECRET)}


class Invocation(Response):
    """Passes a request on to the route that its body is for."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body, self._path = body, invoked_route(body)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replayed = iter([{"type": "http.request", "body": self._body, "more_body": False}])

        async def again() -> Message:
            return next(replayed, None) or await receive()

        await scope["app"].router({**scope, "path": self._path}, again, send)


def invoked_route(body: bytes) -> str:
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        fields = {}  # the route says what is wrong
    found = next((name for name in INVOKED_ROUTES if name in fields), None)
    if found is None and fields:
        *most, last = INVOKED_ROUTES
        raise ApiError(BAD_REQUEST, f"the body has none of {', '.join(most)} and {last}; add one")
    return INVOKED_ROUTES[found or "messages"]
