"""How members of a sequence group come from one another: after the prompt, and beam by beam."""

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
    """Forks share full blocks and copy the one being written, before the next step writes."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._arrivals = components.arrivals
        self._departures = components.departures

    # -- after the prompt ---------------------------------------------------

    def due(self) -> list[SequenceGroup]:
        """Groups whose leader has been given the whole of what they share, oldest first."""
        planned = self._state.table.planned
        forking = self._state.sequence_groups.forking.values()
        return [one for one in forking if planned[one.leader.slot] >= one.fork_point]

    def at_once(self, sequence_group: SequenceGroup, hit: Hit) -> bool:
        """May a group fork as it is admitted? Not if blocks must be copied: what is found in
        the cache may be written in this very step."""
        whole = sequence_group.fork_point % self._state.cache.block_size == 0
        return len(sequence_group.members) > 1 and whole and hit.tokens >= sequence_group.fork_point

    def need(
        self,
        sequence_group: SequenceGroup,
        span: Callable[[Sequence], int] | None = None,
        held: Hit = MISS,
    ) -> int:
        """Free blocks that the fork takes, with room for `span` positions of each, or for one
        more; blocks of `held` are taken care of."""
        tables = self._state.cache.tables
        found: set[int] = set()
        new = 0
        for one in sequence_group.members[1:]:
            hit = self._own(one, sequence_group)
            start = sequence_group.fork_point if hit is None else hit.tokens
            found.update(() if hit is None else hit.device)
            new += tables.forked_blocks(start, max(span(one) if span else 0, start + 1))
        return new + self._state.cache.pool.free_among(list(found.difference(held.device)))

    def _own(self, sequence: Sequence, sequence_group: SequenceGroup) -> Hit | None:
        """What a member that ran before still finds beyond what all share. Nothing where windows
        slide: the leader may find less, and the two would not share the blocks of the prompt."""
        if (
            len(sequence.tokens) <= len(sequence_group.request.prompt)
            or self._state.cache.tables.slides
        ):
            return None
        hit = self._state.prefixes.lookup_device(sequence)
        return hit if hit.tokens > sequence_group.fork_point else None

    def fork(self, sequence_group: SequenceGroup) -> None:
        """Let all begin where the leader stands."""
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
        """Let a member begin at the fork, or behind what it still finds of its own."""
        state, leader, hit = self._state, sequence_group.leader, self._own(sequence, sequence_group)
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
        blocks = state.cache.tables.entries(slot)
        state.changes.admitted.append(self._arrivals.settle(sequence, start, blocks))

    # -- beams --------------------------------------------------------------

    def advance(self, sequence_group: SequenceGroup) -> list[Ended]:
        """All beams have reported candidates: choose, and let beams end and fork."""
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
        """Let a beam go on from all that another one knows instead of its own."""
        state, slot = self._state, sequence.slot
        state.prefixes.seal_filled(parent.slot)
        state.cache.index.unlist(slot)
        sequence.keys = list(parent.keys)
        sequence.tokens = tokens = state.table.tokens[parent.slot, :known].copy()
        copies = state.cache.rebase(slot, sequence, parent.slot, known)
        state.table.rebase(slot, parent.slot)
        state.changes.release(slot)
        state.changes.copies.append((slot, copies))
        request = sequence.request.child(sequence.child)
        first, *more = state.cache.tables.entries(slot)
        state.changes.admitted.append(
            Admitted(slot, request, tokens, known, first, resumed=True, more=tuple(more))
        )
        state.stats.forks += 1


class ChildAborts:
    """A client may abort parallel samples one by one, but no beams and no samples of which only the
    best are returned."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._departures = components.departures

    def end(self, leader: Sequence, child: int) -> list[Ended] | None:
        """End a child wherever it is; None if it is not here. If it was the last one, the end of
        the request is returned."""
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
        """End the last sequence of a sequence group, which has no slot."""
        self._note(sequence_group, one)
        sequence_group.members.append(one)  # the request ends as a whole
        return self._departures.dismiss(one, sequence_group.finish)

    def _leave(self, sequence_group: SequenceGroup, one: Sequence) -> list[Ended]:
        """End a sequence that has no slot: all of the group wait, or it has yet to fork."""
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
        """Let another sequence lead the group, in the same place of the queue."""
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
