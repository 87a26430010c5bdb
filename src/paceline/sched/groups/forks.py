"""How members of a family come from one another: after the prompt, and beam by beam."""

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
from paceline.sched.groups.group import FORK_POINT, LOCKSTEP, Family


class Forks:
    """Forks share full blocks and copy the one being written, before the next step writes."""

    def __init__(self, components: SchedulerComponents) -> None:
        self._state = components.state
        self._arrivals = components.arrivals
        self._departures = components.departures

    # -- after the prompt ---------------------------------------------------

    def due(self) -> list[Family]:
        """Families whose leader has been given the whole of what they share, oldest first."""
        planned = self._state.table.planned
        forking = self._state.families.forking.values()
        return [one for one in forking if planned[one.leader.slot] >= one.fork_point]

    def at_once(self, family: Family, hit: Hit) -> bool:
        """May a family fork as it is admitted? Not if blocks must be copied: what is found in
        the cache may be written in this very step."""
        whole = family.fork_point % self._state.cache.block_size == 0
        return len(family.members) > 1 and whole and hit.tokens >= family.fork_point

    def need(
        self, family: Family, span: Callable[[Sequence], int] | None = None, held: Hit = MISS
    ) -> int:
        """Free blocks that the fork takes, with room for `span` positions of each, or for one
        more; blocks of `held` are taken care of."""
        tables = self._state.cache.tables
        found: set[int] = set()
        new = 0
        for one in family.members[1:]:
            hit = self._own(one, family)
            start = family.fork_point if hit is None else hit.tokens
            found.update(() if hit is None else hit.device)
            new += tables.forked_blocks(start, max(span(one) if span else 0, start + 1))
        return new + self._state.cache.pool.free_among(list(found.difference(held.device)))

    def _own(self, sequence: Sequence, family: Family) -> Hit | None:
        """What a member that ran before still finds beyond what all share. Nothing where windows
        slide: the leader may find less, and the two would not share the blocks of the prompt."""
        if len(sequence.tokens) <= len(family.request.prompt) or self._state.cache.tables.slides:
            return None
        hit = self._state.prefixes.lookup_device(sequence)
        return hit if hit.tokens > family.fork_point else None

    def fork(self, family: Family) -> None:
        """Let all begin where the leader stands."""
        state, leader = self._state, family.leader
        state.prefixes.seal_filled(leader.slot)
        before = leader
        for one in family.members[1:]:
            self._begin(one, family)
            state.table.stand_behind(one.slot, before.slot)
            before = one
        state.table.lift(leader.slot, FORK_POINT)
        del state.families.forking[family.request.id]
        state.stats.forks += len(family.members) - 1
        note(leader, Happened.FORKED, state.now, state.step, len(family.members))

    def _begin(self, sequence: Sequence, family: Family) -> None:
        """Let a member begin at the fork, or behind what it still finds of its own."""
        state, leader, hit = self._state, family.leader, self._own(sequence, family)
        start = family.fork_point if hit is None else hit.tokens
        full = start // state.cache.block_size
        if len(sequence.keys) < full:
            sequence.keys = leader.keys[:full]
        sequence.cached = leader.cached
        drafts = self._arrivals.drafts(sequence)
        slot = state.table.admit(sequence, start, drafts, family.kept.pop())
        if hit is None:
            copies = state.cache.fork(leader.slot, slot, sequence, start)
            state.changes.copies.append((slot, copies))
        else:
            state.cache.attach(slot, sequence, hit, start + 1)
        blocks = state.cache.tables.entries(slot)
        state.changes.admitted.append(self._arrivals.settle(sequence, start, blocks))

    # -- beams --------------------------------------------------------------

    def advance(self, family: Family) -> list[Ended]:
        """All beams have reported candidates: choose, and let beams end and fork."""
        state, search = self._state, family.search
        assert search is not None
        prompt, table = len(family.request.prompt), state.table
        slots = [one.slot for one in family.members]
        known = int(table.known[slots[0]])
        outputs = [tuple(table.tokens[slot, prompt:known].tolist()) for slot in slots]
        candidates = [family.reports[one.child] for one in family.members]
        family.reports.clear()
        continuations = search.advance(outputs, candidates)
        if not continuations:
            return [self._departures.conclude(family)]
        assigned = assign(continuations)
        for beam, one in assigned.items():
            if one.parent != beam:
                self._rebase(family.members[beam], family.members[one.parent], known)
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
        family = self._state.family(leader)
        if leader.request.silent:
            raise RequestError(
                f"request {leader.id!r} returns only the best of its sequences, so none of them "
                f"can be aborted alone"
            )
        members = [] if family is None else family.members
        one = next((member for member in members if member.child == child), None)
        if family is None or one is None:
            return None
        if one.slot >= 0:
            ended = self._departures.finish(one, Finish.ABORT)
        elif len(members) == 1:
            ended = self._last(family, one)
        else:
            ended = self._leave(family, one)
        return [end for end in ended if end.child < 0]

    def _last(self, family: Family, one: Sequence) -> list[Ended]:
        """End the last sequence of a family, which has no slot."""
        self._note(family, one)
        family.members.append(one)  # the request ends as a whole
        return self._departures.dismiss(one, family.finish)

    def _leave(self, family: Family, one: Sequence) -> list[Ended]:
        """End a sequence that has no slot: all of the family wait, or it has yet to fork."""
        state, was_leading = self._state, one is family.leader
        self._note(family, one)
        state.swapping.tier.discard(one)
        if was_leading:
            self._hand_over(one, family.leader)
        elif family.leader.slot >= 0:
            state.table.give_back(family.kept.pop())
            if not family.kept:
                del state.families.forking[one.id]
                state.table.lift(family.leader.slot, FORK_POINT)
        one.swapped, one.parked = False, ""
        return []

    def _hand_over(self, one: Sequence, successor: Sequence) -> None:
        """Let another sequence lead the family, in the same place of the queue."""
        state = self._state
        state.queue_of(one).replace(one, successor)
        state.live[one.id] = successor
        state.journal.left(one, state.now)
        state.policy.joined(successor)
        if one.parked:
            state.policy.parked(successor)
        state.policy.left(one)

    @staticmethod
    def _note(family: Family, one: Sequence) -> None:
        one.finish = Finish.ABORT
        outputs = one.tokens[len(one.request.prompt) :].tolist()
        family.ended(one, tuple(outputs), None)
