"""Serves a recording on this machine until it is interrupted."""

import socket

import uvicorn

from paceline.server.listen import url_of
from paceline.server.live.page_routes import PAGE
from paceline.server.live.view_app import RecordedFrames, view_app

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
