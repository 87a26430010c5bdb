"""Read-only views of the scheduler's state, for code outside `sched`."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from paceline.core.arrays import I32, Bool
from paceline.core.capabilities import StepTimes
from paceline.core.events import Moment
from paceline.core.plan import NO_BLOCK, Rows
from paceline.core.request import Sequence
from paceline.kv.connector import TransferObserver
from paceline.kv.pool import BlockPool
from paceline.sched.explain import sentences
from paceline.sched.explain.journal import Spell
from paceline.sched.policy import Policy
from paceline.sched.slots import SlotTable
from paceline.sched.state import SchedulerState


def take(at: SchedulerState) -> dict[str, Any]:
    """The state as plain data, by request id; finished requests are kept until the next plan."""
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
        "snapshots": len(at.cache.snapshots or ()),
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
    }


def describe(at: SchedulerState, sequence: Sequence) -> dict[str, Any]:
    """Describe a request; of a group, the leader, with unfinished sequences under `children`."""
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


@dataclass(frozen=True, slots=True)
class Gauges:
    """The number of requests in each state, and the usage of the block pool."""

    running: int
    waiting: int  # includes `swapped`, not `parked`
    parked: int
    swapped: int
    kv_usage: float  # share of blocks held; cached blocks without a holder count as free
    total_blocks: int
    block_size: int  # positions in one block
    drafting_paused: bool  # see `Speculation.is_paused`


class SchedulerView:
    """Reads the state between two calls of the scheduler; changes nothing.

    An answer holds until the next call that changes the scheduler.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    # -- requests -----------------------------------------------------------

    def is_live(self, request_id: str) -> bool:
        """Is the request open?"""
        return request_id in self._state.live

    def live_ids(self) -> list[str]:
        """Live requests, in order of submission."""
        return list(self._state.live)

    def leader_serial(self, request_id: str) -> int | None:
        """The serial of the first sequence of a live request; None if the request is not live."""
        leader = self._state.live.get(request_id)
        return None if leader is None else leader.serial

    def parked_for(self, request_id: str) -> str:
        """Why a live request is parked; empty if it is not."""
        return self._state.live[request_id].parked

    def alive(self, rows: Rows) -> Bool:
        """Which rows of a step still have their sequence in its slot."""
        return self._state.table.alive(rows)

    def ahead(self, rows: Rows) -> I32:
        """Positions planned after the one that each row samples in an uncommitted step; -1 if the
        sample is ignored, because the row is stale or the token is known."""
        table, slot = self._state.table, rows.slot
        width, known = rows.count - rows.drafts, table.known[slot]
        counts = table.alive(rows) & (table.computed[slot] + width >= known)
        return np.where(counts, table.planned[slot] - known - rows.drafts, -1)

    def outputs_ahead(self, rows: Rows, start: I32) -> I32:
        """Output tokens of each row when its step begins at `start`, including those that earlier
        steps in flight sample. Call this right after the plan."""
        table, slot = self._state.table, rows.slot
        return np.maximum(table.known[slot], start + 1) - table.prompt[slot]

    def known_tokens(self, request_id: str) -> I32:
        """Known tokens of a live request with a single sequence."""
        sequence = self._state.live[request_id]
        return sequence.tokens if sequence.slot < 0 else self.tokens_in(sequence.slot)

    def tokens_in(self, slot: int) -> I32:
        """Known tokens of the sequence in a slot, or of the one that left it since the latest
        plan."""
        table = self._state.table
        return table.tokens[slot, : table.known[slot]]

    def life(self, request_id: str) -> list[Moment]:
        """The events of a live request so far."""
        return self._state.live[request_id].life

    def ended(self, request_id: str) -> Sequence | None:
        """The latest ended request of this id, if it is remembered.

        All requests that ended since the latest plan are remembered.
        """
        state = self._state
        return state.changes.finished.get(request_id) or state.journal.recall(request_id)

    def sequence(self, request_id: str) -> Sequence | None:
        """A live request, or the latest ended one of this id, if it is remembered."""
        return self._state.live.get(request_id) or self.ended(request_id)

    def ended_ids(self) -> list[str]:
        """Requests that ended since the latest plan."""
        return list(self._state.changes.finished)

    @property
    def connector(self) -> str:
        """The name of the connector; empty: there is none."""
        return self._state.link.name

    def watch_transfers(self, observer: TransferObserver) -> None:
        """Report the transfers of the connector to an observer."""
        self._state.link.observer = observer

    # -- sequence groups -----------------------------------------------------------

    def children(self, request_id: str) -> list[int]:
        """The unfinished sequences of a live group, leader first.

        Empty if the request is not live or has a single sequence.
        """
        sequence_group = self._state.sequence_groups.get(request_id)
        return [] if sequence_group is None else [one.child for one in sequence_group.members]

    def is_silent(self, request_id: str) -> bool:
        """Does a live group report its tokens only at its end?"""
        sequence_group = self._state.sequence_groups.get(request_id)
        return sequence_group is not None and sequence_group.request.silent

    def child_tokens(self, request_id: str, child: int) -> I32:
        """Known tokens of a resident child."""
        state = self._state
        members = state.sequence_groups[request_id].members
        slot = next(one.slot for one in members if one.child == child)
        return state.table.tokens[slot, : state.table.known[slot]]

    # -- queues and memory --------------------------------------------------

    @property
    def table(self) -> SlotTable:
        """The table of residents. Only the scheduler may write it."""
        return self._state.table

    @property
    def policy(self) -> Policy:
        return self._state.policy

    @property
    def pools(self) -> tuple[BlockPool, BlockPool]:
        """The block pools of the device and of the host."""
        return self._state.cache.pool, self._state.cache.host

    def next_waiting(self, most: int) -> list[Sequence]:
        """The first non-resident sequences in the order of admission; parked ones come last."""
        state, found = self._state, list[Sequence]()
        for queue in (state.swapped, state.queue):
            found += queue.first(most - len(found), state.now)
        found += islice(state.queue.parked.values(), most - len(found))
        return found

    def why_waiting(self, sequence: Sequence) -> str:
        """Why a non-resident sequence was not admitted in the latest step."""
        return sentences.why_waiting(sequence, self._state)

    @property
    def queued(self) -> int:
        """Requests that are not resident: waiting, swapped out or parked."""
        return self._state.waiting + len(self._state.queue.parked)

    @property
    def is_runnable(self) -> bool:
        """Is there a live request that is not parked?"""
        return len(self._state.live) > len(self._state.queue.parked)

    @property
    def running(self) -> int:
        """Requests with a sequence in a slot."""
        table, order = self._state.table, self._state.table.order
        if (table.child[order] <= 0).all():  # one sequence per request
            return len(order)
        return len(set(table.name[order].tolist()))

    def gauges(self) -> Gauges:
        state = self._state
        return Gauges(
            running=self.running,
            waiting=state.waiting,
            parked=len(state.queue.parked),
            swapped=len(state.swapped),
            kv_usage=self.kv_usage,
            total_blocks=state.cache.pool.size,
            block_size=state.cache.block_size,
            drafting_paused=state.speculation.is_paused,
        )

    @property
    def asks_step_times(self) -> bool:
        """Does anything ask how long steps with prompts take?"""
        return self._state.times.learns

    @property
    def step_times(self) -> StepTimes | None:
        """The step times that speculation uses; None: the device was not measured."""
        return self._state.speculation.times

    def adapters(self) -> tuple[list[str], list[str]]:
        """Adapters of running requests, and of queued ones."""
        state = self._state
        queued = (*state.queue, *state.swapped, *state.queue.parked.values())
        waiting = dict.fromkeys(one.request.adapter for one in queued if one.request.adapter)
        return [*state.table.adapters], [*waiting]

    @property
    def kv_usage(self) -> float:
        """Share of blocks held. Cached blocks without a holder count as free."""
        pool = self._state.cache.pool
        return 1.0 - pool.free / pool.size

    def free_cached(self, keys: Iterable[bytes]) -> int:
        """Number of cached blocks with these keys that have no holder."""
        pool = self._state.cache.pool
        return sum(pool.free_among(pool.find([key])) for key in keys)

    @property
    def open_spell(self) -> Spell | None:
        """Why and since when admission is stopped; None if the latest step admitted all."""
        return self._state.journal.open_spell
