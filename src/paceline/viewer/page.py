"""Serves a recording as a live page until it is interrupted."""

import socket
from collections import defaultdict
from collections.abc import Sequence

import msgspec
import uvicorn
from fastapi import FastAPI

from paceline import __version__
from paceline.engine.api import RequestError
from paceline.engine.live.feed import ANSWER_BYTES
from paceline.engine.live.frames import FrameAnswer, FrameQuestion, RequestLife, StreamStart
from paceline.server.errors import NOT_FOUND, ApiError, answer_errors
from paceline.server.listen import url_of
from paceline.server.live.page_routes import PAGE, page_routes
from paceline.server.middleware import HeadAsGet
from paceline.viewer.replayed import RUN, ReplayedRun


class RecordedFrames:
    """See `FrameSource`: all frames of a recording at once, and none later."""

    engines, goes_on = 1, False

    def __init__(self, run: ReplayedRun, name: str) -> None:
        self._run, self._name = run, name
        self._bodies = [msgspec.json.encode(frame) for frame in run.run()]

    def start(self) -> StreamStart:
        return StreamStart(
            version=__version__,
            model="",
            engines=self.engines,
            frame_s=self._run.frame_s,
            kept=len(self._bodies),
            wall_offset=None,
            recording=self._name,
        )

    async def frames(self, question: FrameQuestion) -> FrameAnswer:
        first = last = max(question.number, 0)
        size = 0
        while last < len(self._bodies) and (last == first or size < ANSWER_BYTES):
            size += len(self._bodies[last])
            last += 1
        more = last < len(self._bodies)
        return FrameAnswer(RUN, last, tuple(self._bodies[first:last]), more=more)

    async def life(self, request_id: str) -> tuple[RequestLife, Sequence[int]]:
        return msgspec.convert(self._run.life(request_id), RequestLife), ()


def view_app(source: RecordedFrames) -> FastAPI:
    app = FastAPI(title="paceline", version=__version__, docs_url=None, redoc_url=None)

    async def life(request_id: str) -> RequestLife:
        try:
            return (await source.life(request_id))[0]
        except RequestError as error:
            raise ApiError(NOT_FOUND, str(error), param="request_id") from None

    app.include_router(page_routes(source, life, ends=lambda: False))
    answer_errors(app, lambda: 1, defaultdict(set))
    app.add_middleware(HeadAsGet)
    return app


FLUSH_S = 1  # for pages that are open


class ViewServer(uvicorn.Server):
    """Prints its address when it listens."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        listeners = [one for server in self.servers for one in server.sockets]
        print(f"{url_of(listeners[0])}{PAGE} (Ctrl-C to quit)", flush=True)


def serve(source: RecordedFrames, host: str, port: int) -> None:
    config = uvicorn.Config(
        view_app(source),
        host=host,
        port=port,
        access_log=False,
        log_config=None,
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=FLUSH_S,
    )
    ViewServer(config).run()
