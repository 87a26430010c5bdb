"""State that all routes share: the engine, model names, open requests and their ids, peers."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol
from uuid import uuid4

from fastapi.routing import APIRoute

from paceline.engine.api import AsyncEngine, GenerationRequest, TokenizedPrompt
from paceline.engine.long_work import LongWork
from paceline.engine.transport.front_end_link import PeerVerb
from paceline.server.body import body_route
from paceline.server.errors import NOT_FOUND, UNAVAILABLE, ApiError
from paceline.server.media import MediaFetcher
from paceline.server.replies.reply_parsing import ReplyFormats
from paceline.server.responses.store import ResponseStore
from paceline.server.scoreboard import REMEMBERED_IDS, LoadReport, RequestRate, Scoreboard
from paceline.server.settings import ServerSettings
from paceline.server.tasks import BackgroundTasks, Turnstile
from paceline.server.telemetry.http_metrics import HttpMetrics
from paceline.server.telemetry.request_log import tracing_to
from paceline.text.chat_template import ChatTemplate
from paceline.text.tokenizer import Tokenizer

PART_SEPARATOR = " "  # between the id of a request and a part; ids of clients have no space


class OpenRequests(Mapping[str, Sequence[str]]):
    """A request is open while `opened` lasts, under an id that no recent request has had.

    It maps the id to those of its parts in the engine: a completion of several prompts has one
    part per prompt.
    """

    def __init__(self, board: Scoreboard, engine: AsyncEngine) -> None:
        self.aborted_early: set[str] = set()  # open requests; parts that have not started do not
        self._board, self._engine = board, engine
        self._open: dict[str, Sequence[str]] = {}
        self._recent: dict[str, int] = {}  # number of parts by id, oldest first

    def __getitem__(self, name: str) -> Sequence[str]:
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def name(self, request_id: str) -> str:
        """The id itself, or the id with a suffix if a recent request had it."""
        is_own = request_id in self._recent or request_id in self._open
        used = not self._board.ids.claim(request_id) or is_own
        name = f"{request_id}-{uuid4().hex[:8]}" if used else request_id
        self._recent[name] = 1
        if len(self._recent) > REMEMBERED_IDS:
            del self._recent[next(iter(self._recent))]
        return name

    @contextmanager
    def opened(self, name: str, parts: int) -> Generator[None]:
        """Keep a request open, with an id for each part."""
        self._open[name] = part_ids(name, parts)
        self._board.set_requests(len(self._open))
        if name in self._recent:
            self._recent[name] = parts
        try:
            yield
        finally:
            del self._open[name]
            self._board.set_requests(len(self._open))
            self.aborted_early.discard(name)

    def parts(self, name: str) -> Sequence[str]:
        """The part ids of an open or recent request. The id of a part stands for itself."""
        return self._open.get(name) or part_ids(name, self._recent.get(name, 1))

    def known_parts(self, name: str) -> int:
        """The number of parts of an open or recent request; 0 if it is unknown."""
        return len(self._open.get(name, ())) or self._recent.get(name, 0)

    async def abort(self, name: str) -> bool:
        """Abort all parts of a request of this process, or one part by its own id."""
        ended = any([await self._engine.abort(part) for part in self.parts(name)])
        if name in self._open:  # some parts may not have started
            self.aborted_early.add(name)
            return True
        return ended


def part_ids(name: str, parts: int) -> list[str]:
    return [name] if parts == 1 else [f"{name}{PART_SEPARATOR}{part}" for part in range(parts)]


class Peers(Protocol):
    """The front ends beside this one."""

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        """The answer of each."""
        ...


class NoPeers:
    """This front end is the only one."""

    async def ask(self, verb: PeerVerb, names: tuple[str, ...]) -> list[Any]:
        return []


NO_PEERS = NoPeers()


class ServerContext:
    """What is served: engine, tokenizer, models, adapters, settings, given_settings. Who else
    serves it: board, peers. Figures: cache_labels, tracing. Work and its order: long_work,
    turnstile. Requests: open_requests, draining.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        model_name: str,
        tokenizer: Tokenizer,
        settings: ServerSettings,
        board: Scoreboard | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.settings = engine, tokenizer, settings
        self.models = (*settings.aliases, model_name)  # the first one answers
        self.adapters: dict[str, str] = {}  # folders by name
        self.cache_labels: Mapping[str, Any] = {}  # further labels of the metric cache_config_info
        self.given_settings: Mapping[str, Any] = {}  # of the engine
        self.board = Scoreboard() if board is None else board
        self.peers: Peers = NO_PEERS
        self.tracing = tracing_to(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self.long_work = LongWork()
        self.turnstile = Turnstile()
        self.open_requests = OpenRequests(self.board, engine)
        self.draining = False

    def model(self, name: str | None) -> str:
        """The name to answer under: the given one if the model has it. 404 for another name."""
        if name is None:
            return self.models[0]
        if name not in self.models and name not in self.adapters:
            known = ", ".join((*self.models, *self.adapters))
            problem = f"the model {name!r} does not exist; use {known}"
            raise ApiError(NOT_FOUND, problem, param="model", code="model_not_found")
        return name

    async def read_adapters(self) -> None:
        """Learn which adapters the engine has."""
        self.adapters = await self.engine.adapters.listed()

    def adapter(self, name: str) -> str:
        """The adapter that a body names as its model; "" if the name is that of the model alone."""
        return name if name in self.adapters else ""

    @cached_property
    def formats(self) -> ReplyFormats:
        """How the model writes tool calls and reasoning."""
        return ReplyFormats.of(self.settings, self.tokenizer)

    @cached_property
    def template(self) -> ChatTemplate:
        return ChatTemplate.of(self.tokenizer)

    @cached_property
    def media(self) -> MediaFetcher:
        return MediaFetcher(self.settings)

    @cached_property
    def load_report(self) -> LoadReport:
        return LoadReport(self.engine.reports)

    @cached_property
    def background(self) -> BackgroundTasks:
        """Responses that no client waits for."""
        return BackgroundTasks()

    @cached_property
    def responses(self) -> ResponseStore:
        """Stored responses. Each of several processes has its share."""
        settings, parts = self.settings, max(self.settings.api_server_count, 1)
        return ResponseStore(
            max(settings.max_stored_responses // parts, 1),
            settings.stored_response_bytes // parts,
            settings.stored_response_s,
        )

    @property
    def body_route(self) -> type[APIRoute]:
        """The class of routes with a body."""
        return body_route(self.long_work, self.settings.body_values)

    @property
    def rate(self) -> RequestRate:
        """How fast requests of the server end."""
        return self.board.rate

    @property
    def http_metrics(self) -> HttpMetrics:
        return self.board.http_metrics

    @property
    def served_name(self) -> str:
        """The name of the model in metrics and in `ps`: the first alias, if any, as in vLLM."""
        return self.models[0]

    @property
    def system_fingerprint(self) -> str:
        """A name of everything that outputs depend on; empty if clients may change the weights."""
        return "" if self.settings.allow_weight_updates else self.engine.capacity.fingerprint

    @property
    def closed(self) -> str | None:
        """Why requests are refused at present; None if they are accepted."""
        if self.draining:
            return "the server is shutting down and accepts no further requests"
        return self.engine.healthy()

    def check_open(self) -> None:
        if reason := self.closed:
            raise ApiError(UNAVAILABLE, reason, code="draining" if self.draining else "unhealthy")

    async def tokenized(self, generation: GenerationRequest) -> TokenizedPrompt:
        """Fetch the images of a prompt, and tokenize it."""
        images = await self.media.fetched(generation.all_images())
        return await self.engine.tokenized(generation, images)

    def retry_after(self) -> int:
        """Seconds until the open requests have ended, at the recent rate.

        1 while draining: this server will not accept the retry, another one may at once.
        """
        return 1 if self.draining else self.rate.wait_s(self.board.requests)
