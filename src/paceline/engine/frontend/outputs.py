"""Outputs of requests: text, tokens, log-probabilities, and their numbers."""

from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.arrays import F32
from paceline.core.events import Timings

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and its log-probability at a position."""

    token_id: int
    logprob: float
    text: str  # of this token alone; a part of a character is U+FFFD
    bytes: bytes  # the exact bytes of the token


@dataclass(frozen=True, slots=True)
class DictLogprob:
    """A log-probability as vLLM has it in the dict of a position."""

    logprob: float
    rank: int | None  # 1 for the likeliest; None: not among those that are reported
    decoded_token: str


@dataclass(frozen=True, slots=True)
class TokenLogprob(Mapping[int, DictLogprob]):
    """A token of the output, and the likeliest tokens at its position, best first.

    It can be read as vLLM's dict too: `logprobs[i][token_id].logprob`.
    """

    chosen: Alternative
    top: tuple[Alternative, ...]

    def _ranks(self) -> dict[int, int]:
        """The ranks that are known, by token id."""
        return {one.token_id: rank for rank, one in enumerate(self.top, 1)}

    def _ranked(self) -> dict[int, DictLogprob]:
        ranks = self._ranks()
        return {
            one.token_id: DictLogprob(one.logprob, ranks.get(one.token_id), one.text)
            for one in (self.chosen, *self.top)
        }

    def __getitem__(self, token_id: int) -> DictLogprob:
        return self._ranked()[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranked())

    def __len__(self) -> int:
        return len(self._ranked())

    # Those of `Mapping` would look each token up by itself.

    def items(self) -> ItemsView[int, DictLogprob]:
        return self._ranked().items()

    def values(self) -> ValuesView[DictLogprob]:
        return self._ranked().values()


class NamedLogprob(TokenLogprob):
    """The same with tokens that the request names, whose ranks are not known."""

    __slots__ = ()

    def _ranks(self) -> dict[int, int]:
        return {}


@dataclass(frozen=True, slots=True)
class PromptLogprob(TokenLogprob):
    """The same for a token of the prompt, with its rank: 1 for the likeliest."""

    rank: int

    def _ranks(self) -> dict[int, int]:
        likeliest = {one.token_id: rank for rank, one in enumerate(self.top, 1)}
        return likeliest | {self.chosen.token_id: self.rank}


# One entry per token of the prompt. The first token has None, because nothing precedes it; so have
# tokens that were not computed before the request ended.
PromptLogprobs = Sequence[PromptLogprob | None]


# One is made for each token, so it is not frozen: that would make it five times as expensive.
@dataclass(slots=True, unsafe_hash=True)
class TextDelta:
    """New text and tokens of one choice; the deltas of a choice add up to the whole.

    It is never changed.

    Attributes:
        index: Which of the `n` choices it belongs to.
        text: New text. It may be empty although there are tokens: half a character, or a possible
            start of a stop string, is held back.
        token_ids: New tokens.
        logprobs: One entry per token, if the request wants log-probabilities.
        finish_reason: Why the choice ended; only in its last delta.
        stop_reason: The stop string or stop token of the params that ended it; None for the
            model's own end token.
        prompt_logprobs: Log-probabilities of the prompt, if the request wants them; only in the
            first delta.
        score: Of a beam, its log-probability divided by its length to the power of
            `length_penalty`; only in whole choices.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    score: float | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Log-probability of all its tokens together; None without `logprobs`."""
        if self.logprobs is None:
            return None
        return sum(token.chosen.logprob for token in self.logprobs)

    def followed_by(self, later: "TextDelta") -> "TextDelta":
        """Join this delta and the next one."""
        logprobs = None if self.logprobs is None else (*self.logprobs, *(later.logprobs or ()))
        return TextDelta(
            self.index,
            self.text + later.text,
            self.token_ids + later.token_ids,
            logprobs,
            later.finish_reason,
            later.stop_reason,
            self.prompt_logprobs,
        )


ChoiceOutput = TextDelta  # a whole choice, as one delta


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, over all choices and over samples that were not returned."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # of the prompt, found in the prefix cache

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When the stages of a request began, in seconds after its arrival, in vLLM's names."""

    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    first_token_latency: float
    num_generation_tokens: int

    @classmethod
    def of(cls, took: Timings, usage: Usage) -> "RequestMetrics | None":
        if not took.staged or not took.total_s:
            return None
        scheduled, first = took.queue_s, took.queue_s + took.prefill_s
        tokens = usage.completion_tokens
        return cls(0.0, 0.0, scheduled, first, took.total_s, first, tokens)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The finished output of a request.

    Attributes:
        request_id: Identity of the request.
        prompt: The prompt as text, if it was given as text or as messages.
        prompt_token_ids: The prompt as token ids.
        outputs: The `n` choices; each has `text`, `token_ids`, `finish_reason` and `logprobs`.
        usage: Numbers of prompt tokens, completion tokens and cached tokens.
        timings: Seconds in the queue, in prefill and in decode.
        finished: Whether all choices are complete.
        error: What went wrong, for the finish reasons "error" and "timeout". The choices have the
            tokens that were generated before.
        pooled: The vector of the prompt, if the request has `pooling`.
        kv_transfer_params: Where another engine can read the KV of the prompt, if the request asked
            the connector for it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[ChoiceOutput, ...]
    usage: Usage
    timings: Timings
    finished: bool = True
    error: str = ""
    pooled: F32 | None = None
    kv_transfer_params: Mapping[str, Any] | None = None

    @property
    def metrics(self) -> RequestMetrics | None:
        """When each stage began, in vLLM's names; None for a request that never ran."""
        return RequestMetrics.of(self.timings, self.usage)

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """One entry per token of the prompt, None for the first.

        None if the request does not want them.
        """
        return self.outputs[0].prompt_logprobs
