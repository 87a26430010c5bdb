"""Forks of sequences: after the prompt, and between beams."""

from collections.abc import Callable

import numpy as np

from paceline.core.errors import RequestError
from paceline.core.events import Happened
from paceline.core.plan import Admitted, Ended
from paceline.core.request import Finish, Sequence
from paceline.kv.hit import MISS, Hit
from paceline.sched.components import SchedulerComponents
from paceline.sched.explain.journal import note
from paceline.sched.groups.beams import assign
from paceline.sched.groups.group import FORK_POINT, LOCKSTEP, SequenceGroup


class Forks:
    """Forks sequences: shares full blocks, and copies the partial one before the next step."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._arrivals = components.arrivals
        self._departures = components.departures

    # -- after the prompt ---------------------------------------------------

    def due(self) -> list[SequenceGroup]:
        """Groups whose shared prompt has been planned, oldest first."""
        planned = self._state.table.planned
        forking = self._state.sequence_groups.forking.values()
        return [one for one in forking if planned[one.leader.slot] >= one.fork_point]

    def at_once(self, sequence_group: SequenceGroup, hit: Hit) -> bool:
        """May a group fork when it is admitted? Not if blocks must be copied: this step may still
        write the blocks of the prefix hit."""
        whole = sequence_group.fork_point % self._state.cache.block_size == 0
        return len(sequence_group.members) > 1 and whole and hit.tokens >= sequence_group.fork_point

    def need(
        self,
        sequence_group: SequenceGroup,
        span: Callable[[Sequence], int] | None = None,
        held: Hit = MISS,
    ) -> int:
        """Free blocks that the fork takes, with room for `span` positions of each, at least one
        after the fork; blocks of `held` do not count."""
        tables = self._state.cache.tables
        found: set[int] = set()
        new = 0
        for one in sequence_group.members[1:]:
            hit = self._resumed_hit(one, sequence_group)
            start = sequence_group.fork_point if hit is None else hit.tokens
            found.update(() if hit is None else hit.device)
            new += tables.forked_blocks(start, max(span(one) if span else 0, start + 1))
        return new + self._state.cache.pool.free_among(list(found.difference(held.device)))

    def _resumed_hit(self, sequence: Sequence, sequence_group: SequenceGroup) -> Hit | None:
        """The prefix hit of a member that ran before, if it goes beyond the fork point. None where
        windows slide: the leader may have a shorter hit, and the prompt would not be shared. None
        with states, which come from the leader."""
        alike = self._state.cache.tables.slides or self._state.states.enabled
        if alike or len(sequence.tokens) <= len(sequence_group.request.prompt):
            return None
        hit = self._state.prefixes.lookup_device(sequence)
        return hit if hit.tokens > sequence_group.fork_point else None

    def fork(self, sequence_group: SequenceGroup) -> None:
        """Fork all members from the leader."""
        state, leader = self._state, sequence_group.leader
        state.prefixes.seal_filled(leader.slot)
        before = leader
        for one in sequence_group.members[1:]:
            self._begin(one, sequence_group)
            state.table.stand_behind(one.slot, before.slot)
            before = one
        state.table.lift(leader.slot, FORK_POINT)
        del state.sequence_groups.forking[sequence_group.request.id]
        state.stats.forks += len(sequence_group.members) - 1
        note(leader, Happened.FORKED, state.now, state.step, len(sequence_group.members))

    def _begin(self, sequence: Sequence, sequence_group: SequenceGroup) -> None:
        """Start a member at the fork, or after its cached outputs if it ran before."""
        state, leader = self._state, sequence_group.leader
        hit = self._resumed_hit(sequence, sequence_group)
        start = sequence_group.fork_point if hit is None else hit.tokens
        full = start // state.cache.block_size
        if len(sequence.keys) < full:
            sequence.keys = leader.keys[:full]
        sequence.cached = leader.cached
        drafts = self._arrivals.drafts(sequence)
        slot = state.table.admit(sequence, start, drafts, sequence_group.kept.pop())
        if hit is None:
            copies = state.cache.fork(leader.slot, slot, sequence, start)
            state.changes.copies.append((slot, copies))
        else:
            state.cache.attach(slot, sequence, hit, start + 1)
        state.states.fork(leader.slot, slot)
        blocks = state.cache.tables.entries(slot)
        state.changes.admitted.append(self._arrivals.settle(sequence, start, blocks))

    # -- beams --------------------------------------------------------------

    def advance(self, sequence_group: SequenceGroup) -> list[Ended]:
        """Advance the beam search when all beams have candidates: beams end and fork."""
        state, search = self._state, sequence_group.search
        assert search is not None
        prompt, table = len(sequence_group.request.prompt), state.table
        slots = [one.slot for one in sequence_group.members]
        known = int(table.known[slots[0]])
        outputs = [tuple(table.tokens[slot, prompt:known].tolist()) for slot in slots]
        candidates = [sequence_group.reports[one.child] for one in sequence_group.members]
        sequence_group.reports.clear()
        continuations = search.advance(outputs, candidates)
        if not continuations:
            return [self._departures.conclude(sequence_group)]
        assigned = assign(continuations)
        for beam, one in assigned.items():
            if one.parent != beam:
                self._rebase(
                    sequence_group.members[beam], sequence_group.members[one.parent], known
                )
        for beam, one in assigned.items():
            table.choose(slots[beam], one.token)
            table.cap(slots[beam], LOCKSTEP, known + 1)
            state.changes.chosen[slots[beam]] = (one.token,)
        search.follow(assigned)
        state.stats.sampled += len(assigned)
        state.policy.sampled(np.array(slots, np.intp), np.ones(len(slots), np.int32))
        return []

    def _rebase(self, sequence: Sequence, parent: Sequence, known: int) -> None:
        """Replace a beam by a fork of another."""
        state, slot = self._state, sequence.slot
        state.prefixes.seal_filled(parent.slot)
        state.cache.index.unlist(slot)
        sequence.keys = list(parent.keys)
        sequence.tokens = tokens = state.table.tokens[parent.slot, :known].copy()
        copies = state.cache.rebase(slot, sequence, parent.slot, known)
        state.table.rebase(slot, parent.slot)
        state.states.fork(parent.slot, slot)
        state.changes.release(slot)
        state.changes.copies.append((slot, copies))
        request = sequence.request.child(sequence.child)
        first, *more = state.cache.tables.entries(slot)
        state.changes.admitted.append(
            Admitted(slot, request, tokens, known, first, resumed=True, more=tuple(more))
        )
        state.stats.forks += 1


class ChildAborts:
    """Aborts single children: parallel samples, but neither beams nor samples of which only the
    best are returned."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def end(self, leader: Sequence, child: int) -> list[Ended] | None:
        """End a child in any state; None if it is not live. Returns the end of the request if it
        was the last one."""
        sequence_group = self._state.sequence_group(leader)
        if leader.request.silent:
            raise RequestError(
                f"request {leader.id!r} returns only the best of its sequences, so none of them "
                f"can be aborted alone"
            )
        members = [] if sequence_group is None else sequence_group.members
        one = next((member for member in members if member.child == child), None)
        if sequence_group is None or one is None:
            return None
        if one.slot >= 0:
            ended = self._departures.finish(one, Finish.ABORT)
        elif len(members) == 1:
            ended = self._last(sequence_group, one)
        else:
            ended = self._leave(sequence_group, one)
        return [end for end in ended if end.child < 0]

    def _last(self, sequence_group: SequenceGroup, one: Sequence) -> list[Ended]:
        """End the last sequence of a group, which is not resident."""
        self._note(sequence_group, one)
        sequence_group.members.append(one)  # ends the request as a whole
        return self._departures.dismiss(one, sequence_group.finish)

    def _leave(self, sequence_group: SequenceGroup, one: Sequence) -> list[Ended]:
        """End a sequence without a slot: its group waits, or it has not forked yet."""
        state, was_leading = self._state, one is sequence_group.leader
        self._note(sequence_group, one)
        state.swapping.tier.discard(one)
        if was_leading:
            self._hand_over(one, sequence_group.leader)
        elif sequence_group.leader.slot >= 0:
            state.table.give_back(sequence_group.kept.pop())
            if not sequence_group.kept:
                del state.sequence_groups.forking[one.id]
                state.table.lift(sequence_group.leader.slot, FORK_POINT)
        one.swapped, one.parked = False, ""
        return []

    def _hand_over(self, one: Sequence, successor: Sequence) -> None:
        """Make another sequence the leader, in the same queue position."""
        state = self._state
        state.queue_of(one).replace(one, successor)
        state.live[one.id] = successor
        state.journal.left(one, state.now)
        state.policy.joined(successor)
        if one.parked:
            state.policy.parked(successor)
        state.policy.left(one)

    @staticmethod
    def _note(sequence_group: SequenceGroup, one: Sequence) -> None:
        one.finish = Finish.ABORT
        outputs = one.tokens[len(one.request.prompt) :].tolist()
        sequence_group.ended(one, tuple(outputs), None)
