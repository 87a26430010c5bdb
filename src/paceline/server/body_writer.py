"""How the body of a streamed response leaves: through ASGI, or straight to its connection."""

from collections.abc import Callable
from typing import Any, Protocol, cast

from starlette.types import Scope, Send

EXTENSION = "paceline.body"  # of an ASGI scope; `OPEN` there makes a writer after the start
OPEN = "open"


class BodyWriter(Protocol):
    """Takes the body of a response after its start and before its end."""

    def write(self, body: bytes) -> bool:
        """Take bytes, or none. False if it takes no more until `drain` has returned."""
        ...

    async def drain(self) -> None:
        """Send what was written, and wait until more is taken."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that the client's system has not taken yet."""
        ...

    def abort(self) -> None:
        """Close the connection at once, without what is not sent."""
        ...


class SentBody:
    """A body through ASGI's `send`, one message after another."""

    def __init__(self, send: Send) -> None:
        self._send, self._body = send, b""

    def write(self, body: bytes) -> bool:
        self._body += body
        return not self._body

    async def drain(self) -> None:
        body, self._body = self._body, b""
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    @property
    def unsent(self) -> int:
        return len(self._body)

    def abort(self) -> None:
        """ASGI has no word for it: the connection closes when all is sent."""
        self._body = b""


def body_writer(scope: Scope, send: Send) -> BodyWriter:
    """The fastest writer that the server offers for a response that has started."""
    offered: dict[str, Any] = scope.get("extensions", {}).get(EXTENSION, {})
    if OPEN in offered:
        open_body = cast("Callable[[], BodyWriter | None]", offered[OPEN])
        return open_body() or SentBody(send)
    return SentBody(send)
