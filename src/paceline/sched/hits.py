"""How the hit of an admitted sequence is counted, by place."""

from paceline.core.request import Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit
from paceline.sched.stats import Stats


def count(stats: Stats, sequence: Sequence, hit: Hit, cache: KVCache) -> None:
    """Count the tokens of a sequence that is admitted, and those found, by place."""
    if not cache.index.enabled:
        return
    known, found = len(sequence.tokens), len(hit.device) * cache.block_size
    if sequence.preemptions > 0:
        stats.resumed_queries += known
        stats.resumed_hits += found
    else:
        stats.prefix_queries += known
        stats.prefix_hits += found
        sequence.cached = hit.tokens
    if cache.host.size:
        stats.host_queries += known - found
        stats.host_hits += hit.tokens - found
