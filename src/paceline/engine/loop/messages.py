"""The messages between the step loop and the front end: ids and arrays, no text."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition
from typing import Any, Literal

from paceline.core.arrays import F32, I32, I64
from paceline.core.errors import PacelineError, QueueFull, RequestError
from paceline.core.plan import Candidates, Ended
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Request
from paceline.core.settings.config import Config

Verb = Literal[
    "explain",
    "snapshot",
    "gauges",
    "pause",
    "paused",
    "resume",
    "drain",
    "reset_prefix_cache",
    "adapters",
    "load_adapter",
    "unload_adapter",
    "update_weights",
    "weight_version",
    "sleep",
    "wake_up",
    "is_sleeping",
    "frames",
    "life",
]


Mode = Literal["abort", "wait", "keep"]  # what happens to open requests when a model changes
Arrivals = Literal["wait", "refuse"]  # and to those that arrive while it sleeps


class EngineFailed(PacelineError):
    """The engine's fault: it has stopped and refuses requests."""


class EngineUnavailable(EngineFailed):
    """The engine is being restarted; the client may try again later."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The sizes of an engine, fixed when it is built. Several engines have the same ones."""

    max_model_len: int  # tokens of a sequence, prompt and output together
    block_size: int  # positions in one block
    num_blocks: int
    max_num_seqs: int  # sequences that run at once
    max_num_queued_reqs: int  # requests that wait
    enable_prefix_caching: bool = True
    fingerprint: str = ""  # of everything that outputs depend on
    engines: int = 1  # with a step loop each, for different requests

    @property
    def cached_block(self) -> int:
        """Tokens of a block that the prefix cache keeps; 0: there is no prefix cache."""
        return self.block_size if self.enable_prefix_caching else 0

    @staticmethod
    def of(config: Config) -> "Capacity":
        return Capacity(
            max_model_len=config.step.max_model_len,
            block_size=config.cache.block_size,
            num_blocks=config.cache.num_blocks,
            max_num_seqs=config.step.max_num_seqs,
            max_num_queued_reqs=config.queue.max_num_queued_reqs,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            fingerprint=config.cache.system_fingerprint,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    """Let a request wait, or park it for a reason until a `Wake`."""

    read: Callable[[], Request]  # decodes it, for a turn that accepts it
    parked: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, or one of its choices."""

    request_id: str
    child: int | None = None  # None: the whole request


@dataclass(frozen=True, slots=True)
class Park:
    """Set a waiting request aside until a `Wake`; ignored if the request is not waiting."""

    request_id: str
    reason: str  # what it waits for: "grammar", "remote_kv", ...

    def __post_init__(self) -> None:
        if not self.reason:
            raise RequestError(f"request {self.request_id!r} cannot be parked without a reason")


@dataclass(frozen=True, slots=True)
class Wake:
    """Return a parked request to its position in the queue; ignored if it is not parked."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the engine between two steps; the answer is plain data."""

    verb: Verb
    argument: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class PendingQuestion:
    """A question, and the future for its answer."""

    question: Question
    answer: Future[Any]


@dataclass(frozen=True, slots=True)
class RequestPrepared:
    """Something that a request needs before it runs is there, or cannot be had."""

    request_id: str


@dataclass(frozen=True, slots=True)
class RunnerLost:
    """The runner can run nothing more, whether or not a step is in flight."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """A connector, an adapter or a change of the model has news, for which the next turn asks."""


CoreNews = RequestPrepared | WorkEnded | RunnerLost
Command = Submit | Abort | Park | Wake | PendingQuestion | CoreNews  # from any thread to an engine


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that never started."""

    request_id: str
    error: PacelineError


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """The report of one turn, in columns: the first `count[i]` of `ids[i]` are the new tokens of
    row i."""

    time: float  # seconds on the engine's clock
    handle: I64  # of each sequence: `handle` of its request, plus its index among several
    ids: I32  # [rows, 1 + most drafts]
    count: I32
    logprob: F32 | None = None  # [rows, 1 + most drafts]
    candidates: Candidates | None = None  # of the first new token of each row
    ended: tuple[Ended, ...] = ()
    refused: tuple[Refused, ...] = ()
    prompt: tuple[PromptScores, ...] = ()
    pooled: tuple[PooledSpan, ...] = ()
    engine: int = 0  # which of several engines reports
    broken: str = ""  # why the engine has stopped for good; it gives its requests up with an error


def silent() -> None:
    """`wait` returns anyway."""


class Inbox:
    """Keeps messages in order; at most `limit` of them are requests."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = Condition()
        self._messages: deque[Command] = deque()
        self.requests = 0  # of the messages
        self.alarm: Callable[[], None] = silent  # called by `put`, on any thread

    def put(self, message: Command) -> None:
        """Put a message from any thread."""
        self.add(message)
        self.alarm()

    def add(self, message: Command) -> None:
        """Put a message from the thread that drains, which needs no alarm."""
        with self._changed:
            if isinstance(message, Submit):
                if self.requests >= self._limit:
                    raise QueueFull(too_many(self._limit))
                self.requests += 1
            self._messages.append(message)
            self._changed.notify()

    def drain(self, most: int | None = None) -> list[Command]:
        """The oldest messages, with at most so many requests; without `most`, all messages."""
        with self._changed:
            if most is None or self.requests <= most:
                taken, self.requests = list(self._messages), 0
                self._messages.clear()
                return taken
            left, taken = self.requests - most, list[Command]()
            while self.requests > left:
                taken.append(self._messages.popleft())
                self.requests -= isinstance(taken[-1], Submit)
            return taken

    def wait(self, timeout_s: float | None) -> None:
        """Return when there is a message, or after `timeout_s`."""
        with self._changed:
            if not self._messages:
                self._changed.wait(timeout_s)

    def __bool__(self) -> bool:
        return bool(self._messages)


def too_many(limit: int) -> str:
    return f"{limit} requests already wait for the engine's next turn (inbox_requests)"
