"""Check that a submitted request can ever run."""

from paceline.core.errors import RequestError
from paceline.core.request import Request
from paceline.core.settings.config import Config
from paceline.kv.cache import KVCache


def fitting_limit(request: Request, config: Config, cache: KVCache) -> int:
    """The most tokens that the request can have. RequestError if it can never run."""
    step, prompt = config.step, len(request.prompt)
    if prompt >= step.max_model_len:
        raise RequestError(
            f"request {request.id!r}: a prompt of {prompt} tokens leaves no room for one more "
            f"within max_model_len {step.max_model_len}"
        )
    longest = step.max_model_len
    if request.max_tokens is not None:
        longest = min(longest, prompt + request.max_tokens)
    known = prompt
    if request.generated:
        known += max(len(one or ()) for one in request.generated)
    if known >= longest:
        raise RequestError(
            f"request {request.id!r}: it has {known} tokens from another engine, and this one ends "
            f"it at {longest}"
        )
    width, span = request.width, longest - 1 + config.speculation.lookahead_slots
    if width > step.max_num_seqs:
        raise RequestError(
            f"request {request.id!r} asks for {width} sequences at once, and max_num_seqs "
            f"is {step.max_num_seqs}"
        )
    need = cache.tables.most_blocks(min(span, step.max_model_len), width, shared=prompt - 1)
    have = cache.pool.size
    if need > have:
        several = f" in each of {width} sequences" if width > 1 else ""
        raise RequestError(
            f"request {request.id!r}: {prompt} prompt tokens and up to {longest - prompt} new "
            f"ones{several} need {need} blocks of {cache.block_size}, and the whole pool "
            f"has {have}"
        )
    if request.images and (problem := unfit_images(request, config)):
        raise RequestError(f"request {request.id!r}: {problem}")
    return longest


def unfit_images(request: Request, config: Config) -> str:
    """Why the images of a request can never be encoded or computed; empty if they can."""
    step, lengths = config.step, {image.identity: image.length for image in request.images}
    longest, total = max(lengths.values()), sum(lengths.values())
    for name, most in (
        ("max_num_encoder_input_tokens", config.encoder_budget),
        ("encoder_cache_size", config.encoder_capacity),
    ):
        if longest > most:
            return f"an image has {longest} embeddings, and {name} is {most}: use a smaller one"
        if total > most and not step.enable_chunked_prefill:
            return (
                f"its images have {total} embeddings in all, and {name} is {most}; a prompt is "
                "computed in one step without enable_chunked_prefill"
            )
    # Other residents may take one position each in every step.
    room = step.max_num_batched_tokens - step.max_num_seqs + 1
    room = min(room, step.long_prefill_token_threshold or room)
    if config.encoder.disable_chunked_mm_input and longest > room and step.enable_chunked_prefill:
        return (
            f"an image has {longest} positions, and with disable_chunked_mm_input a row of a step "
            f"has room for {room}: raise max_num_batched_tokens, or use a smaller image"
        )
    return ""
