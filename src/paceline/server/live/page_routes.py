"""Routes of the live page, whatever it shows: its files, frames, and lives of requests."""

from collections.abc import Awaitable, Callable

import msgspec
from fastapi import APIRouter, Request, Response

from paceline.engine.live.frames import RequestLife
from paceline.server.errors import NOT_FOUND, ApiError
from paceline.server.live.frame_source import FrameSource
from paceline.server.live.frame_stream import FrameStream
from paceline.server.live.page_files import INDEX, page_files
from paceline.server.schemas.openapi import ERRORS

PAGE = "/dashboard"
SEE_OTHER = 303


def page_routes(
    source: FrameSource,
    life: Callable[[str], Awaitable[RequestLife]],
    ends: Callable[[], bool],
) -> APIRouter:
    """`life` raises ApiError if it knows no request of an id; `ends` tells whether the server
    shuts down."""
    router = APIRouter(tags=["dashboard"], responses=ERRORS, default_response_class=Response)

    @router.get(PAGE)
    async def page() -> Response:
        """Lead a browser to the live page."""
        # The browser resolves it, so that it is right behind a proxy with a path of its own.
        return Response(status_code=SEE_OTHER, headers={"Location": "dashboard/"})

    @router.get(f"{PAGE}/events")
    async def events(engine: int | None = None) -> Response:
        """What engines do, in server-sent events: all of them, or one."""
        if engine is None:
            return FrameStream(source, range(source.engines), ends)
        if not 0 <= engine < source.engines:
            problem = f"engine is {engine}; there are {source.engines}, counted from 0"
            raise ApiError(NOT_FOUND, problem, param="engine")
        return FrameStream(source, [engine], ends)

    @router.get(f"{PAGE}/requests/{{request_id:path}}")
    async def request_life(request_id: str) -> Response:
        """The life of a request: phases, and sentences."""
        body = msgspec.json.encode(await life(request_id))
        headers = {"Content-Type": "application/json", "Cache-Control": "no-store"}
        return Response(body, headers=headers)

    @router.get(f"{PAGE}/{{name:path}}")
    async def page_file(name: str, request: Request) -> Response:
        """A file of the page."""
        found = page_files().response(name or INDEX, request)
        if found is None:
            raise ApiError(NOT_FOUND, f"the page has no file {name!r}", param="name")
        return found

    return router


def open_paths() -> frozenset[str]:
    """Paths that a browser opens before it can send a key: those of files, which tell nothing."""
    return frozenset({PAGE, f"{PAGE}/", *(f"{PAGE}/{name}" for name in page_files().names)})
