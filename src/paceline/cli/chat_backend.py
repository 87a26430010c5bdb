"""What answers in a chat: an engine in this process, or a server."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class ChatParams:
    """How tokens are sampled, and how many at most."""

    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """Part of an answer, and the tokens of the answer so far; 0 if they are not known."""

    text: str
    tokens: int


class ChatBackend(Protocol):
    """Answers one conversation at a time."""

    @property
    def name(self) -> str: ...

    def answer(
        self, messages: Sequence[Mapping[str, str]], params: ChatParams
    ) -> AsyncGenerator[ChatPiece, None]:
        """Stream the answer. Closing the generator aborts the request."""
        ...

    async def close(self) -> None: ...


class EngineBackend:
    """Owns an engine in this process."""

    def __init__(self, name: str, engine: Any) -> None:
        self.name, self._engine = name, engine

    async def answer(
        self, messages: Sequence[Mapping[str, str]], params: ChatParams
    ) -> AsyncGenerator[ChatPiece, None]:
        from paceline.engine.api import GenerationRequest, SamplingParams

        sampling = SamplingParams(temperature=params.temperature, max_tokens=params.max_tokens)
        stream = self._engine.generate(GenerationRequest(messages=messages, params=sampling))
        tokens = 0
        try:
            async for piece in stream:
                tokens += len(piece.token_ids)
                yield ChatPiece(piece.text, tokens)
        finally:
            await stream.aclose()
        if stream.output is not None and stream.output.error:
            raise RequestError(stream.output.error)

    async def close(self) -> None:
        await self._engine.shutdown()
