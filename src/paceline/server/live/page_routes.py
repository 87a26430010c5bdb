"""Routes of the live page: its files, lives of requests, and frames as server-sent events."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from time import monotonic, time
from typing import Protocol

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from paceline import __version__
from paceline.engine.api import EngineFailed
from paceline.engine.live.feed import LiveEngine
from paceline.engine.live.frames import (
    LATEST,
    Frame,
    FrameAnswer,
    FrameQuestion,
    RequestLife,
    StreamStart,
    StreamStatus,
)
from paceline.server.errors import ERRORS, NOT_FOUND, ApiError
from paceline.server.replies.generation_response import hung_up, until
from paceline.server.replies.response_writer import BodyWriter, body_writer

BODY = "http.response.body"
RETRY_S = 0.5  # between two questions to an engine that does not answer
SILENCE_S, COMMENT = 5.0, b": nothing new\n\n"
LAST_S = 0.5  # for the end of a stream to be sent
MOST_BEHIND = 6  # frames; a page that is further behind loses all but the latest
decode_frame = msgspec.json.Decoder(Frame).decode
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
PAGE = "/dashboard"
SEE_OTHER = 303


class FrameSource(Protocol):
    @property
    def engines(self) -> int: ...

    @property
    def goes_on(self) -> bool:
        """May there be further frames after the last one?"""
        ...

    def start(self) -> StreamStart:
        """The first event of a stream."""
        ...

    async def frames(self, question: FrameQuestion) -> FrameAnswer:
        """Frames after those that a page has; waits until there may be some.

        EngineFailed if the engine is not there.
        """
        ...

    async def life(self, request_id: str) -> tuple[RequestLife, Sequence[int]]:
        """The life of a request, and the first tokens of its prompt. RequestError if it is not
        known."""
        ...


class EngineFrames:
    """See `FrameSource`: engines that run."""

    goes_on = True

    def __init__(self, engine: LiveEngine, model: str) -> None:
        self._engine, self._model = engine, model
        self.engines = engine.capacity.engines
        self.frames, self.life = engine.live.frames, engine.live.life

    def start(self) -> StreamStart:
        live = self._engine.live
        return StreamStart(
            version=__version__,
            model=self._model,
            engines=self.engines,
            frame_s=live.frame_s,
            kept=live.kept,
            wall_offset=time() - monotonic(),
        )


def event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def struct_event(name: str, struct: StreamStart | StreamStatus) -> bytes:
    return event(name, msgspec.json.encode(struct))


def frame_events(answer: FrameAnswer) -> bytes:
    """The frames of an answer. The first one has the sequences of all slots, if the page cannot
    know them."""
    bodies = list(answer.frames)
    if bodies and answer.base:
        first = decode_frame(bodies[0])
        seats = (*answer.base, *first.seats)
        bodies[0] = msgspec.json.encode(msgspec.structs.replace(first, seats=seats))
    return b"".join(event("frame", body) for body in bodies)


@dataclass(slots=True)
class EngineCursor:
    """How far a page is with one engine."""

    engine: int
    run: int = 0
    number: int = 0
    caught_up: bool = False  # has it had the history?
    trouble: str = ""
    restarts: int = 0

    def question(self) -> FrameQuestion:
        return FrameQuestion(self.engine, self.run, self.number)

    def status(self) -> bytes:
        return struct_event("status", StreamStatus(self.engine, self.trouble, self.restarts))


@dataclass(slots=True)
class PageStream:
    """The events of one page. A page that reads slowly gets fewer frames; nothing piles up."""

    source: FrameSource
    ends: Callable[[], bool]  # does the server end?
    send: Send
    body: BodyWriter  # the connection that `send` writes to
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _written: float = field(default_factory=monotonic)  # when something was written last

    async def run(self, engines: Sequence[int]) -> None:
        await self._write(struct_event("start", self.source.start()))
        await until(self._ended(), self._follow_all(engines))
        try:
            async with asyncio.timeout(LAST_S if self.ends() else None):
                await self.send({"type": BODY, "body": b""})
                while self.ends() and self.body.unsent:
                    await asyncio.sleep(LAST_S / 10)
        except TimeoutError:  # a server that ends does not wait for a page that reads nothing
            self.body.abort()
            await asyncio.sleep(LAST_S)  # until the connection is closed, which ends this

    async def _ended(self) -> None:
        """Return when the server ends, whatever engines and the page do."""
        while not self.ends():
            await asyncio.sleep(RETRY_S)

    async def _follow_all(self, engines: Sequence[int]) -> None:
        await asyncio.gather(*(self._follow(EngineCursor(engine)) for engine in engines))

    async def _follow(self, cursor: EngineCursor) -> None:
        """Send the frames of an engine until the server ends, or the recording."""
        while not self.ends():
            try:
                answer = await self.source.frames(cursor.question())
                if cursor.caught_up and len(answer.frames) > MOST_BEHIND:
                    latest = FrameQuestion(cursor.engine, answer.run, LATEST)
                    answer = await self.source.frames(latest)
            except EngineFailed as error:
                if cursor.trouble != str(error):
                    cursor.trouble = str(error)
                    await self._write(cursor.status())
                await self._keep_open()
                await asyncio.sleep(RETRY_S)
                continue
            await self._write(self._events(cursor, answer))
            if not (answer.more or self.source.goes_on):
                return
            await self._keep_open()

    def _events(self, cursor: EngineCursor, answer: FrameAnswer) -> bytes:
        """The frames, after a change in the status of the engine."""
        restarted = bool(cursor.run) and answer.run != cursor.run
        begin = b""
        if restarted or cursor.trouble:
            cursor.trouble = ""
            cursor.restarts += restarted
            begin = cursor.status()
        cursor.run, cursor.number = answer.run, answer.number
        cursor.caught_up = cursor.caught_up or not answer.more
        return begin + frame_events(answer)

    async def _write(self, events: bytes) -> None:
        """Wait until the connection takes more."""
        if events:
            async with self._sending:
                await self.send({"type": BODY, "body": events, "more_body": True})
                self._written = monotonic()

    async def _keep_open(self) -> None:
        """Send a comment now and then, so that neither a proxy nor the page gives up."""
        if monotonic() - self._written > SILENCE_S:
            await self._write(COMMENT)


class FrameStream(Response):
    """Ends when the page hangs up, or with the server."""

    media_type = "text/event-stream"

    def __init__(
        self, source: FrameSource, engines: Sequence[int], ends: Callable[[], bool]
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source, self._engines, self._ends = source, engines, ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until(hung_up(receive), self._send(scope, send))

    async def _send(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        body = body_writer(scope, send)
        await PageStream(self._source, self._ends, send, body).run(self._engines)


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
