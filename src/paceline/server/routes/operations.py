"""Routes for operators: probes, metrics, pausing, aborting, explaining."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from paceline import __version__
from paceline.engine.api import RequestError
from paceline.engine.live.feed import LiveEngine
from paceline.engine.live.frames import RequestLife
from paceline.engine.transport.front_end_link import PeerVerb
from paceline.server.context import ServerContext, part_ids
from paceline.server.errors import BAD_REQUEST, ERRORS, NOT_FOUND, PROBED, UNAVAILABLE, ApiError
from paceline.server.live.page_routes import EngineFrames, page_routes
from paceline.server.responses.background import cancelled_here, events_here, removed_here
from paceline.server.responses.conversations import Change, changed_here
from paceline.server.responses.events import SentToPeers
from paceline.server.schemas.requests import AbortRequest, LoadAdapterRequest, UnloadAdapterRequest
from paceline.server.telemetry.prometheus import EngineMetrics, MergedFamilies, exposition

PauseMode = Literal["new", "wait", "all", "keep", "abort"]


def probe_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["operation"])

    @router.get("/health", responses=PROBED)
    async def health() -> dict[str, Any]:
        """Report whether an engine works, which ones do not, and the seconds since a request last
        failed.

        The reason of that failure is not shown, because this route needs no key.
        """
        if reason := context.engine.healthy():
            raise ApiError(UNAVAILABLE, reason, code="unhealthy")
        context.board.set_failure(context.engine.last_failure_s)
        last = context.board.last_failure_s
        down = {str(engine): why for engine, why in enumerate(context.engine.troubles()) if why}
        return (
            {"status": "ok"}
            | ({"engines_down": down} if down else {})
            | ({} if last is None else {"last_failure_s": round(last, 1)})
        )

    @router.get("/ready", responses=PROBED)
    @router.get("/readyz", responses=PROBED)
    async def ready() -> dict[str, str]:
        """Report whether requests are accepted."""
        if reason := context.closed:
            raise ApiError(UNAVAILABLE, reason, code="not_ready")
        return {"status": "ok"}

    @router.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        reports, troubles = await context.engine.reports(), context.engine.troubles()
        engines = [
            EngineMetrics(report, context.served_name, engine, not trouble, context.cache_labels)
            for engine, (report, trouble) in enumerate(zip(reports, troubles, strict=True))
        ]
        processes = dict(context.board.processes)
        for engine, report in enumerate(reports):
            if report.core_pid not in (0, *processes.values()):
                number = f"_{engine}" if len(reports) > 1 else ""
                processes[f"paceline_core{number}"] = report.core_pid
        body = exposition([MergedFamilies(engines), context.http_metrics], processes)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """The number of open requests."""
        return {"server_load": context.board.requests}

    return router


def control_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["operation"], responses=ERRORS, route_class=context.body_route)

    @router.post("/pause")
    async def pause(mode: PauseMode = "new") -> dict[str, str]:
        """Stop admitting requests.

        Running requests continue (new), are waited for (wait), are stopped until /resume (all, or
        keep, vLLM's name), or are aborted together with the waiting ones (abort).
        """
        await pause_engine(context, mode)
        return {"status": "paused"}

    @router.get("/is_paused")
    async def is_paused() -> dict[str, bool]:
        return {"is_paused": bool(await context.engine.paused())}

    @router.post("/resume")
    async def resume() -> dict[str, str]:
        await context.engine.resume()
        return {"status": "running"}

    @router.post("/reset_prefix_cache")
    async def reset_prefix_cache(reset_running_requests: bool = False) -> dict[str, bool]:
        """Forget cached prefixes; false if running requests hold blocks of them."""
        return {"reset": await context.engine.reset_prefix_cache(reset_running_requests)}

    @router.post("/abort_requests")
    async def abort_requests(body: AbortRequest) -> dict[str, Any]:
        """End requests with the finish reason "abort"."""
        names = list(dict.fromkeys(body.request_ids))
        aborted = set(await abort_here(context, names))
        if others := tuple(name for name in names if name not in aborted):
            aborted.update(*await context.peers.ask("abort", others))
        return {"aborted": [name for name in names if name in aborted]}

    @router.get("/requests/{request_id:path}/explain", response_class=PlainTextResponse)
    async def explain(request_id: str) -> Response:
        """What happened to a request, in sentences, part by part."""
        return PlainTextResponse(await explanation(context, request_id))

    return router


async def pause_engine(context: ServerContext, mode: PauseMode) -> None:
    await context.engine.pause("all" if mode in ("all", "keep") else "new")
    if mode == "abort":
        await abort_here(context, [*context.open_requests])
        await context.peers.ask("abort_all", ())
    if mode in ("abort", "wait"):
        await context.engine.settled()


async def answer_peer(context: ServerContext, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
    """Answer another front end of the server about requests of this one."""
    match verb:
        case "abort":
            return await abort_here(context, names)
        case "abort_all":
            return await abort_here(context, [*context.open_requests])
        case "parts":
            return [context.open_requests.known_parts(name) for name in names]
        case "response":
            return [sent(context.responses.get(name)) for name in names]
        case "events":
            name, number = names
            return [sent(await events_here(context, name, int(number)))]
        case "cancel":
            return [sent(await cancelled_here(context, name)) for name in names]
        case "remove":
            return [await removed_here(context, name) for name in names]
        case "conversation":
            name, change, given = names
            return [sent(changed_here(context, name, cast("Change", change), given))]
        case "adapters":
            await context.read_adapters()
            return []


def sent(found: SentToPeers | None) -> bytes:
    return b"" if found is None else found.sent()


async def abort_here(context: ServerContext, names: Sequence[str]) -> list[str]:
    """Abort requests of this front end; returns those that were open."""
    aborted: list[str] = []
    for name in names:
        if await context.open_requests.abort(name):
            aborted.append(name)
        await asyncio.sleep(0)  # there may be many
    return aborted


async def parts_anywhere(context: ServerContext, name: str) -> Sequence[str]:
    """The part ids of an open or recent request of any front end. That of a part is its own."""
    if context.open_requests.known_parts(name):
        return context.open_requests.parts(name)
    counts = [one for (one,) in await context.peers.ask("parts", (name,)) if one]
    return part_ids(name, max(counts, default=1))


async def explanation(context: ServerContext, name: str) -> str:
    """What happened to all remembered parts, or to one part by its own id."""
    found: list[str] = []
    problem = ""
    for part in await parts_anywhere(context, name):
        try:
            found.append(await context.engine.explain(part))
        except RequestError as error:
            problem = str(error)
    if not found:
        raise ApiError(NOT_FOUND, problem, param="request_id")
    return "\n".join(found)


def dashboard_routes(context: ServerContext) -> APIRouter:
    """No routes if the settings do not want the page."""
    if not context.settings.dashboard:
        return APIRouter()
    assert isinstance(context.engine, LiveEngine), "this engine cannot be shown"
    source = EngineFrames(context.engine, context.served_name)

    async def life(request_id: str) -> RequestLife:
        problem = ""
        for part in dict.fromkeys((request_id, *await parts_anywhere(context, request_id))):
            try:
                found, head = await source.life(part)
            except RequestError as error:
                problem = problem or str(error)
            else:
                if not context.settings.dashboard_show_prompts:
                    return found
                return msgspec.structs.replace(found, text=context.tokenizer.decode(head))
        raise ApiError(NOT_FOUND, problem, param="request_id")

    return page_routes(source, life, lambda: context.draining and not context.open_requests)


def adapter_routes(context: ServerContext) -> APIRouter:
    """No routes, unless a setting allows them: a client names folders of this machine."""
    router = APIRouter(tags=["models"], responses=ERRORS, route_class=context.body_route)
    if not context.settings.allow_runtime_lora_updating:
        return router

    @router.post("/v1/load_lora_adapter", response_class=PlainTextResponse)
    async def load_lora_adapter(body: LoadAdapterRequest) -> str:
        """Serve an adapter under a name, which requests give as their model."""
        if body.lora_name in context.models:
            problem = f"{body.lora_name!r} is a name of the model; use another name"
            raise ApiError(BAD_REQUEST, problem, param="lora_name")
        await context.engine.adapters.load(body.lora_name, body.lora_path, body.load_inplace)
        await renew(context)
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    @router.post("/v1/unload_lora_adapter", response_class=PlainTextResponse)
    async def unload_lora_adapter(body: UnloadAdapterRequest) -> str:
        """Serve an adapter no longer. Open requests that use it finish."""
        await context.read_adapters()
        if body.lora_name not in context.adapters:
            problem = f"the adapter {body.lora_name!r} is not loaded"
            raise ApiError(NOT_FOUND, problem, param="lora_name")
        await context.engine.adapters.unload(body.lora_name)
        await renew(context)
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."

    return router


async def renew(context: ServerContext) -> None:
    """Every front end of the server knows the same adapters when the client gets its answer."""
    await context.read_adapters()
    await context.peers.ask("adapters", ())
