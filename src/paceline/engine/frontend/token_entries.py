"""The log-probabilities of the new tokens of a choice."""

from dataclasses import replace

from paceline.core.sampling import Sampling
from paceline.engine.api import Alternative, TokenLogprob
from paceline.engine.core.messages import Delivery
from paceline.engine.frontend.prompt_entries import alternative
from paceline.engine.text_delta import NamedLogprob
from paceline.text.tokenizer import Tokenizer


def token_entries(
    delivery: Delivery, row: int, sampling: Sampling, tokenizer: Tokenizer
) -> list[TokenLogprob]:
    """One entry for each new token of a row; alternatives are known for the first of them."""
    wanted = sampling.logprobs
    if wanted is None or delivery.logprob is None:
        return []
    count = int(delivery.count[row])
    ids, values = delivery.ids[row, :count].tolist(), delivery.logprob[row].tolist()
    chosen = zip(ids, values[:count], strict=True)
    kind = NamedLogprob if sampling.logprob_token_ids else TokenLogprob
    entries: list[TokenLogprob] = [kind(alternative(tokenizer, *pair), ()) for pair in chosen]
    found = delivery.candidates
    if wanted and found is not None:
        pairs = list(zip(found.ids[row].tolist(), found.logprob[row].tolist(), strict=True))
        pairs = reported(pairs, entries[0].chosen, sampling)
        top = tuple(alternative(tokenizer, *pair) for pair in pairs)
        entries[0] = replace(entries[0], top=top)
    return entries


def reported(
    pairs: list[tuple[int, float]], chosen: Alternative, sampling: Sampling
) -> list[tuple[int, float]]:
    """The likeliest tokens, or the token itself and those that the request names."""
    if not sampling.logprob_token_ids:
        return [pair for pair in pairs[: sampling.logprobs] if pair[0] >= 0]
    others = {*sampling.logprob_token_ids} - {chosen.token_id}
    return [(chosen.token_id, chosen.logprob), *(pair for pair in pairs if pair[0] in others)]
