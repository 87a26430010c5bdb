"""Counters for metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from paceline.core import request
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit


@dataclass(slots=True)
class Stats:
    """Totals since the scheduler was created. Counts without a unit are tokens.

    steps, planned                     steps, and positions planned in them
    sampled, drafted, accepted         tokens generated; drafts computed, and accepted
    admissions, finished, preemptions  of requests
    stale_rows                         results dropped because the slot has another sequence
    failed_rows                        results that ended their request with an error
    prefix_queries, prefix_hits        tokens of new requests at admission / found on the device
    resumed_queries, resumed_hits      the same for requests that resume after a preemption
    external_queries, external_hits    tokens of both not found on the device / found on the host or
                                       with a connector
    swapped_out_blocks                 blocks copied to the host
    swapped_in_blocks                  blocks copied back
    swaps_refused                      preemptions that found no room on the host
    forks, copied_blocks               sequences forked from another / blocks copied for that
    encoder_queries, encoder_hits      images that rows reached / found encoded
    encoded                            embeddings computed
    slo_attained                       requests with targets that met all of them
    slo_missed_queue, slo_missed_interference, slo_missed_preemption, slo_missed_device
                                       those that did not, by cause
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
    slo_attained: int = 0
    slo_missed_queue: int = 0
    slo_missed_interference: int = 0
    slo_missed_preemption: int = 0
    slo_missed_device: int = 0

    @property
    def slo_missed(self) -> int:
        """Requests with targets that missed one."""
        names = [one.name for one in fields(self) if one.name.startswith("slo_missed")]
        return sum(getattr(self, name) for name in names)

    def judge(self, cause: str) -> None:
        """Count a request with targets that ended and missed one for this cause; "": it met all."""
        name = f"slo_missed_{cause}" if cause else "slo_attained"
        setattr(self, name, getattr(self, name) + 1)

    @staticmethod
    def of_all(parts: "Sequence[Stats]") -> "Stats":
        """The sum of several schedulers."""
        names = [one.name for one in fields(Stats)]
        return Stats(**{name: sum(getattr(one, name) for one in parts) for name in names})

    def to_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def count(
    stats: Stats, sequence: request.Sequence, hit: Hit, cache: KVCache, loaded: int | None = None
) -> None:
    """Count the tokens of an admitted sequence, and those found in each cache. A connector loaded
    `loaded` of those on the device; None: there is no connector."""
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
