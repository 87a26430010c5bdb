"""Sends the events of a stored response, also while it is generated."""

from collections.abc import Mapping

from fastapi import Response
from starlette.types import Receive, Scope, Send

from paceline.server.background import events_after
from paceline.server.context import ServerContext
from paceline.server.errors import ApiError
from paceline.server.respond import hung_up, until
from paceline.server.schemas.responses import response_event

BODY = "http.response.body"
NO_HEADERS: Mapping[str, str] = {}


class EventResponse(Response):
    """The events after the one with the number `after`. The response does not depend on it: it is
    generated to its end if the client goes away, which can ask for the other events later."""

    media_type = "text/event-stream"

    def __init__(
        self,
        context: ServerContext,
        name: str,
        after: int = -1,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        del self.headers["content-length"]
        self._context, self._name, self._after = context, name, after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until(hung_up(receive), self._send(send))

    async def _send(self, send: Send) -> None:
        batch = await events_after(self._context, self._name, self._after)
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        while not batch.ended:
            if batch.events:
                await send({"type": BODY, "body": batch.events, "more_body": True})
            try:
                batch = await events_after(self._context, self._name, batch.last)
            except ApiError as error:
                await send({"type": BODY, "body": forgotten(error, batch.last + 1)})
                return
        await send({"type": BODY, "body": batch.events})


def forgotten(error: ApiError, number: int) -> bytes:
    """The last event of a response that is stored no longer."""
    detail = error.body.error
    return response_event("error", number, code=detail.code, message=detail.message, param=None)
