"""Routes for other weights, sleep and wake-up, under the names that vLLM has."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from paceline.engine.api import Arrivals, Mode
from paceline.server.context import ServerContext
from paceline.server.errors import ERRORS
from paceline.server.schemas.requests import UpdateWeightsRequest

Tag = Literal["weights", "kv_cache", "scheduling"]


def sleep_routes(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["operation"], responses=ERRORS, route_class=context.body_route)

    @router.post("/sleep")
    async def sleep(
        level: Literal["0", "1", "2"] = "1", mode: Mode = "abort", arrivals: Arrivals = "refuse"
    ) -> dict[str, Any]:
        """Release the memory of the model: of KV, and of weights, which stay on the host (1) or are
        dropped (2). Level 0 only stops steps.

        Open requests are aborted, waited for, or kept for the wake-up. Requests that arrive
        meanwhile get a 503 (refuse), or wait.
        """
        await context.engine.upkeep.sleep(int(level), mode, arrivals)
        return {"is_sleeping": True}

    @router.post("/wake_up")
    async def wake_up(tags: Annotated[list[Tag] | None, Query()] = None) -> dict[str, bool]:
        """Take memory again: all of it, or that of some tags. Steps run when all of it is there."""
        await context.engine.upkeep.wake_up(tags)
        return {"is_sleeping": await context.engine.upkeep.is_sleeping()}

    @router.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": await context.engine.upkeep.is_sleeping()}

    @router.get("/weight_version")
    async def weight_version() -> dict[str, str]:
        """The version of the weights in use."""
        return {"weight_version": await context.engine.upkeep.weight_version()}

    return router


def weight_routes(context: ServerContext) -> APIRouter:
    """No routes, unless a setting allows them: a client names folders of this machine."""
    router = APIRouter(tags=["operation"], responses=ERRORS, route_class=context.body_route)
    if not context.settings.allow_weight_updates:
        return router

    @router.post("/update_weights")
    async def update_weights(body: UpdateWeightsRequest) -> dict[str, str]:
        """Use the weights of a folder or a .safetensors file, which may be in /dev/shm; without a
        path, those of the start. They are of the same model, in the same format.

        Open requests finish first (wait), go on with the new weights (keep), or end (abort).
        """
        version = await context.engine.upkeep.update_weights(body.path, body.version, body.mode)
        return {"weight_version": version}

    return router
