"""How one of several sequences of a request ends while the others go on."""

from paceline.core.errors import RequestError
from paceline.core.plan import Ended
from paceline.core.request import Finish, Sequence
from paceline.sched.components import SchedulerComponents
from paceline.sched.families.family import FORK_POINT, Family


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
