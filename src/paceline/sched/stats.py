"""Running totals that metrics are made of, and where cached tokens were found."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from paceline.core import request
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit


@dataclass(slots=True)
class Stats:
    """Counted since the scheduler was made. Token counts carry no unit.

    steps, planned                     steps, and positions handed to the runner in them
    sampled, drafted, accepted         tokens generated; drafts among them, tried and right
    admissions, finished, preemptions  of requests
    stale_rows                         results that are dropped: their slot has changed hands
    failed_rows                        results that ended their request with an error
    prefix_queries, prefix_hits        tokens of new requests when admitted, and found on the device
    resumed_queries, resumed_hits      the same, for those that come back after a preemption
    external_queries, external_hits    tokens of both that the device lacks, and those of them that
                                       the host or a connector has
    swapped_out_blocks                 copied to the host
    swapped_in_blocks                  copied back
    swaps_refused                      preemptions that found no room on the host
    forks, copied_blocks               sequences begun from another's blocks; copies for that
    encoder_queries, encoder_hits      images that rows reached, and found encoded
    encoded                            embeddings computed for the others
    """

    steps: int = 0
    planned: int = 0
    sampled: int = 0
    drafted: int = 0
    accepted: int = 0
    admissions: int = 0
    finished: int = 0
    preemptions: int = 0
    stale_rows: int = 0
    failed_rows: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0
    external_queries: int = 0
    external_hits: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    swaps_refused: int = 0
    forks: int = 0
    copied_blocks: int = 0
    encoder_queries: int = 0
    encoder_hits: int = 0
    encoded: int = 0

    @staticmethod
    def of_all(parts: "Sequence[Stats]") -> "Stats":
        """What several schedulers did together."""
        names = [one.name for one in fields(Stats)]
        return Stats(**{name: sum(getattr(one, name) for one in parts) for name in names})

    def to_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def count(
    stats: Stats, sequence: request.Sequence, hit: Hit, cache: KVCache, loaded: int | None = None
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
