"""How a route writes its responses, and on which thread."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from paceline.engine.api import RequestOutput, SamplingParams, Stream, TextDelta
from paceline.engine.long_work import LongWork
from paceline.server.errors import ErrorBody
from paceline.server.schemas.ready_events import TextFrame

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
