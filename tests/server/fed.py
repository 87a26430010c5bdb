"""A real server over an engine whose streams get exactly what a test puts into them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.core.events import NO_TIMINGS
from paceline.engine.api import (
    ChoiceOutput,
    GenerationRequest,
    RequestOutput,
    TextDelta,
    TokenizedPrompt,
    Usage,
)
from paceline.engine.frontend.stream import DeltaBuffer, DeltaStream
from paceline.engine.loop.messages import Capacity
from paceline.engine.sampling_rules import NO_RULES
from paceline.server.app import create_app
from paceline.server.serve import DrainingServer, draining_server
from paceline.server.settings import ServerSettings
from paceline.text.tokenizer import Tokenizer
from tests.engine.support import tokenizer

PROMPT = (5, 6, 7)
MODEL = 'a "model" \\ é 0'
DEFAULTS = ServerSettings()
PATIENCE_S = 20.0


def showing_tools() -> Tokenizer:
    """With a template that uses the tools of a request."""
    made = copy(tokenizer())
    made.chat_template = "{% if tools %}{{ tools }}{% endif %}" + (made.chat_template or "")
    return made


@dataclass
class FedStream:
    """A request as the engine has it. `put` and `end` deliver at once."""

    generation: GenerationRequest
    buffer: DeltaBuffer = field(default_factory=DeltaBuffer)
    deltas: list[TextDelta] = field(default_factory=list)

    def put(self, *deltas: TextDelta) -> None:
        for delta in deltas:
            self.deltas.append(delta)
            self.buffer.put(delta)

    def text(self, *texts: str, index: int = 0) -> None:
        self.put(*(TextDelta(index, text, (4,)) for text in texts))

    def end(self, reason: Any = "stop", error: str = "") -> RequestOutput:
        """Finish the choices that have not ended, and the request."""
        ended = {delta.index for delta in self.deltas if delta.finish_reason}
        for index in range(self.generation.params.n):
            if index not in ended:
                self.put(TextDelta(index, "", (), finish_reason=reason))
        output = self.output(error)
        self.buffer.close(output)
        return output

    def output(self, error: str = "") -> RequestOutput:
        def whole(index: int) -> ChoiceOutput:
            first, *rest = [delta for delta in self.deltas if delta.index == index]
            for delta in rest:
                first = first.followed_by(delta)
            return first

        choices = tuple(whole(index) for index in range(self.generation.params.n))
        used = Usage(len(PROMPT), sum(len(one.token_ids) for one in choices), 1)
        name = self.generation.request_id
        return RequestOutput(name, None, PROMPT, choices, used, NO_TIMINGS, error=error)


class FedEngine:
    """See `api.AsyncEngine`; what tests of streams do not use is left out."""

    max_model_len, rules, last_failure_s = 4096, NO_RULES, None
    capacity = Capacity(4096, 16, 256, 64, 64, enable_prefix_caching=False)

    def __init__(self) -> None:
        self.streams: list[FedStream] = []
        self.aborted: list[str] = []

    async def tokenized(
        self, generation: GenerationRequest, images: Sequence[Any] | None = None
    ) -> TokenizedPrompt:
        return TokenizedPrompt(PROMPT)

    def check_room(self, requests: int) -> None: ...

    def generate(self, generation: GenerationRequest) -> DeltaStream:
        fed = FedStream(generation)
        self.streams.append(fed)
        prompt = np.array(PROMPT, np.int32)
        return DeltaStream(generation.request_id, prompt, fed.buffer, self.aborted.append)

    def healthy(self) -> None: ...

    async def drain(self) -> None: ...


@dataclass
class RawClient:
    """A connection on which a test writes requests and reads bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def post(self, path: str, body: bytes, *headers: str, version: str = "1.1") -> None:
        lines = (
            f"POST {path} HTTP/{version}",
            *("Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"),
            *headers,
        )
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def chunk(self) -> bytes:
        """The next chunk of a body; the last one is empty."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def chunks(self) -> list[bytes]:
        """All chunks up to the last."""
        found: list[bytes] = []
        while chunk := await self.chunk():
            found.append(chunk)
        return found


@dataclass
class FedSite:
    """A server that runs, its engine, and ways into it."""

    engine: FedEngine
    server: DrainingServer
    app: Any
    opened: list[RawClient] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.server.servers[0].sockets[0].getsockname()[1]

    async def client(self, **options: Any) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port, **options))
        self.opened.append(client)
        return client

    async def streams(self, count: int = 1) -> list[FedStream]:
        """The streams of the next request, when all have started."""
        await self.until(lambda: len(self.engine.streams) >= count)
        await asyncio.sleep(0.005)
        found, self.engine.streams[:count] = self.engine.streams[:count], []
        return found

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                await asyncio.sleep(0.001)


@asynccontextmanager
async def fed(
    settings: ServerSettings = DEFAULTS, engine: FedEngine | None = None
) -> AsyncGenerator[FedSite]:
    engine = engine or FedEngine()
    served: Any = engine
    app = create_app(served, MODEL, showing_tools(), settings)
    server = draining_server(app, "127.0.0.1", 0)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.001)
    site = FedSite(engine, server, app)
    try:
        yield site
        assert not app.state.context.open_requests
    finally:
        for client in site.opened:
            client.writer.transport.abort()
        server.should_exit = True
        await running


def on_fed_server(
    scenario: Callable[[FedSite], Awaitable[None]], settings: ServerSettings = DEFAULTS
) -> None:
    async def play() -> None:
        async with asyncio.timeout(PATIENCE_S), fed(settings) as site:
            await scenario(site)

    asyncio.run(play())
