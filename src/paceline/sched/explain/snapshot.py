"""The whole state of a scheduler as plain data."""

from typing import Any

from paceline.core.plan import NO_BLOCK
from paceline.core.request import Sequence
from paceline.sched.state import SchedulerState


def take(at: SchedulerState) -> dict[str, Any]:
    """Queues, counters and blocks by request id; finished requests until the next plan."""
    stats, pool = at.stats, at.cache.pool
    requests = {**at.changes.finished, **at.live}
    residents = [at.table.sequence(slot).id for slot in at.table.order.tolist()]
    return {
        "step": at.step,
        "waiting": [sequence.id for sequence in at.queue.in_order(at.now)],
        "parked": {sequence.id: sequence.parked for sequence in at.queue.parked.values()},
        "running": list(dict.fromkeys(residents)),
        "swapped": [sequence.id for sequence in at.swapped.in_order(at.now)],
        "requests": {name: describe(at, sequence) for name, sequence in requests.items()},
        "free_blocks": pool.free,
        "total_blocks": pool.size,
        "host_free_blocks": at.cache.host.free,
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
    }


def describe(at: SchedulerState, sequence: Sequence) -> dict[str, Any]:
    """One request; a family as its leader, with its unfinished sequences under `children`."""
    found = describe_one(at, sequence)
    if sequence.child >= 0 and sequence.finish is None:
        found["children"] = {str(one.child): describe_one(at, one) for one in at.group(sequence)}
    return found


def describe_one(at: SchedulerState, sequence: Sequence) -> dict[str, Any]:
    slot, table = sequence.slot, at.table
    resident = slot >= 0
    known = int(table.known[slot]) if resident else len(sequence.tokens)
    groups = at.cache.tables.entries(slot) if resident else [()] * at.cache.tables.groups
    return {
        "state": sequence.state,
        "known": sequence.life[-1].amount if sequence.finish else known,
        "planned": int(table.planned[slot]) if resident else 0,
        "computed": int(table.computed[slot]) if resident else 0,
        "prompt": len(sequence.request.prompt),
        "preemptions": sequence.preemptions,
        "cached": sequence.cached,
        "blocks": [[block for block in group if block != NO_BLOCK] for group in groups],
    }
