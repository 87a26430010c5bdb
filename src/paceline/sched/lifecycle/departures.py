"""Sequences leave: they are preempted, swapped out, or end."""

from dataclasses import replace

from paceline.core.arrays import NO_I32
from paceline.core.events import Happened
from paceline.core.plan import Ended
from paceline.core.request import Finish, Sequence
from paceline.sched.commit.stops import StopWatch
from paceline.sched.explain.journal import note
from paceline.sched.groups.group import SequenceGroup
from paceline.sched.state import SchedulerState


class Departures:
    """Moves sequences out of slots and queues, with their group where needed, and notes these
    events."""

    def __init__(self, state: SchedulerState, stops: StopWatch) -> None:
        self._state = state
        self._stops = stops

    def preempt(self, slot: int, cause: str, may_swap: bool = True) -> None:
        """Preempt a resident and its group.

        It waits in front of others of its rank, or is swapped if that is cheaper and there is room.
        With states it may have to rest first, until no step that advances them is in flight.
        """
        state = self._state
        members = state.group(state.table.sequence(slot))
        residents = [one for one in members if one.slot >= 0]
        may_swap = may_swap and len(residents) == len(members)
        if may_swap and state.swapping.rest(residents, cause):
            return
        moved = state.stats.swapped_out_blocks  # of other sequences
        swaps = may_swap and self._swap_out(residents)
        self._vacate(members)
        self._count_preemption(members, cause)
        if swaps:
            moved = state.stats.swapped_out_blocks - moved
            note(members[0], Happened.SWAPPED, state.now, state.step, moved)
            state.swapped.push(members[0], in_front=True)
        else:
            state.queue.push(members[0], in_front=True)

    def vacate_all(self, cause: str) -> None:
        """Preempt all residents without keeping their blocks, and drop those that are swapped."""
        state = self._state
        for slot in state.table.order[::-1].tolist():
            if state.table.resident[slot]:  # it may have left with its group
                self.preempt(slot, cause, may_swap=False)
        for sequence in list(state.swapped):
            self.demote(sequence)

    def preempt_rested(self) -> int:
        """Preempt the residents that rested for it. Returns how many."""
        rested = self._state.swapping.rested()
        for slot, cause in rested:
            self.preempt(slot, cause)
        return len(rested)

    def _count_preemption(self, members: list[Sequence], cause: str) -> None:
        state = self._state
        for one in members:
            one.preemptions += 1
        state.stats.preemptions += 1
        state.promises.preempted(members[0])
        state.changes.preempted.append(members[0].id)
        known = sum(len(one.tokens) for one in members)
        note(members[0], Happened.PREEMPTED, state.now, state.step, known, cause)

    def _swap_out(self, residents: list[Sequence]) -> bool:
        """Copy the blocks of residents to the host, if that pays and there is room."""
        state = self._state
        if not (state.swapping.wanted(residents) and state.swapping.can_go(residents)):
            return False
        for one in residents:
            state.prefixes.seal_filled(one.slot)
        moves = state.swapping.out(residents, state.step)
        if moves is None:
            state.stats.swaps_refused += 1
            cause = "no room on the host"
            note(residents[0], Happened.DEMOTED, state.now, state.step, cause=cause)
            return False
        for one in residents:
            one.swapped = True
            state.states.move_out(one.slot, state.swapping.tier.stored(one).state)
        for pairs in state.changes.keep_copies([one.slot for one in residents]):
            state.cache.fences.add_copies(state.step, pairs)
        state.changes.swap_out += moves
        state.stats.swapped_out_blocks += len(moves) + len(residents) * state.cache.state_blocks
        return True

    def _vacate(self, members: list[Sequence]) -> None:
        """Release the slots of a group, including reserved ones."""
        state = self._state
        for one in reversed(members):
            if one.slot >= 0:
                self._release(one.slot)
                one.tokens = one.tokens.copy()
        sequence_group = state.sequence_group(members[0])
        if sequence_group is not None:
            state.sequence_groups.forking.pop(sequence_group.request.id, None)
            sequence_group.reports.clear()
            while sequence_group.kept:
                state.table.give_back(sequence_group.kept.pop())

    def demote(self, sequence: Sequence, cause: str = "the copy did not come about") -> None:
        """Let a swapped sequence recompute, because its blocks on the host are gone."""
        state = self._state
        state.swapped.remove(sequence)
        for one in state.group(sequence):
            state.swapping.tier.discard(one)
            one.swapped = False
        note(sequence, Happened.DEMOTED, state.now, state.step, cause=cause)
        state.queue.push(sequence, in_front=True)

    def finish(
        self, sequence: Sequence, finish: Finish, stop_token: int | None = None
    ) -> list[Ended]:
        """End a resident sequence, and its request if it was the last one."""
        state = self._state
        sequence_group = state.sequence_group(sequence)
        handed = state.stores.hand_over(sequence, finish) if sequence_group is None else None
        self._release(sequence.slot)
        sequence.finish = finish
        if sequence_group is None:
            end = self._close(sequence, finish, stop_token)
            return [end if handed is None else replace(end, kv_transfer_params=handed)]
        outputs = sequence.tokens[len(sequence.request.prompt) :].tolist()
        sequence_group.ended(sequence, tuple(outputs), stop_token)
        ends = (
            []
            if sequence_group.request.silent
            else [Ended(sequence.id, finish, stop_token, child=sequence.child)]
        )
        if not sequence_group.members:
            return [*ends, self._close(sequence, sequence_group.finish)]
        state.live[sequence.id] = sequence_group.leader
        if sequence_group.leader.slot < 0:
            self._restart_others(sequence_group)
        return ends

    def _restart_others(self, sequence_group: SequenceGroup) -> None:
        """Let the others of a group compute the prompt: the leader ended before the fork."""
        self._vacate(list(sequence_group.members))
        self._count_preemption(
            sequence_group.members, "the end of the one that computed the prompt"
        )
        self._state.queue.push(sequence_group.leader, in_front=True)

    def forget(self, sequence: Sequence) -> None:
        """Undo the submission of a sequence that was not queued."""
        state = self._state
        state.queue.remove(sequence)
        state.sequence_groups.pop(sequence.id, None)
        del state.live[sequence.id]
        state.cache.eviction.ended(sequence)
        state.policy.left(sequence)
        state.bodies.left(sequence.request)

    def dismiss(self, sequence: Sequence, finish: Finish, message: str = "") -> list[Ended]:
        """End a request with all its sequences, in any state."""
        state = self._state
        members = state.group(sequence)
        if sequence.slot >= 0:
            self._vacate(members)
        else:
            state.queue.remove(sequence)
            state.swapped.remove(sequence)
            state.journal.left(sequence, state.now)
        for one in members:
            state.swapping.tier.discard(one)
            one.finish, one.swapped = finish, False
        ends = (
            []
            if sequence.child < 0 or sequence.request.silent
            else [Ended(sequence.id, finish, message=message, child=one.child) for one in members]
        )
        return [*ends, self._close(members[0], finish, message=message)]

    def conclude(self, sequence_group: SequenceGroup) -> Ended:
        """End a beam search, and report its choices."""
        members = list(sequence_group.members)
        self._vacate(members)
        for one in members:
            one.finish = sequence_group.finish
        return self._close(members[0], sequence_group.finish)

    def _close(
        self, sequence: Sequence, finish: Finish, stop_token: int | None = None, message: str = ""
    ) -> Ended:
        """Close the request of a sequence."""
        state = self._state
        sequence_group = state.sequence_groups.pop(sequence.id, None)
        whole = finish in (Finish.STOP, Finish.LENGTH)
        choices = sequence_group.best() if sequence_group is not None and whole else ()
        unreturned = 0 if sequence_group is None else sequence_group.unreturned(choices)
        del state.live[sequence.id]
        state.cache.eviction.ended(sequence)
        state.changes.finished[sequence.id] = sequence
        state.stats.finished += 1
        state.policy.left(sequence)
        state.bodies.left(sequence.request)
        self._judge(sequence, finish)
        sequence.parked = ""
        known = len(sequence.tokens)
        cause = message or finish.value
        note(sequence, Happened.FINISHED, state.now, state.step, known, cause)
        sequence.tokens, sequence.keys = NO_I32, []  # the journal keeps the life only
        if sequence.request.images:
            sequence.request = sequence.request.without_content()
        state.journal.ended(sequence)
        return Ended(
            sequence.id, finish, stop_token, message, choices=choices, unreturned=unreturned
        )

    def _judge(self, sequence: Sequence, finish: Finish) -> None:
        """Count whether a request met its targets, and note why it did not."""
        state = self._state
        if not state.promises.open:
            return
        uncached = len(sequence.request.prompt) - sequence.cached
        verdict = state.promises.closed(sequence, finish, state.times.prompt_s(uncached))
        if verdict is None:
            return
        state.stats.judge(verdict.cause)
        if verdict.cause:
            cause = f"{verdict.text} ({verdict.cause})"
            note(sequence, Happened.MISSED, state.now, state.step, cause=cause)

    def _release(self, slot: int) -> Sequence:
        """Release a slot and its blocks, which stay cached."""
        state = self._state
        kept = state.states.leave(slot, is_moved=state.table.sequence(slot).swapped)
        state.swapping.left(slot)
        computed = int(state.table.computed[slot])
        if computed < state.table.given[slot] or state.cache.index.is_eager:
            state.prefixes.seal_filled(slot)  # including blocks that steps in flight will fill
        has_sampled = state.table.known[slot] > state.table.given[slot]
        sequence = state.table.release(slot)
        state.images.leave(slot)
        if drafted := int(state.table.drafted[slot]):
            accepted = int(state.table.accepted[slot])
            note(sequence, Happened.DRAFTED, state.now, state.step, accepted, str(drafted))
        computed = min(computed, len(sequence.tokens))
        if state.stores.wanted and has_sampled:
            state.stores.store(slot, sequence, computed)
            state.stores.left(sequence, kept)
        state.cache.release(slot, sequence, computed)
        self._stops.unwatch(sequence.request)
        state.changes.release(slot)
        return sequence
