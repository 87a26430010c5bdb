"""Bodies of responses, with the fields of OpenAI's API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from paceline.core.sampling import alternatives
from paceline.engine.api import (
    Alternative,
    FinishReason,
    PromptLogprob,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from paceline.server.schemas.chat_messages import AssistantMessage, Delta

MS = 1000.0  # milliseconds of a second


class RequestTimes(Struct, frozen=True):
    """Times of one sequence of tokens; absent where there are too few tokens to tell.

    time_to_first_token_ms  from the first admission to the first token
    generation_time_ms      from there to the end
    queue_time_ms           from arrival to the first admission
    mean_itl_ms             between two tokens, on average
    tokens_per_second       of the time after the first admission
    """

    time_to_first_token_ms: float | UnsetType = UNSET
    generation_time_ms: float | UnsetType = UNSET
    queue_time_ms: float | UnsetType = UNSET
    mean_itl_ms: float | UnsetType = UNSET
    tokens_per_second: float | UnsetType = UNSET


def times_of(outputs: Sequence[RequestOutput]) -> RequestTimes | None:
    """The times of a response. None for several choices, whose tokens were computed together."""
    if sum(len(output.outputs) for output in outputs) != 1:
        return None
    output, spent = outputs[0], outputs[0].timings
    tokens = output.usage.completion_tokens
    if not tokens or not spent.staged:
        return RequestTimes()
    computing_s = spent.prefill_s + spent.decode_s
    return RequestTimes(
        spent.prefill_s * MS,
        spent.decode_s * MS,
        spent.queue_s * MS,
        spent.decode_s * MS / (tokens - 1) if tokens > 1 else UNSET,
        tokens / computing_s if computing_s else UNSET,
    )


ChatFinishReason = FinishReason | Literal["tool_calls"]

IMPOSSIBLE = -9999.0  # JSON has no infinity
DONE = b"data: [DONE]\n\n"

encode = msgspec.json.encode


class PromptTokensDetails(Struct, frozen=True):
    """Prompt tokens from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(Struct, frozen=True):
    """Generated tokens of reasoning, with its markers."""

    reasoning_tokens: int


class CompletionUsage(Struct, frozen=True):
    """Token counts of a response."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class StageTimings(Struct, frozen=True):
    """Seconds in each stage."""

    queue_s: float
    prefill_s: float
    decode_s: float
    total_s: float
    cached_tokens: int
    preemptions: int


class TopLogprob(Struct, frozen=True):
    """A likely token at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct, frozen=True):
    """A token of the text, and the likeliest tokens at its position."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """One entry per token."""

    content: list[ChatLogprob]


class TextLogprobs(Struct, frozen=True):
    """Columns with one entry per token; offsets count the characters of the text.

    The first token of a prompt has no logprobs.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class RankedLogprob(Struct, frozen=True):
    """A token at a position of the prompt; the likeliest one has rank 1."""

    logprob: float
    rank: int
    decoded_token: str


KVTransferParams = Mapping[str, Any] | UnsetType
PromptColumn = list[
    dict[str, RankedLogprob] | None
]  # by token id; the token of the prompt is first


class ChatChunkChoice(Struct, frozen=True):
    """New content of one choice of a chat."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """A whole choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | UnsetType | None = UNSET
    prompt_logprobs: PromptColumn | UnsetType | None = UNSET  # of a batch, as the next one
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET


class TextChoice(Struct, frozen=True):
    """A choice of a completion, or its new content."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptColumn | UnsetType | None = UNSET
    token_ids: Sequence[int] | UnsetType | None = UNSET
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET


class ChatChunk(Struct, frozen=True):
    """An event of a streamed chat."""

    id: str
    created: int
    model: str
    choices: Sequence[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    timings: StageTimings | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    kv_transfer_params: KVTransferParams = UNSET
    metrics: RequestTimes | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    object: str = "chat.completion.chunk"


class ChatCompletion(Struct, frozen=True):
    """The whole answer to a chat."""

    id: str
    created: int
    model: str
    choices: Sequence[ChatChoice]
    usage: CompletionUsage
    timings: StageTimings | UnsetType = UNSET
    prompt_logprobs: PromptColumn | UnsetType | None = None
    prompt_token_ids: Sequence[int] | UnsetType | None = UNSET
    kv_transfer_params: KVTransferParams = UNSET
    metrics: RequestTimes | UnsetType | None = UNSET
    prompt_text: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    object: str = "chat.completion"


class Completion(Struct, frozen=True):
    """The whole answer to a completion, or an event of a streamed one."""

    id: str
    created: int
    model: str
    choices: Sequence[TextChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    timings: StageTimings | UnsetType = UNSET
    kv_transfer_params: KVTransferParams = UNSET
    metrics: RequestTimes | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    object: str = "text_completion"


def event(message: Struct) -> bytes:
    """Encode a message as a server-sent event."""
    return b"data: " + encode(message) + b"\n\n"


def usage_of(counted: Sequence[Usage], reasoning: int | None = None) -> CompletionUsage:
    """`reasoning`: tokens of reasoning; None if the model has none."""
    prompt = sum(each.prompt_tokens for each in counted)
    completion = sum(each.completion_tokens for each in counted)
    cached = sum(each.cached_tokens for each in counted)
    return CompletionUsage(
        prompt,
        completion,
        prompt + completion,
        PromptTokensDetails(cached),
        UNSET if reasoning is None else CompletionTokensDetails(reasoning),
    )


def spent_by(outputs: Sequence[RequestOutput]) -> StageTimings:
    """Seconds in each stage; of several parts, the longest."""
    timings = [output.timings for output in outputs]
    return StageTimings(
        queue_s=max(each.queue_s for each in timings),
        prefill_s=max(each.prefill_s for each in timings),
        decode_s=max(each.decode_s for each in timings),
        total_s=max(each.total_s for each in timings),
        cached_tokens=sum(output.usage.cached_tokens for output in outputs),
        preemptions=sum(each.preemptions for each in timings),
    )


def finite(logprob: float) -> float:
    return logprob if isfinite(logprob) else IMPOSSIBLE


def chat_logprobs(
    entries: Sequence[TokenLogprob] | None, as_ids: bool = False
) -> ChatLogprobs | None:
    """An entry per token; `as_ids` writes tokens as their ids."""
    if entries is None:
        return None

    def top_logprob(one: Alternative) -> TopLogprob:
        text = id_text(one.token_id) if as_ids else one.text
        return TopLogprob(text, finite(one.logprob), list(one.bytes))

    def chat_logprob(entry: TokenLogprob) -> ChatLogprob:
        chosen = top_logprob(entry.chosen)
        others = [top_logprob(one) for one in entry.top]
        return ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, others)

    return ChatLogprobs([chat_logprob(entry) for entry in entries])


@dataclass(frozen=True, slots=True)
class TokenSpeller:
    """Writes tokens as the names that `logprobs` of completions has: texts or ids.

    Two parts of a character have the same text, U+FFFD, so they are written byte by byte. An
    alternative without a text, such as an id that the tokenizer does not know, is written as id.
    """

    as_ids: bool = False

    def spell(self, token_id: int, spelled: bytes) -> str:
        if self.as_ids:
            return id_text(token_id)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def tops(self, entry: TokenLogprob, most: int) -> dict[str, float]:
        """The token itself, then the `most` likeliest ones, best first.

        Clients of vLLM take the first for the token. Of other tokens with the same text only the
        likeliest is kept.
        """
        found: dict[str, float] = {}
        for one in (entry.chosen, *entry.top[: alternatives(most)]):
            name = self.spell(one.token_id, one.bytes) or id_text(one.token_id)
            found.setdefault(name, one.logprob)
        return {text: finite(logprob) for text, logprob in found.items()}


def id_text(token_id: int) -> str:
    return f"token_id:{token_id}"


def prompt_column(
    entries: Sequence[PromptLogprob | None] | None, most: int | None
) -> PromptColumn | None:
    """Prompt logprobs with at most `most` alternatives; None if `most` is."""
    if entries is None or most is None:
        return None
    return [None if one is None else ranked(one, alternatives(most)) for one in entries]


def ranked(entry: PromptLogprob, most: int) -> dict[str, RankedLogprob]:
    others = [(one, rank) for rank, one in enumerate(entry.top[:most], 1)]
    return {
        str(one.token_id): RankedLogprob(finite(one.logprob), rank, one.text)
        for one, rank in [(entry.chosen, entry.rank), *others]
    }
