"""The verbs of residency: how sequences enter slots, leave them, and end."""

from collections import OrderedDict

import numpy as np

from paceline.core.arrays import NO_I32
from paceline.core.config import Config
from paceline.core.events import Happened
from paceline.core.plan import Admitted, Ended
from paceline.core.request import Finish, Sequence
from paceline.kv.cache import Hit, KVCache
from paceline.sched.journal import Journal, note
from paceline.sched.policy import Policy, load
from paceline.sched.queue import WaitingQueue
from paceline.sched.slots import SlotTable
from paceline.sched.stats import Stats
from paceline.sched.stops import StopWatch


class Residency:
    """Every live sequence is in exactly one place: a slot, the waiting queue, or parked.

    The methods here are the only ones that move sequences between places. What the
    runner must be told of it gathers in `released`, `preempted` and `finished` until
    the next plan takes it along.
    """

    def __init__(self, config: Config) -> None:
        self.table = SlotTable(config.step.max_num_seqs, config.step.max_model_len)
        self.cache = KVCache(config.cache, config.step.max_num_seqs, config.step.max_model_len)
        self.policy: Policy = load(config.policy, self)
        self.queue = WaitingQueue(self.policy)
        self.journal = Journal(config.journal)
        self.stops = StopWatch()
        self.stats = Stats()
        self.live: dict[str, Sequence] = {}  # by request id, until they end
        self.released: list[int] = []
        self.preempted: list[str] = []
        self.finished: OrderedDict[str, Sequence] = OrderedDict()
        self.step = 0
        self.now = 0.0
        self._most_drafts = config.speculation.num_speculative_tokens

    # -- what policies see --------------------------------------------------

    def uncached(self, sequence: Sequence) -> int:
        return self.cache.uncached(sequence)

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest prefix that has been computed, also by residents in their outputs.

        Blocks of outputs are named only when a resident leaves, or here, when a lookup
        gets just as far as a resident has named: a steady step costs nothing for it.
        """
        hit = self.cache.lookup(sequence)
        while any(self._name_outputs(slot) for slot in self.cache.continuing(sequence, hit)):
            hit = self.cache.lookup(sequence)
        return hit

    def _name_outputs(self, slot: int) -> bool:
        """Seal the full blocks of a resident that have been handed out; were there any?"""
        table, sealed = self.table, self.cache.sealed[slot]
        filled = int(min(table.planned[slot], table.known[slot]))
        if filled // self.cache.block_size <= sealed:
            return False
        sequence = table.sequence(slot)
        sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
        self.cache.name(sequence)
        self.cache.seal(slot, sequence, min(int(table.computed[slot]), filled), step=None)
        self.cache.seal(slot, sequence, filled, self.step)
        return True

    def loss(self, slot: int) -> int:
        kept = self.cache.shared(slot) * self.cache.block_size
        return max(int(self.table.computed[slot]) - kept, 0)

    # -- coming -------------------------------------------------------------

    def enter(self, sequence: Sequence, parked: str = "") -> None:
        """A new sequence begins to wait, or is parked."""
        self.cache.name(sequence)
        note(sequence, Happened.SUBMITTED, self.now, self.step, len(self.queue))
        self.live[sequence.id] = sequence
        self.policy.joined(sequence)
        if parked:
            self.park(sequence, parked)
        else:
            self.queue.push(sequence)

    def park(self, sequence: Sequence, reason: str) -> None:
        note(sequence, Happened.PARKED, self.now, self.step, cause=reason)
        self.journal.left(sequence, self.now)
        self.policy.parked(sequence)
        self.queue.park(sequence, reason)

    def wake(self, sequence: Sequence) -> None:
        note(sequence, Happened.WOKEN, self.now, self.step, cause=sequence.parked)
        self.policy.woken(sequence)
        self.queue.wake(sequence)

    def admit(self, sequence: Sequence, hit: Hit, tokens: int) -> Admitted:
        """Move a waiting sequence into a slot with blocks for `tokens` positions."""
        resumed = sequence.preemptions > 0
        self.queue.remove(sequence)
        request = sequence.request
        drafts = self._most_drafts if request.drafts is None else request.drafts
        slot = self.table.admit(sequence, hit.tokens, min(drafts, sequence.limit))
        blocks = self.cache.attach(slot, sequence, hit, tokens)
        self.stops.watch(request)
        known = len(sequence.tokens)
        self._count_prefix(sequence, known, hit.tokens, resumed)
        self.policy.admitted(sequence, known - hit.tokens)
        self.journal.passed(sequence, known - hit.tokens, self.step)
        happened = Happened.RESUMED if resumed else Happened.ADMITTED
        note(sequence, happened, self.now, self.step, hit.tokens)
        return Admitted(slot, request, sequence.tokens, hit.tokens, blocks, resumed)

    def _count_prefix(self, sequence: Sequence, known: int, hit: int, resumed: bool) -> None:
        stats = self.stats
        stats.admissions += 1
        if not self.cache.enabled:
            return
        if resumed:
            stats.resumed_queries += known
            stats.resumed_hits += hit
        else:
            stats.prefix_queries += known
            stats.prefix_hits += hit
            sequence.cached = hit

    # -- going --------------------------------------------------------------

    def preempt(self, slot: int, cause: str) -> None:
        """Take a resident's slot and blocks; it waits in front of its equals."""
        sequence = self._release(slot)
        sequence.tokens = sequence.tokens.copy()
        sequence.preemptions += 1
        self.stats.preemptions += 1
        self.preempted.append(sequence.id)
        known = len(sequence.tokens)
        note(sequence, Happened.PREEMPTED, self.now, self.step, known, cause)
        self.queue.push(sequence, in_front=True)

    def finish(
        self, sequence: Sequence, finish: Finish, stop_token: int | None = None, message: str = ""
    ) -> Ended:
        """End a sequence, wherever it is."""
        if sequence.slot >= 0:
            self._release(sequence.slot)
        else:
            self.queue.remove(sequence)
            self.journal.left(sequence, self.now)
        sequence.finish = finish
        del self.live[sequence.id]
        self.finished[sequence.id] = sequence
        self.stats.finished += 1
        self.policy.left(sequence)
        sequence.parked = ""
        cause = message or finish.value
        known = len(sequence.tokens)
        note(sequence, Happened.FINISHED, self.now, self.step, known, cause)
        sequence.tokens, sequence.keys = NO_I32, []  # its life is remembered, its content not
        self.journal.ended(sequence)
        return Ended(sequence.id, finish, stop_token, message)

    def _release(self, slot: int) -> Sequence:
        """Empty a slot. What it computed stays findable until its blocks are reused."""
        computed = int(self.table.computed[slot])
        sequence = self.table.release(slot)
        self.cache.name(sequence)
        self.cache.seal(slot, sequence, min(computed, len(sequence.tokens)), step=None)
        self.cache.release(slot, sequence)
        self.stops.unwatch(sequence.request)
        self.released.append(slot)
        return sequence

    def in_flight(self) -> list[int]:
        """Resident slots with positions that the runner has not confirmed, oldest first."""
        order = self.table.order
        busy = self.table.planned[order] > self.table.computed[order]
        slots: list[int] = order[busy].tolist()
        return slots

    def check(self) -> None:
        """Every invariant, at any point between two calls."""
        self.table.check()
        self.cache.check()
        self.queue.check()
        resident = {self.table.sequence(slot).id for slot in self.table.order.tolist()}
        waiting = {sequence.id for sequence in self.queue}
        parked = {sequence.id for sequence in self.queue.parked.values()}
        assert len(resident) + len(waiting) + len(parked) == len(self.live), "lost or doubled"
        assert resident | waiting | parked == self.live.keys()
        held = np.asarray(self.cache.held) > 0
        assert np.array_equal(held, self.table.resident), "blocks without a resident"
