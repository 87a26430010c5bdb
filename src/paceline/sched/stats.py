"""Running totals that metrics are made of."""

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Stats:
    """Counted since the scheduler was made. Token counts carry no unit."""

    steps: int = 0
    planned: int = 0  # positions handed to the runner
    sampled: int = 0  # tokens given to clients
    admissions: int = 0
    preemptions: int = 0
    finished: int = 0
    stale_rows: int = 0  # results that came after their slot changed hands
    drafted: int = 0
    accepted: int = 0
    prefix_queries: int = 0  # tokens of newly admitted requests
    prefix_hits: int = 0  # of these, found in the cache
    resumed_queries: int = 0  # the same, for requests that come back after preemption
    resumed_hits: int = 0

    def to_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}
