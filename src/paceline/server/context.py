"""What all routes share: the engine, its names, and the requests that are open."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from uuid import uuid4

from paceline.engine.api import Ask, AsyncEngine
from paceline.server.errors import NOT_FOUND, UNAVAILABLE, Refusal
from paceline.server.retry_after import Pace
from paceline.server.settings import ServerSettings
from paceline.server.telemetry.tracing import tracing_to
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

REMEMBERED_IDS = 4096
BETWEEN = " "  # a request and its part; no client can send an id that has one


class Desk:
    """A request is open as long as its visit lasts, under a name that no other has had lately.

    `open_requests` has the ids under which the engine knows the parts of each: a completion of
    several prompts has several.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        model_name: str,
        tokenizer: Tokenizer,
        settings: ServerSettings,
    ) -> None:
        self.engine, self.tokenizer, self.settings = engine, tokenizer, settings
        self.models = (model_name, *settings.aliases)
        self.tracing = tracing_to(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self.template = ChatTemplate.of(tokenizer)
        self.pace = Pace()
        self.open_requests: dict[str, Sequence[str]] = {}
        self.unwanted: set[str] = set()  # of these, aborted before the engine had them
        self.draining = False
        self._lately: dict[str, int] = {}  # parts by name, oldest first

    def model(self, name: str | None) -> str:
        """The name it was asked by, if it is one of the model's."""
        if name is None:
            return self.models[0]
        if name not in self.models:
            known = ", ".join(self.models)
            problem = f"the model {name!r} does not exist; there is {known}"
            raise Refusal(NOT_FOUND, problem, param="model", code="model_not_found")
        return name

    @property
    def closed(self) -> str | None:
        """Why no request is taken at present, None if they are."""
        if self.draining:
            return "the server is about to end and takes no further requests"
        return self.engine.healthy()

    def name(self, request_id: str) -> str:
        """The id itself, or one with an ending if a request of that id was here lately."""
        used = request_id in self._lately or request_id in self.open_requests
        name = f"{request_id}-{uuid4().hex[:8]}" if used else request_id
        self._lately[name] = 1
        if len(self._lately) > REMEMBERED_IDS:
            del self._lately[next(iter(self._lately))]
        return name

    @contextmanager
    def visit(self, name: str, parts: int) -> Generator[None]:
        """A request is here, with an id for each of its parts; or it is not let in."""
        self.check_open()
        self.open_requests[name] = part_ids(name, parts)
        if name in self._lately:
            self._lately[name] = parts
        try:
            yield
        finally:
            del self.open_requests[name]
            self.unwanted.discard(name)

    def check_open(self) -> None:
        if reason := self.closed:
            raise Refusal(UNAVAILABLE, reason, code="draining" if self.draining else "unhealthy")

    async def ready(self, name: str, asks: Sequence[Ask]) -> list[Ask]:
        """Tokenize the prompts of a request, and give each its id and its timeout.

        The server may close, or the request may be aborted, while a long text is tokenized.
        """
        found: list[Ask] = []
        timeout = self.settings.timeout_s or None
        for ask, part in zip(asks, self.open_requests[name], strict=True):
            prompt = await self.engine.tokenized(ask)
            found.append(ask.ready(prompt, part, timeout))
            await asyncio.sleep(0)  # many short texts would block other requests
        self.check_open()
        if name in self.unwanted:
            raise Refusal(UNAVAILABLE, "the request was aborted before it began", code="aborted")
        return found

    def parts(self, name: str) -> Sequence[str]:
        """The ids of a request that is here or was here lately; one of a part is its own."""
        return self.open_requests.get(name) or part_ids(name, self._lately.get(name, 1))

    def retry_after(self) -> int:
        """Seconds after which those who are here now have left, at the pace of late."""
        return self.pace.wait_s(len(self.open_requests))


def part_ids(name: str, parts: int) -> list[str]:
    return [name] if parts == 1 else [f"{name}{BETWEEN}{part}" for part in range(parts)]
