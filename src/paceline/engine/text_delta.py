"""What outputs are made of: text, tokens, log-probabilities, and their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "timeout", "error"]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token and its log-probability at a position."""

    token_id: int
    logprob: float
    text: str  # of this token alone; a part of a character is U+FFFD
    bytes: bytes  # the exact bytes of the token


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of the output, and the likeliest tokens at its position, best first."""

    chosen: Alternative
    top: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class PromptLogprob(TokenLogprob):
    """The same for a token of the prompt, with its rank: 1 for the likeliest."""

    rank: int


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
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None

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
