"""The times of a request, under the names of vLLM."""

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from paceline.engine.api import RequestOutput

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
