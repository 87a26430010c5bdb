"""How a route writes its responses, and on which thread."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from starlette.types import Scope, Send

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
from paceline.engine.long_work import LongWork
from paceline.server.errors import ErrorBody
from paceline.server.schemas.envelope import TextFrame

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


LONG_ANSWER = 4096  # tokens and alternatives; to write more takes many milliseconds


class ResponseWriter(Protocol):
    """Writes a response in the form of one route; each method returns bytes to send."""

    def opening(self, streams: Sequence[Stream]) -> bytes: ...

    def delta(self, part: int, delta: TextDelta) -> bytes: ...

    def frame(self, part: int, index: int) -> TextFrame | None:
        """The frame of all further events of a choice that have only a text.

        They are written without `delta` then. None: not yet, or never.
        """
        ...

    def closing(self, outputs: Sequence[RequestOutput]) -> bytes: ...

    def failing(self, error: ErrorBody) -> bytes: ...

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes: ...


class WholeWriter:
    """A response that is never streamed, written by one function."""

    def __init__(self, write: Callable[[Sequence[RequestOutput]], bytes]) -> None:
        self._write = write

    def whole(self, outputs: Sequence[RequestOutput]) -> bytes:
        return self._write(outputs)


def weight(params: SamplingParams, prompt: int, output: int) -> int:
    """The number of tokens to write, each with its alternatives."""
    scored = 0 if params.prompt_logprobs is None else prompt * (1 + params.prompt_logprobs)
    return scored + output * (1 + (params.logprobs or 0))


async def written(
    long_work: LongWork, size: int, write: Callable[..., bytes], *given: Any
) -> bytes:
    """Write on a thread if there is much to write."""
    if size <= LONG_ANSWER:
        return write(*given)
    return await long_work.run(write, *given)
