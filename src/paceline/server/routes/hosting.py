"""Routes of hosting platforms and of tools for vLLM: /ping, /invocations, profiles, the root."""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from starlette.types import Message, Receive, Scope, Send

from paceline import __version__
from paceline.core.system.host import usable_cores
from paceline.engine.trace.trace_file import TraceWindows
from paceline.server.body import check_values
from paceline.server.context import ServerContext
from paceline.server.errors import (
    BAD_REQUEST,
    ERRORS,
    GENERATED,
    INVOKED,
    PROBED,
    UNAVAILABLE,
    ApiError,
)

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

    add_profile_routes(router, context)
    return router


def add_profile_routes(router: APIRouter, context: ServerContext) -> None:
    @router.get("/", response_class=PlainTextResponse)
    async def root() -> Response:
        """The live page, or what the server has and where."""
        below, settings = context.settings.root_path, context.settings
        if settings.dashboard:
            return RedirectResponse(f"{below}/dashboard")
        described = f"{below}/docs describes" if settings.docs else "--docs describes"
        return PlainTextResponse(
            f"paceline {__version__} serves {context.served_name} with OpenAI's API.\n"
            f"POST {below}/v1/chat/completions answers chats, {below}/v1/models lists models.\n"
            f"{described} all routes; --dashboard shows the scheduler at work.\n"
        )

    @router.post("/reset_mm_cache", responses=ERRORS)
    async def reset_mm_cache() -> dict[str, bool]:
        """Nothing to do: a front end keeps no processed image after its request, and embeddings
        are kept under the hash of their image."""
        return {"reset": True}

    @router.post("/start_profile", responses=ERRORS)
    async def start_profile() -> dict[str, str]:
        """Write events into the timeline from now on."""
        return {"trace": profiled(context, TraceWindows.start)}

    @router.post("/stop_profile", responses=ERRORS)
    async def stop_profile() -> dict[str, str]:
        """Write no events into the timeline from now on."""
        return {"trace": profiled(context, TraceWindows.stop)}


def profiled(context: ServerContext, change: Callable[[TraceWindows, float], None]) -> str:
    """Change what the timeline has; returns its path."""
    path: str = context.given_settings.get("trace", "")
    if not path:
        problem = "the server writes no timeline; start it with --trace FILE"
        raise ApiError(BAD_REQUEST, problem, code="profiler_unavailable")
    try:
        change(TraceWindows(path), monotonic())
    except ValueError as error:
        raise ApiError(BAD_REQUEST, str(error)) from None
    return path


def pong(context: ServerContext) -> Response:
    if reason := context.engine.healthy():
        raise ApiError(UNAVAILABLE, reason, code="unhealthy")
    return Response()


def configuration(context: ServerContext) -> dict[str, Any]:
    """The settings of the server, and those of the engine that were given."""
    server = asdict(context.settings)
    server["api_keys"] = len(context.settings.api_keys)
    server["tenant_keys"] = [name for name, _ in context.settings.keys_of_tenants]
    return {
        "model": context.models[-1],
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
