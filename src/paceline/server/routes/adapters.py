"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from paceline.server.context import ServerContext
from paceline.server.errors import BAD_REQUEST, NOT_FOUND, ApiError
from paceline.server.schemas.openapi import ERRORS
from paceline.server.schemas.requests import LoadAdapterRequest, UnloadAdapterRequest


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
