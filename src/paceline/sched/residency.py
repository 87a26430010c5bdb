"""The verbs of residency: how sequences enter slots, leave them, and end."""

import numpy as np

from paceline.core.arrays import NO_I32
from paceline.core.config import Config
from paceline.core.events import Happened
from paceline.core.plan import Admitted, Ended
from paceline.core.request import Finish, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit
from paceline.sched import hits, sealing
from paceline.sched.changes import News
from paceline.sched.explain.journal import Journal, note
from paceline.sched.families.family import FORK_POINT, LOCKSTEP, Families, Family
from paceline.sched.policy import Policy, load
from paceline.sched.queue import WaitingQueue
from paceline.sched.slots import SlotTable
from paceline.sched.speculation import load as load_speculation
from paceline.sched.stats import Stats
from paceline.sched.stops import StopWatch
from paceline.sched.swapping import Swapping


class Residency:
    """Every live request is in exactly one place: in slots, waiting, swapped, or parked.

    The methods here move sequences between places, and `Children` those that end before others of
    their family. What the runner must be told of it gathers in `news` until the next plan takes
    it along.
    """

    def __init__(self, config: Config) -> None:
        self.table = SlotTable(config.step.max_num_seqs, config.step.max_model_len)
        self.cache = KVCache(
            config.cache,
            config.step.max_num_seqs,
            config.step.max_model_len,
            config.preemption.swap_space,
        )
        self.swapping = Swapping(config.preemption, self.table, self.cache)
        self.policy: Policy = load(config.policy, self)
        self.queue = WaitingQueue(self.policy)
        self.swapped = WaitingQueue(self.policy)
        self.journal = Journal(config.journal)
        self.stops = StopWatch()
        self.stats = Stats()
        self.live: dict[str, Sequence] = {}  # by request id, until they end; families: the leader
        self.families = Families()
        self.news = News()
        self.step = 0
        self.now = 0.0
        self.speculation = load_speculation(config.speculation)

    # -- who is here --------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that could be admitted if there were room."""
        return len(self.queue) + len(self.swapped)

    def head(self, now: float) -> Sequence | None:
        """The sequence to let in next: those that were swapped come before those that wait."""
        return self.swapped.head(now) or self.queue.head(now)

    def queue_of(self, sequence: Sequence) -> WaitingQueue:
        """The queue that a sequence waits in."""
        return self.swapped if sequence.swapped else self.queue

    def family(self, sequence: Sequence) -> Family | None:
        return self.families[sequence.id] if sequence.child >= 0 else None

    def group(self, sequence: Sequence) -> list[Sequence]:
        """The sequences of its request, which come and go with it."""
        family = self.family(sequence)
        return [sequence] if family is None else list(family.members)

    # -- what policies see --------------------------------------------------

    def uncached(self, sequence: Sequence) -> int:
        return len(sequence.tokens) - self.lookup(sequence).tokens

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest prefix that has been computed, or is being computed by residents, on the
        device and on the host."""
        return self.cache.lookup(sequence, self.seal_filled)

    def lookup_device(self, sequence: Sequence) -> Hit:
        """The same without what the host has."""
        return self.cache.lookup_device(sequence, self.seal_filled)

    def seal_filled(self, slot: int) -> bool:
        """Let the full blocks of a resident that have been handed out be found. Returns whether
        there were any."""
        return sealing.seal_filled(self.table, self.cache, slot, self.step)

    def seal_rivals(self) -> None:
        """Let what residents have filled be found that compute the same as another one."""
        if self.cache.index.rivals:
            sealing.seal_rivals(self.table, self.cache, self.step)

    def confirm(self, step: int) -> bool:
        """The device has run `step`; cache events report what became findable. Returns whether
        any fences were lifted."""
        lifted = self.cache.confirm(step)
        if self.cache.events is not None:
            sealing.seal_computed(self.table, self.cache)
        return lifted

    def loss(self, slot: int) -> int:
        kept = self.cache.tables.shared(slot) * self.cache.block_size
        return max(int(self.table.computed[slot]) - kept, 0)

    # -- coming -------------------------------------------------------------

    def enter(self, sequence: Sequence, parked: str = "") -> None:
        """A new sequence begins to wait, or is parked."""
        note(sequence, Happened.SUBMITTED, self.now, self.step, self.waiting)
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
        """Move a waiting sequence into a slot with blocks for `tokens` positions.

        Slots are kept for the rest of its family, which forks from it later.
        """
        resumed = sequence.preemptions > 0
        self.queue.remove(sequence)
        slot = self.table.admit(sequence, hit.tokens, self.drafts(sequence))
        blocks = self.cache.attach(slot, sequence, hit, tokens)
        happened = Happened.RESUMED if resumed else Happened.ADMITTED
        note(sequence, happened, self.now, self.step, hit.tokens)
        if hit.host:
            self._load(sequence, hit)
        self.stats.admissions += 1
        hits.count(self.stats, sequence, hit, self.cache)
        self.journal.passed(sequence, len(sequence.tokens) - hit.tokens, self.step)
        family = self.family(sequence)
        if family is not None and len(family.members) > 1:
            family.kept = [self.table.reserve() for _ in family.members[1:]]
            self.families.forking[sequence.id] = family
            if hit.tokens <= family.fork_point:
                self.table.cap(slot, FORK_POINT, family.fork_point)
        return self.settle(sequence, hit.tokens, blocks)

    def _load(self, sequence: Sequence, hit: Hit) -> None:
        """Let the next step copy the host part of a hit to the device."""
        moves = self.cache.load(sequence.slot, sequence, hit, self.step)
        self.news.swap_in += moves
        self.stats.swapped_in_blocks += len(moves)
        tokens = len(moves) * self.cache.block_size
        note(sequence, Happened.LOADED, self.now, self.step, tokens)

    def settle(self, sequence: Sequence, computed: int, blocks: tuple[int, ...]) -> Admitted:
        """Complete an admission: the sequence has its slot and its blocks."""
        if self.table.silent[sequence.slot]:  # the host adds up scores, or chooses the tokens
            self.table.need_host(sequence.slot, "best sequences")
        self.stops.watch(sequence.request)
        self.policy.admitted(sequence, len(sequence.tokens) - computed)
        request, resumed = sequence.request, sequence.preemptions > 0
        if sequence.child >= 0:
            request = request.child(sequence.child)
            if request.beam_width:
                self.table.cap(sequence.slot, LOCKSTEP, len(sequence.tokens))
        return Admitted(sequence.slot, request, sequence.tokens, computed, blocks, resumed)

    def drafts(self, sequence: Sequence) -> int:
        """Most drafts per step. Beams draft nothing: the host chooses their tokens."""
        request = sequence.request
        if request.beam_width:
            return 0
        usual = self.speculation.config.num_speculative_tokens
        return min(usual if request.drafts is None else request.drafts, sequence.limit)

    def restore(self, sequence: Sequence, spans: list[int]) -> list[Admitted]:
        """Bring a swapped sequence and its family back, with room for `spans[i]` positions."""
        self.swapped.remove(sequence)
        members = self.group(sequence)
        starts = [self.swapping.tier.stored(one).tokens for one in members]
        slots = [
            self.table.admit(one, start, self.drafts(one))
            for one, start in zip(members, starts, strict=True)
        ]
        moves = self.swapping.tier.restore(members, slots, spans, self.step)
        for one in members:
            one.swapped = False
        self.news.swap_in += moves
        self.stats.swapped_in_blocks += len(moves)
        self.journal.passed(sequence, 0, self.step)
        note(sequence, Happened.RETURNED, self.now, self.step, len(moves))
        blocks = [tuple(self.cache.tables.blocks(one.slot)) for one in members]
        return list(map(self.settle, members, starts, blocks))

    # -- going --------------------------------------------------------------

    def preempt(self, slot: int, cause: str, may_swap: bool = True) -> None:
        """Take the slots and blocks of a resident and its family.

        It waits in front of its equals, or on the host if that is cheaper and has room.
        """
        members = self.group(self.table.sequence(slot))
        residents = [one for one in members if one.slot >= 0]
        moved = len(self.news.swap_out)  # for others, in this step
        swaps = may_swap and len(residents) == len(members) and self._swap_out(residents)
        self._vacate(members)
        self._count_preemption(members, cause)
        if swaps:
            moved = len(self.news.swap_out) - moved
            note(members[0], Happened.SWAPPED, self.now, self.step, moved)
            self.swapped.push(members[0], in_front=True)
        else:
            self.queue.push(members[0], in_front=True)

    def _count_preemption(self, members: list[Sequence], cause: str) -> None:
        for one in members:
            one.preemptions += 1
        self.stats.preemptions += 1
        self.news.preempted.append(members[0].id)
        known = sum(len(one.tokens) for one in members)
        note(members[0], Happened.PREEMPTED, self.now, self.step, known, cause)

    def _swap_out(self, residents: list[Sequence]) -> bool:
        """Keep what residents computed on the host, if they should and can be kept there."""
        if not self.swapping.wanted(residents):
            return False
        for one in residents:
            self.seal_filled(one.slot)
        moves = self.swapping.out(residents, self.step)
        if moves is None:
            self.stats.swaps_refused += 1
            cause = "no room on the host"
            note(residents[0], Happened.DEMOTED, self.now, self.step, cause=cause)
            return False
        for one in residents:
            one.swapped = True
        for pairs in self.news.keep_copies([one.slot for one in residents]):
            self.cache.fences.add_copies(self.step, pairs)
        self.news.swap_out += moves
        self.stats.swapped_out_blocks += len(moves)
        return True

    def _vacate(self, members: list[Sequence]) -> None:
        """Release the slots of a group, also those that were kept for it."""
        for one in reversed(members):
            if one.slot >= 0:
                self._release(one.slot)
                one.tokens = one.tokens.copy()
        family = self.family(members[0])
        if family is not None:
            self.families.forking.pop(family.request.id, None)
            family.reports.clear()
            while family.kept:
                self.table.give_back(family.kept.pop())

    def demote(self, sequence: Sequence, cause: str = "the copy did not come about") -> None:
        """What was kept of a swapped sequence is gone: it computes everything again."""
        self.swapped.remove(sequence)
        for one in self.group(sequence):
            self.swapping.tier.discard(one)
            one.swapped = False
        note(sequence, Happened.DEMOTED, self.now, self.step, cause=cause)
        self.queue.push(sequence, in_front=True)

    def finish(
        self, sequence: Sequence, finish: Finish, stop_token: int | None = None
    ) -> list[Ended]:
        """End a resident sequence, and its request if it was the last one of it."""
        self._release(sequence.slot)
        sequence.finish = finish
        family = self.family(sequence)
        if family is None:
            return [self._close(sequence, finish, stop_token)]
        outputs = sequence.tokens[len(sequence.request.prompt) :].tolist()
        family.ended(sequence, tuple(outputs), stop_token)
        told = (
            []
            if family.request.silent
            else [Ended(sequence.id, finish, stop_token, child=sequence.child)]
        )
        if not family.members:
            return [*told, self._close(sequence, family.finish)]
        self.live[sequence.id] = family.leader
        if family.leader.slot < 0:
            self._orphaned(family)
        return told

    def _orphaned(self, family: Family) -> None:
        """Their leader ended before the others had forked from it: they begin anew."""
        self._vacate(list(family.members))
        self._count_preemption(family.members, "the end of the one that computed the prompt")
        self.queue.push(family.leader, in_front=True)

    def dismiss(self, sequence: Sequence, finish: Finish, message: str = "") -> list[Ended]:
        """End a request with all its sequences, wherever it is."""
        members = self.group(sequence)
        if sequence.slot >= 0:
            self._vacate(members)
        else:
            self.queue.remove(sequence)
            self.swapped.remove(sequence)
            self.journal.left(sequence, self.now)
        for one in members:
            self.swapping.tier.discard(one)
            one.finish, one.swapped = finish, False
        told = (
            []
            if sequence.child < 0 or sequence.request.silent
            else [Ended(sequence.id, finish, message=message, child=one.child) for one in members]
        )
        return [*told, self._close(members[0], finish, message=message)]

    def conclude(self, family: Family) -> Ended:
        """A beam search is over: its beams go, its ends are told."""
        members = list(family.members)
        self._vacate(members)
        for one in members:
            one.finish = family.finish
        return self._close(members[0], family.finish)

    def _close(
        self, sequence: Sequence, finish: Finish, stop_token: int | None = None, message: str = ""
    ) -> Ended:
        """The request of a sequence is over."""
        family = self.families.pop(sequence.id, None)
        whole = finish in (Finish.STOP, Finish.LENGTH)
        choices = family.best() if family is not None and whole else ()
        del self.live[sequence.id]
        self.news.finished[sequence.id] = sequence
        self.stats.finished += 1
        self.policy.left(sequence)
        sequence.parked = ""
        known = len(sequence.tokens)
        cause = message or finish.value
        note(sequence, Happened.FINISHED, self.now, self.step, known, cause)
        sequence.tokens, sequence.keys = NO_I32, []  # its life is remembered, its content not
        self.journal.ended(sequence)
        return Ended(sequence.id, finish, stop_token, message, choices=choices)

    def _release(self, slot: int) -> Sequence:
        """Empty a slot. What it computed stays findable until its blocks are reused."""
        computed = int(self.table.computed[slot])
        if computed < self.table.given[slot]:
            self.seal_filled(slot)  # the steps in flight will fill what they were to fill
        sequence = self.table.release(slot)
        if drafted := int(self.table.drafted[slot]):
            accepted = int(self.table.accepted[slot])
            note(sequence, Happened.DRAFTED, self.now, self.step, accepted, str(drafted))
        self.cache.release(slot, sequence, min(computed, len(sequence.tokens)))
        self.stops.unwatch(sequence.request)
        self.news.release(slot)
        return sequence

    def in_flight(self) -> list[int]:
        """Resident slots with positions or copies that the runner has not confirmed, oldest
        first."""
        order, table, arriving = self.table.order, self.table, self.cache.fences.arriving
        busy = table.planned[order] > table.computed[order]
        if arriving:
            busy |= np.isin(table.serial[order], list(arriving))
        slots: list[int] = order[busy].tolist()
        return slots

    def check(self) -> None:
        """Every invariant, at any point between two calls."""
        self.table.check()
        self.cache.check()
        self.swapping.tier.check()
        places = [
            {self.table.sequence(slot).id for slot in self.table.order.tolist()},
            {sequence.id for sequence in self.queue},
            {sequence.id for sequence in self.swapped},
            {sequence.id for sequence in self.queue.parked.values()},
        ]
        for queue in (self.queue, self.swapped):
            queue.check()
        assert sum(map(len, places)) == len(self.live), "lost or doubled"
        assert set[str]().union(*places) == self.live.keys()
        assert all(sequence.swapped for sequence in self.swapped)
        held = np.asarray(self.cache.tables.held) > 0
        assert np.array_equal(held, self.table.resident), "blocks without a resident"
        assert self.cache.index.epoch == self.table.epoch.tolist(), "epochs differ"
        stopped = self.journal.open_spell
        assert stopped is None or self.waiting, "a gate is shut, and no request waits"
