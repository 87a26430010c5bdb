"""How the hit of an admitted sequence is counted, by place."""

from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit
from paceline.sched.stats import Stats


def count(
    stats: Stats, sequence: Sequence, hit: Hit, cache: KVCache, loaded: int | None = None
) -> None:
    """Count the tokens of a sequence that is admitted, and those found, by place. `loaded` of those
    on the device came from a connector; None: there is none."""
    if not cache.index.enabled:
        return
    known = len(sequence.tokens)
    found = hit.tokens - len(hit.host) * cache.block_size - (loaded or 0)
    if sequence.preemptions > 0:
        stats.resumed_queries += known
        stats.resumed_hits += found
    else:
        stats.prefix_queries += known
        stats.prefix_hits += found
        sequence.cached = min(hit.tokens, len(sequence.request.prompt))
    if cache.host.size or loaded is not None:
        stats.external_queries += known - found
        stats.external_hits += hit.tokens - found
