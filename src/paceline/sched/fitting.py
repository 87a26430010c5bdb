"""Whether a request can run at all, and at how many tokens it will end."""

from paceline.core.config import Config
from paceline.core.errors import RequestError
from paceline.core.request import Request
from paceline.kv.cache import KVCache


def fitting_limit(request: Request, config: Config, cache: KVCache) -> int:
    """The tokens at which the request ends at the latest. RequestError if it can never run."""
    step, prompt = config.step, len(request.prompt)
    if prompt >= step.max_model_len:
        raise RequestError(
            f"request {request.id!r}: a prompt of {prompt} tokens leaves no room for one more "
            f"within max_model_len {step.max_model_len}"
        )
    longest = step.max_model_len
    if request.max_tokens is not None:
        longest = min(longest, prompt + request.max_tokens)
    width, span = request.width, longest - 1 + config.speculation.lookahead_slots
    if width > step.max_num_seqs:
        raise RequestError(
            f"request {request.id!r} asks for {width} sequences at once, and max_num_seqs "
            f"is {step.max_num_seqs}"
        )
    need, have = cache.blocks_for(min(span, step.max_model_len)), cache.pool.size
    need += (width - 1) * (need - (prompt - 1) // cache.block_size)
    if need > have:
        several = f" in each of {width} sequences" if width > 1 else ""
        raise RequestError(
            f"request {request.id!r}: {prompt} prompt tokens and up to {longest - prompt} new "
            f"ones{several} need {need} blocks of {cache.block_size}, and the whole pool "
            f"has {have}"
        )
    return longest
