"""Rows that failed: which requests end, and what may no longer be found."""

from collections.abc import Iterable

from paceline.core.plan import Ended, Plan, StepResult
from paceline.core.request import Finish, Sequence
from paceline.kv.keys import KEY_BYTES
from paceline.sched.components import SchedulerComponents

CAUSE = "a row that failed on the same prefix"

Doubtful = dict[int, bytes]  # blocks that were findable, and their keys


class Failures:
    """A request of which a row failed ends alone, and leaves nothing doubtful behind.

        positions    [ computed when it last sampled ][ since then, and in flight ]
                        good: it has sampled from them           doubtful

    A sequence that has not sampled since it was admitted has proved nothing, not even what it
    found in the cache. Of one that has gone since, the blocks are doubtful that the steps in
    flight were to fill. What is doubtful is forgotten on the device and on the host, and those
    who build on it without having sampled from it compute it again: also those that failed on
    what one that was admitted earlier has computed. That one ends, so all of this does.

    What one that left without a sample had computed behind doubtful blocks can still be found when
    those are computed again. A sequence that finds it fails, and it is forgotten with that one.
    """

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def end(self, plan: Plan, result: StepResult) -> list[Ended]:
        """End the requests of all rows that failed, as far as they are here."""
        state, rows, table = self._state, plan.rows, self._state.table
        alive, slots = table.alive(rows), rows.slot.tolist()
        reasons = {slots[one.row]: one.reason for one in result.failed if alive[one.row]}
        well = {*rows.slot[alive & rows.samples].tolist()} - reasons.keys()
        ended: list[Ended] = []
        doubtful: Doubtful = {}
        for one in result.failed:
            if not alive[one.row]:
                made = (new.identity for new in plan.encode if new.slot == slots[one.row])
                state.images.forget(made)
                doubtful |= state.cache.index.retract((slots[one.row], int(rows.epoch[one.row])))
        for slot in table.order.tolist():  # as they were admitted, for who may read whose blocks
            if slot not in reasons or not table.resident[slot]:  # it may have gone with its group
                continue
            if not self._may_come_from_others(slot, doubtful):
                leader = state.live[table.sequence(slot).id]
                for member in state.group(leader):
                    doubtful |= self._forget(member)
                ended += self._departures.dismiss(leader, Finish.ERROR, reasons[slot])
                state.images.forget(image.identity for image in leader.request.images)
                state.stats.failed_rows += 1
        if doubtful:
            self._forget_on_host(doubtful.values())
            self._compute_again(doubtful, well)
        return ended

    def _may_come_from_others(self, slot: int, doubtful: Doubtful) -> bool:
        """May the failure come from blocks that an earlier sequence computed?"""
        shares = not doubtful.keys().isdisjoint(self._state.cache.tables.blocks(slot))
        return shares and not self._has_sampled(slot)

    def _forget(self, sequence: Sequence) -> Doubtful:
        """Make the doubtful blocks of a sequence unfindable."""
        cache, slot = self._state.cache, sequence.slot
        if slot < 0:
            return {}  # it has yet to fork
        good = int(self._state.table.computed[slot]) if self._has_sampled(slot) else 0
        found = cache.unseal(slot, sequence, good // cache.block_size)
        self._state.table.invalidate(slot, good)
        return found

    def _forget_on_host(self, keys: Iterable[bytes]) -> None:
        host, index = self._state.cache.host, self._state.cache.index
        names = [name for key in keys for name in index.names(key)]
        self._state.link.forget(names)
        for name in names:
            for block in host.find([name]):
                host.unseal(block, name)

    def _has_sampled(self, slot: int) -> bool:
        """Since it was admitted; it has read everything before it then."""
        return bool(self._state.table.known[slot] > self._state.table.given[slot])

    def _compute_again(self, doubtful: Doubtful, well: set[int]) -> None:
        """Let those begin anew that have read doubtful blocks, unless they sampled well, in this
        step or before."""
        state = self._state
        for slot in state.table.order[::-1].tolist():
            if not state.table.resident[slot] or slot in well or self._has_sampled(slot):
                continue
            if doubtful.keys().isdisjoint(state.cache.tables.blocks(slot)):
                continue
            for one in state.group(state.table.sequence(slot)):
                self._forget_on_host(self._forget(one).values())
            self._departures.preempt(slot, CAUSE, may_swap=False)
        keys = {key[:KEY_BYTES] for key in doubtful.values()}  # whatever the attention group
        for sequence in list(state.swapped):
            group = state.group(sequence)
            if any(not keys.isdisjoint(one.keys) for one in group):
                for one in group:
                    self._forget_on_host(one.keys)
                self._departures.demote(sequence, CAUSE)
