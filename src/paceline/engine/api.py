"""The messages between an engine and those who use it, and what every engine can do."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from paceline.core.errors import PromptTooLong, QueueFull, RequestError
from paceline.core.plan import Timings
from paceline.engine.core.messages import EngineFailed
from paceline.engine.frontend.metrics import Report
from paceline.engine.params import SamplingParams

__all__ = [
    "Alternative",
    "Answer",
    "Ask",
    "AsyncEngine",
    "EngineFailed",
    "FinishReason",
    "Piece",
    "PromptLogprob",
    "PromptLogprobs",
    "PromptTooLong",
    "QueueFull",
    "Report",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "Stream",
    "Timings",
    "TokenLogprob",
    "Usage",
]

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: exactly one of `prompt`, `prompt_token_ids` and `messages` is given.

    `arrival` is in seconds on the engine's clock, the time of asking where it is None;
    `deadline` in seconds from arrival to the first token, by which a policy may order requests;
    `timeout` in seconds from arrival to the end, at which the request is cut with "timeout";
    an empty `request_id` gets a new one.
    `variables`, `tools` and `add_generation_prompt` are read by the chat template, and refused
    without `messages`.
    """

    prompt: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    messages: Sequence[Message] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str = ""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    deadline: float | None = None
    timeout: float | None = None
    arrival: float | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    text: str | None = None  # what the token ids were made of

    def __post_init__(self) -> None:
        given = [self.prompt, self.prompt_token_ids, self.messages]
        if sum(one is not None for one in given) != 1:
            raise RequestError("give one of prompt, prompt_token_ids and messages")
        if self.messages is None:
            self._check_template_fields()
        if self.timeout is not None and not self.timeout > 0:
            raise RequestError(f"timeout is {self.timeout}; it must be positive")

    def _check_template_fields(self) -> None:
        """What only a chat template reads is refused where there is no conversation."""
        given = {
            "tools": bool(self.tools),
            "variables": bool(self.variables),
            "add_generation_prompt": not self.add_generation_prompt,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise RequestError(f"{name} is for the chat template; give messages, or remove {name}")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and how likely the model finds it in its place."""

    token_id: int
    logprob: float
    text: str  # by itself; a part of a character is shown as U+FFFD
    bytes: bytes  # what it stands for exactly


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token of the output, and the likeliest ones in its place, best first."""

    chosen: Alternative
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprob(TokenLogprob):
    """The same for a token of the prompt, with its place among all: 1 for the likeliest."""

    rank: int


# One entry per token of the prompt. Nothing comes before the first one, which has None for that;
# so have those that were not computed when the request ended.
PromptLogprobs = tuple[PromptLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in one choice; pieces of a choice add up exactly to the whole.

    `text` may be empty while tokens are not, since half a character or what may begin a stop
    string is withheld. `logprobs` has an entry per token where they were asked for. The last
    piece of a choice, and only that one, has a `finish_reason`; `stop_reason` is the stop string
    or the stop token that was named in the params, None for the model's own end. The first piece
    of a choice, and only that one, has `prompt_logprobs`, where they were asked for.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None

    def followed_by(self, later: "Piece") -> "Piece":
        """Both as one."""
        told = None if self.logprobs is None else (*self.logprobs, *(later.logprobs or ()))
        return Piece(
            self.index,
            self.text + later.text,
            self.token_ids + later.token_ids,
            told,
            later.finish_reason,
            later.stop_reason,
            self.prompt_logprobs,
        )


Answer = Piece  # a whole choice is a piece with all of it


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, those of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A whole request: `outputs` by index, complete where `finished`.

    A request that ended with "error" or "timeout" says in `error` what went wrong, and has what
    was told before.
    """

    request_id: str
    prompt: str | None  # as text, where it was given as text or as messages
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Answer, ...]
    usage: Usage
    timings: Timings
    finished: bool = True
    error: str = ""

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """One entry per token of the prompt, None for the first; None if they were not asked for.

        All choices have the same.
        """
        return self.outputs[0].prompt_logprobs


class Stream(Protocol):
    """The pieces of one request as they come; iteration ends when the request has.

    A request that is refused raises RequestError (QueueFull: come again later) before the first
    piece, or EngineFailed if nobody is there to take it. One that fails later ends like any
    other, with "error", and `output.error` says why. A stream that is closed, dropped or
    cancelled before its end takes its request with it.
    """

    @property
    def request_id(self) -> str: ...

    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...

    @property
    def output(self) -> RequestOutput | None:
        """The whole, with usage and timings, when the iteration has ended."""
        ...

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def __anext__(self) -> Piece: ...

    async def whole(self) -> RequestOutput:
        """Wait for the end, without the pieces."""
        ...

    async def aclose(self) -> None: ...


class AsyncEngine(Protocol):
    """An engine as the server sees it. All of it is for the thread of one event loop."""

    @property
    def max_model_len(self) -> int:
        """Most tokens of a sequence, prompt and output together."""
        ...

    async def encoded(self, ask: Ask) -> Ask:
        """With token ids for its text, made where that holds up nobody. RequestError if it is
        longer than any prompt can be."""
        ...

    def generate(self, ask: Ask, /) -> Stream:
        """Begin a request. RequestError, QueueFull or EngineFailed if it is refused at once."""
        ...

    async def abort(self, request_id: str) -> bool:
        """End a request, which its stream is told of as "abort". False if it is not here."""
        ...

    async def explain(self, request_id: str) -> str:
        """The life of a request, in sentences. RequestError if it is not remembered."""
        ...

    async def snapshot(self) -> dict[str, Any]:
        """The scheduler's whole state as plain data."""
        ...

    async def stats(self) -> Report:
        """Everything counted so far."""
        ...

    async def pause(self, mode: Literal["new", "all"] = "new") -> None: ...

    async def resume(self) -> None: ...

    async def drain(self) -> None:
        """Take no further requests; returns when those that are here have ended."""
        ...

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool: ...

    def healthy(self) -> str | None:
        """None, or the reason why it is not."""
        ...

    @property
    def last_failure_s(self) -> float | None:
        """How long ago a request ended with an error, if one has."""
        ...

    async def gone(self) -> str:
        """Returns when it has died and nothing comes after it, with the reason."""
        ...

    async def shutdown(self) -> None:
        """End everything, open requests with "abort"."""
        ...
