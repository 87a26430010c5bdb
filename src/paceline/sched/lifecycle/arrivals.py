"""Sequences enter: they wait, are admitted into slots, or return from the host."""

from paceline.core.events import Happened
from paceline.core.plan import Admitted, Blocks
from paceline.core.request import Sequence
from paceline.kv.hit import Hit
from paceline.sched import stats as hits
from paceline.sched.admission.bodies import wake
from paceline.sched.commit.stops import StopWatch
from paceline.sched.explain.journal import note
from paceline.sched.groups.group import FORK_POINT, LOCKSTEP
from paceline.sched.queue import REMOTE_KV, SHARE_OF_SLOTS
from paceline.sched.state import SchedulerState


class Arrivals:
    """Moves sequences into queues and slots, and notes these events."""

    def __init__(self, state: SchedulerState, stops: StopWatch) -> None:
        self._state = state
        self._stops = stops

    def enter(self, sequence: Sequence, parked: str = "") -> None:
        """Queue a new sequence, or park it."""
        state = self._state
        note(sequence, Happened.SUBMITTED, state.now, state.step, state.waiting)
        state.live[sequence.id] = sequence
        state.promises.opened(sequence)
        state.times.learns |= state.promises.open > 0
        state.policy.joined(sequence)
        state.bodies.latest = sequence.serial
        if state.cache.eviction.watches:
            state.cache.asked(sequence, state.prefixes.lookup_device(sequence))
        if parked:
            self._park(sequence, parked)
        elif state.bodies.takes(sequence.request):
            state.queue.push(sequence)
        else:
            self._hold(sequence)

    def park(self, sequence: Sequence, reason: str) -> bool:
        """Park a sequence that waits or is parked for others of its body; False if it is neither.
        While its KV is loaded, it keeps its share of slots."""
        if sequence not in self._state.queue or sequence.parked not in ("", SHARE_OF_SLOTS):
            return False
        if sequence.parked:  # only waiting requests load
            if reason == REMOTE_KV:
                return False
            self._repark(sequence, reason)
            return True
        self._park(sequence, reason)
        if reason != REMOTE_KV:
            self._state.bodies.left(sequence.request)
        return True

    def _hold(self, sequence: Sequence) -> None:
        """Park a sequence because its body has used its share of slots."""
        self._park(sequence, SHARE_OF_SLOTS)
        self._state.bodies.hold(sequence.request)

    def _park(self, sequence: Sequence, reason: str) -> None:
        state = self._state
        note(sequence, Happened.PARKED, state.now, state.step, cause=reason)
        state.journal.left(sequence, state.now)
        state.policy.parked(sequence)
        state.queue.park(sequence, reason)

    def _repark(self, sequence: Sequence, reason: str) -> None:
        """Change the reason for which a sequence is parked."""
        note(sequence, Happened.PARKED, self._state.now, self._state.step, cause=reason)
        sequence.parked = reason

    def wake(self, sequence: Sequence) -> bool:
        """Let a parked sequence wait again, if the share of its body allows it. False if it was not
        parked."""
        state = self._state
        if sequence.parked in ("", SHARE_OF_SLOTS):
            return False
        if state.bodies.counts(sequence.request) or state.bodies.takes(sequence.request):
            wake(state, sequence)
            return True
        note(sequence, Happened.WOKEN, state.now, state.step, cause=sequence.parked)
        self._repark(sequence, SHARE_OF_SLOTS)
        state.bodies.hold(sequence.request)
        return True

    def admit(
        self, sequence: Sequence, hit: Hit, tokens: int, loaded: int | None = None
    ) -> Admitted:
        """Move a waiting sequence into a slot, with blocks for `tokens` positions. A connector
        loaded `loaded` tokens of the hit; None: there is no connector.

        Slots are reserved for the rest of its group, which forks from it later.
        """
        state = self._state
        resumed = sequence.preemptions > 0
        state.queue.remove(sequence)
        slot = state.table.admit(sequence, hit.tokens, self.drafts(sequence))
        state.cache.hold_snapshot(sequence, hit, state.step)
        blocks = state.cache.attach(slot, sequence, hit, tokens)
        if copies := state.states.admit(slot, hit):
            state.changes.copies.append((slot, copies))
        happened = Happened.RESUMED if resumed else Happened.ADMITTED
        cached = str(hit.cached) if hit.cached > hit.tokens else ""
        note(sequence, happened, state.now, state.step, hit.tokens, cached)
        self._note_evicted(sequence, hit)
        more = len(sequence.tokens) - len(sequence.request.prompt)
        if more and not resumed:
            note(sequence, Happened.CONTINUED, state.now, state.step, more)
        if hit.host:
            self._load(sequence, hit)
        state.stats.admissions += 1
        hits.count(state.stats, sequence, hit, state.cache, loaded)
        state.journal.passed(sequence, len(sequence.tokens) - hit.tokens, state.step)
        sequence_group = state.sequence_group(sequence)
        if sequence_group is not None and len(sequence_group.members) > 1:
            sequence_group.kept = [state.table.reserve() for _ in sequence_group.members[1:]]
            state.sequence_groups.forking[sequence.id] = sequence_group
            if hit.tokens <= sequence_group.fork_point:
                state.table.cap(slot, FORK_POINT, sequence_group.fork_point)
        return self.settle(sequence, hit.tokens, blocks)

    def _note_evicted(self, sequence: Sequence, hit: Hit) -> None:
        """Note what had been cached and was evicted, if that is known."""
        state = self._state
        found = state.cache.eviction.shortfall(sequence, hit.tokens)
        if found is not None:
            cause = f"{found.seconds:.1f} s before" if found.seconds else "while it waited"
            note(sequence, Happened.EVICTED, state.now, state.step, found.tokens, cause)

    def _load(self, sequence: Sequence, hit: Hit) -> None:
        """Have the next step copy the host blocks of a hit to the device."""
        state = self._state
        moves = state.cache.load(sequence.slot, sequence, hit, state.step)
        state.changes.swap_in += moves
        state.stats.swapped_in_blocks += len(moves)
        tokens = len(moves) * state.cache.block_size
        note(sequence, Happened.LOADED, state.now, state.step, tokens)

    def settle(self, sequence: Sequence, computed: int, blocks: tuple[Blocks, ...]) -> Admitted:
        """Complete an admission, after the sequence got its slot and blocks."""
        state = self._state
        if state.table.silent[sequence.slot]:  # the host sums scores, or chooses tokens
            state.table.need_host(sequence.slot, "best sequences")
        if sequence.request.images:
            state.images.join(sequence, computed)
        self._stops.watch(sequence.request)
        state.policy.admitted(sequence, len(sequence.tokens) - computed)
        request, resumed = sequence.request, sequence.preemptions > 0
        if sequence.child >= 0:
            request = request.child(sequence.child)
            if request.beam_width:
                state.table.cap(sequence.slot, LOCKSTEP, len(sequence.tokens))
        tokens, more = sequence.tokens, blocks[1:]
        return Admitted(sequence.slot, request, tokens, computed, blocks[0], resumed, more)

    def drafts(self, sequence: Sequence) -> int:
        """Most drafts per step. Beams draft nothing, because the host chooses their tokens."""
        request = sequence.request
        if request.beam_width:
            return 0
        usual = self._state.speculation.config.num_speculative_tokens
        return min(usual if request.drafts is None else request.drafts, sequence.limit)

    def restore(self, sequence: Sequence, spans: list[int]) -> list[Admitted]:
        """Move a swapped sequence and its group into slots, with room for `spans[i]` positions."""
        state = self._state
        state.swapped.remove(sequence)
        members = state.group(sequence)
        starts = [state.swapping.tier.stored(one).tokens for one in members]
        slots = [
            state.table.admit(one, start, self.drafts(one))
            for one, start in zip(members, starts, strict=True)
        ]
        for one, slot in zip(members, slots, strict=True):
            state.states.move_in(slot, state.swapping.tier.stored(one).state)
        moves = state.swapping.tier.restore(members, slots, spans, state.step)
        for one in members:
            one.swapped = False
        state.changes.swap_in += moves
        moved = len(moves) + len(members) * state.cache.state_blocks
        state.stats.swapped_in_blocks += moved
        state.journal.passed(sequence, 0, state.step)
        note(sequence, Happened.RETURNED, state.now, state.step, moved)
        blocks = [state.cache.tables.entries(one.slot) for one in members]
        return list(map(self.settle, members, starts, blocks))
