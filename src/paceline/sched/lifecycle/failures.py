"""Failed rows: end their requests, and remove doubtful blocks from the caches."""

from collections.abc import Iterable

from paceline.core.plan import Ended, Plan, StepResult
from paceline.core.request import Finish, Sequence
from paceline.kv.keys import KEY_BYTES
from paceline.sched.components import SchedulerComponents

CAUSE = "a row that failed on the same prefix"

Doubtful = dict[int, bytes]  # cached blocks and their keys


class Failures:
    """Ends the requests of failed rows alone, and makes their doubtful blocks unfindable.

        positions    [ computed when it last sampled ][ computed since, or in flight ]
                        good: it has sampled from them           doubtful

    Of a sequence that has not sampled since its admission, all blocks are doubtful, including its
    prefix hit. Of a sequence that has left since, the blocks that the steps in flight were to fill
    are. Doubtful blocks are removed from the caches of the device and the host. Residents that read
    them and have not sampled are preempted and compute again, even if their row failed too: the
    cause may be a block of a sequence admitted earlier. That one ends, so this terminates.

    Blocks after doubtful ones, of a sequence that left without a sample, can still be found once
    the doubtful ones are computed again. A sequence that reads them fails, and its failure removes
    them.
    """

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def end(self, plan: Plan, result: StepResult) -> list[Ended]:
        """End the requests of failed rows that are still alive."""
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
                owner = slots[one.row], int(rows.epoch[one.row])
                doubtful |= state.cache.index.retract(owner)
                state.states.retract(owner)
        for slot in table.order.tolist():  # later ones may read blocks of earlier ones
            if slot not in reasons or not table.resident[slot]:  # it may have left with its group
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
        return not (self._has_sampled(slot) or doubtful.keys().isdisjoint(self._read(slot)))

    def _read(self, slot: int) -> list[int]:
        """The blocks that a resident reads, and those that its state came from."""
        return [*self._state.cache.tables.blocks(slot), *self._state.states.read(slot)]

    def _forget(self, sequence: Sequence) -> Doubtful:
        """Remove the doubtful blocks of a sequence from the cache."""
        cache, slot = self._state.cache, sequence.slot
        if slot < 0:
            return {}  # it has not forked yet
        has_sampled = self._has_sampled(slot)
        good = int(self._state.table.computed[slot]) if has_sampled else 0
        found = cache.unseal(slot, sequence, good // cache.block_size)
        found |= self._state.states.forget(slot, has_sampled)
        self._state.table.invalidate(slot, good)
        return found

    def _forget_on_host(self, keys: Iterable[bytes]) -> None:
        host, index = self._state.cache.host, self._state.cache.index
        keys = [*keys]
        names = [name for key in keys for name in index.names(key)]
        self._state.link.forget([*names, *(key for key in keys if key not in names)])
        for name in names:
            for block in host.find([name]):
                host.unseal(block, name)

    def _has_sampled(self, slot: int) -> bool:
        """Has it sampled since its admission, and thus read all its blocks?"""
        return bool(self._state.table.known[slot] > self._state.table.given[slot])

    def _compute_again(self, doubtful: Doubtful, well: set[int]) -> None:
        """Preempt residents that have read doubtful blocks, unless they have sampled, in this step
        or before."""
        state = self._state
        for slot in state.table.order[::-1].tolist():
            if not state.table.resident[slot] or slot in well or self._has_sampled(slot):
                continue
            if doubtful.keys().isdisjoint(self._read(slot)):
                continue
            for one in state.group(state.table.sequence(slot)):
                self._forget_on_host(self._forget(one).values())
            self._departures.preempt(slot, CAUSE, may_swap=False)
        keys = {key[:KEY_BYTES] for key in doubtful.values()}  # without the attention group
        for sequence in list(state.swapped):
            group = state.group(sequence)
            if any(not keys.isdisjoint(one.keys) for one in group):
                for one in group:
                    self._forget_on_host(one.keys)
                self._departures.demote(sequence, CAUSE)
