"""Routes for operators: probes, metrics, pausing, aborting, explaining."""

from typing import Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from paceline import __version__
from paceline.engine.api import RequestError
from paceline.server.context import ServerContext
from paceline.server.errors import NOT_FOUND, UNAVAILABLE, ApiError
from paceline.server.schemas.openapi import ERRORS, PROBED
from paceline.server.schemas.requests import AbortRequest
from paceline.server.telemetry.prometheus import exposition


def probe_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["operation"])

    @router.get("/health", responses=PROBED)
    async def health() -> dict[str, str | float]:
        """Does the engine work? It may, though a request has failed: how long ago is told.

        Why it did is for its client and the log, since anybody may look here.
        """
        if reason := context.engine.healthy():
            raise ApiError(UNAVAILABLE, reason, code="unhealthy")
        last = context.engine.last_failure_s
        return (
            {"status": "ok"} if last is None else {"status": "ok", "last_failure_s": round(last, 1)}
        )

    @router.get("/ready", responses=PROBED)
    async def ready() -> dict[str, str]:
        """Are requests taken?"""
        if reason := context.closed:
            raise ApiError(UNAVAILABLE, reason, code="not_ready")
        return {"status": "ok"}

    @router.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def metrics() -> Response:
        """For Prometheus."""
        report = await context.engine.stats()
        body = exposition(report, context.models[0], context.engine.healthy() is None)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Requests that are open."""
        return {"server_load": len(context.open_requests)}

    return router


def control_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["operation"], responses=ERRORS)

    @router.post("/pause")
    async def pause(mode: Literal["new", "all"] = "new") -> dict[str, str]:
        """Let new requests wait, or stop those that run as well."""
        await context.engine.pause(mode)
        return {"status": "paused"}

    @router.post("/resume")
    async def resume() -> dict[str, str]:
        await context.engine.resume()
        return {"status": "running"}

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(reset_running_requests: bool = False) -> dict[str, bool]:
        """Forget cached prefixes; false if requests that run still hold some."""
        return {"reset": await context.engine.reset_prefix_cache(reset_running_requests)}

    @router.post("/abort_requests")
    async def abort_requests(body: AbortRequest) -> dict[str, Any]:
        """End requests, which their clients are told of by the finish reason."""
        aborted = [name for name in body.request_ids if await abort(context, name)]
        return {"aborted": aborted}

    @router.get("/requests/{request_id:path}/explain", response_class=PlainTextResponse)
    async def explain(request_id: str) -> Response:
        """The life of a request, in sentences; of several parts, one after the other."""
        return PlainTextResponse(await explanation(context, request_id))

    return router


async def abort(context: ServerContext, name: str) -> bool:
    """All parts of a request, or one part by its own id."""
    ended = any([await context.engine.abort(part) for part in context.parts(name)])
    if not ended and name in context.open_requests:  # its text is being read
        context.aborted_early.add(name)
        return True
    return ended


async def explanation(context: ServerContext, name: str) -> str:
    """Of all parts that are remembered, or of one part by its own id."""
    told: list[str] = []
    problem = ""
    for part in context.parts(name):
        try:
            told.append(await context.engine.explain(part))
        except RequestError as error:
            problem = str(error)
    if not told:
        raise ApiError(NOT_FOUND, problem, param="request_id")
    return "\n".join(told)
