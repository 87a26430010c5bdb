"""Running totals that metrics are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, fields


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
    encoder_queries, encoder_hits      multimodal items that rows reached, and found encoded
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
