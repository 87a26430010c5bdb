"""Routes of the live page, whatever it shows: its files, frames, and lives of requests."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path

import msgspec
from fastapi import APIRouter, Request, Response

from paceline.engine.live.frames import RequestLife
from paceline.server.errors import NOT_FOUND, ApiError
from paceline.server.live.frame_stream import FrameSource, FrameStream
from paceline.server.schemas.openapi import ERRORS

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}
TEXTS = ("text/", "image/svg")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
NOT_MODIFIED = 304


class PageFiles:
    """All files of a folder, read once: no path of a client reaches the file system."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                body = path.read_bytes()
                headers = {"Content-Type": type_of(path), "ETag": f'"{sha256(body).hexdigest()}"'}
                name = path.relative_to(folder).as_posix()
                self._files[name] = body, headers | HEADERS

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def response(self, name: str, request: Request) -> Response | None:
        """A file, or that the browser has it; None if there is none of that name."""
        if (found := self._files.get(name)) is None:
            return None
        body, headers = found
        if has_one_of(request.headers.getlist("if-none-match"), headers["ETag"]):
            return Response(status_code=NOT_MODIFIED, headers=headers)
        return Response(body, headers=headers)


def has_one_of(conditions: Sequence[str], etag: str) -> bool:
    """Does the browser have this version, or any if it names none? A proxy may weaken a tag."""
    tags = [tag.strip() for condition in conditions for tag in condition.split(",")]
    return any(tag == "*" or tag.removeprefix("W/") == etag for tag in tags)


def type_of(path: Path) -> str:
    kind = TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(TEXTS) else kind


@cache
def page_files() -> PageFiles:
    """The files that come with paceline."""
    return PageFiles()


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
