"""What answers prompts and conversations: an engine in this process, or a server."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.cli.command import WrongOption
from paceline.cli.options import EngineOptions
from paceline.core.errors import PacelineError, RequestError

NUL = "\udc00"  # what would stand for byte 0, by the error handler surrogateescape
UNDECODED = re.compile("[\udc80-\udcff]")
Prompt = str | Sequence[Mapping[str, str]]  # a text to continue, or a conversation to answer
Params = Mapping[str, Any]  # of sampling, by the names of `SamplingParams`


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Part of one choice, and the tokens of all choices so far; 0 if they are not known."""

    text: str
    tokens: int
    choice: int = 0


class ModelBackend(Protocol):
    """Answers one request at a time."""

    @property
    def name(self) -> str: ...

    def answer(self, prompt: Prompt, params: Params) -> AsyncGenerator[AnswerPiece, None]:
        """Stream the answer. Closing the generator aborts the request."""
        ...

    async def close(self) -> None: ...


class EngineBackend:
    """Owns an engine in this process."""

    def __init__(self, name: str, engine: Any) -> None:
        self.name, self._engine = name, engine

    async def answer(self, prompt: Prompt, params: Params) -> AsyncGenerator[AnswerPiece, None]:
        from paceline.engine.api import GenerationRequest, SamplingParams

        sampling = SamplingParams(**params)
        if isinstance(prompt, str):
            generation = GenerationRequest(prompt=prompt, params=sampling)
        else:
            generation = GenerationRequest(messages=prompt, params=sampling)
        stream = self._engine.generate(generation)
        tokens = 0
        try:
            async for piece in stream:
                tokens += len(piece.token_ids)
                yield AnswerPiece(piece.text, tokens, piece.index)
        finally:
            await stream.aclose()
        if stream.output is not None and stream.output.error:
            raise RequestError(stream.output.error)

    async def close(self) -> None:
        await self._engine.shutdown()


def check_decoded(text: str, encoding: str) -> None:
    """RequestError if the text has bytes that are not in the encoding that it was read with.
    Python keeps them as halves of surrogate pairs."""
    if (found := UNDECODED.search(text)) is not None:
        raise RequestError(
            f"the text has the byte 0x{ord(found[0]) - ord(NUL):02X}, which is not {encoding}, the "
            "encoding of this locale: convert the text, for example with iconv -f latin1 -t utf-8, "
            "or set LC_ALL to a locale of its encoding"
        )


def check_url(url: str | None, engine: EngineOptions) -> None:
    """Settings of an engine mean nothing to a server that runs already."""
    if url and engine.settings:
        name = next(iter(engine.settings)).replace("_", "-")
        raise WrongOption(f"--{name} sets up a model in this process, but --url names a server")


async def open_backend(
    url: str | None, key: str | None, engine: EngineOptions, argument: str | None = None
) -> ModelBackend:
    """The server at a URL, or the model in this process."""
    if url:
        from paceline.cli.http_client import ServerBackend

        is_named = argument or engine.model
        server = ServerBackend(url, key, engine.name(argument) if is_named else None)
        try:
            await server.connect()
        except PacelineError:
            await server.close()
            raise
        return server
    from paceline.hub.progress_bar import LoadingStatus
    from paceline.llm import AsyncLLM

    model = engine.name(argument)
    with LoadingStatus(model) as bar:
        return EngineBackend(model, AsyncLLM(model, progress=bar, **engine.settings))
