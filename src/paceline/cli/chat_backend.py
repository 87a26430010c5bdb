"""Who answers in a chat: an engine in this process, or a server elsewhere."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.errors import RequestError


@dataclass(frozen=True, slots=True)
class Manner:
    """How answers are made."""

    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of an answer, and how many tokens the answer has so far; 0 where nobody says."""

    text: str
    tokens: int


class Partner(Protocol):
    """Answers one conversation at a time."""

    @property
    def name(self) -> str: ...

    def answer(
        self, messages: Sequence[Mapping[str, str]], manner: Manner
    ) -> AsyncGenerator[Said, None]:
        """The pieces of an answer as they come; whoever closes it early ends the request."""
        ...

    async def close(self) -> None: ...


class EnginePartner:
    """Owns an engine of this process."""

    def __init__(self, name: str, engine: Any) -> None:
        self.name, self._engine = name, engine

    async def answer(
        self, messages: Sequence[Mapping[str, str]], manner: Manner
    ) -> AsyncGenerator[Said, None]:
        from paceline.engine.api import Ask, SamplingParams

        params = SamplingParams(temperature=manner.temperature, max_tokens=manner.max_tokens)
        stream = self._engine.generate(Ask(messages=messages, params=params))
        tokens = 0
        try:
            async for piece in stream:
                tokens += len(piece.token_ids)
                yield Said(piece.text, tokens)
        finally:
            await stream.aclose()
        if stream.output is not None and stream.output.error:
            raise RequestError(stream.output.error)

    async def close(self) -> None:
        await self._engine.shutdown()
