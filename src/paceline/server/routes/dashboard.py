"""The live page of a server."""

import msgspec
from fastapi import APIRouter

from paceline.engine.api import RequestError
from paceline.engine.live.control import LiveEngine
from paceline.engine.live.frames import RequestLife
from paceline.server.context import ServerContext
from paceline.server.errors import NOT_FOUND, ApiError
from paceline.server.live.frame_source import EngineFrames
from paceline.server.live.page_routes import page_routes


def dashboard_routes(context: ServerContext) -> APIRouter:
    """No routes if the settings do not want the page."""
    if not context.settings.dashboard:
        return APIRouter()
    assert isinstance(context.engine, LiveEngine), "this engine cannot be shown"
    source = EngineFrames(context.engine, context.served_name)

    async def life(request_id: str) -> RequestLife:
        problem = ""
        for part in dict.fromkeys((request_id, *await context.parts_anywhere(request_id))):
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
