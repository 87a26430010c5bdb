"""Sequence groups: parallel samples and beams of one request."""

from collections.abc import Container
from dataclasses import dataclass, field

from paceline.core.plan import Choice
from paceline.core.request import Finish, Request, Sequence, child_label
from paceline.sched.groups.beams import BeamSearch, Candidate

FORK_POINT = "fork point"  # cap of a leader until the others have forked
LOCKSTEP = "beam lockstep"  # cap of a beam until the host has chosen its next token


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one request, which are admitted and preempted together.

        leader     [ prompt, last token excluded ][ last token, outputs ... ]
        others                shared              [ last token, outputs ... ]

    The leader computes the prompt up to its last token; then the others fork from it, and each
    computes that token and samples from it. Until then they have no blocks, but their slots are
    reserved, so that all can run after the fork.
    """

    request: Request
    members: list[Sequence]  # unfinished ones; the first one leads
    search: BeamSearch | None = None
    kept: list[int] = field(default_factory=list[int])  # slots of members not forked yet
    scores: dict[int, float] = field(default_factory=dict[int, float])  # by child, in sampling
    choices: dict[int, Choice] = field(default_factory=dict[int, Choice])  # of finished members
    reports: dict[int, list[Candidate]] = field(default_factory=dict[int, list[Candidate]])

    @staticmethod
    def of(leader: Sequence) -> "SequenceGroup":
        """The group of a new sequence, which becomes its first child."""
        request, serial = leader.request, leader.serial
        leader.child, *rest = request.open_children
        leader.serial, leader.tokens = serial + leader.child, request.known(leader.child)
        others = [
            Sequence(
                request,
                serial + child,
                leader.limit,
                leader.arrival,
                request.known(child),
                child=child,
                life=leader.life,  # events are shared by all
            )
            for child in rest
        ]
        most = leader.limit - len(request.prompt)
        search = BeamSearch(request, most) if request.beam_width else None
        return SequenceGroup(request, [leader, *others], search)

    @property
    def leader(self) -> Sequence:
        return self.members[0]

    @property
    def fork_point(self) -> int:
        """Number of positions that all share."""
        return len(self.request.prompt) - 1

    def ended(self, sequence: Sequence, outputs: tuple[int, ...], stop_token: int | None) -> None:
        """Record a finished sample."""
        assert sequence.finish is not None
        self.members.remove(sequence)
        score = self.scores.get(sequence.child, 0.0) / max(len(outputs), 1)
        self.choices[sequence.child] = Choice(outputs, sequence.finish, score, stop_token)

    def best(self) -> tuple[Choice, ...]:
        """The choices to return, best first; empty if all were reported already."""
        if self.search is not None:
            return self.search.choices()
        if not self.request.silent:
            return ()
        ended = [self.choices[child] for child in sorted(self.choices)]
        ended.sort(key=lambda choice: -choice.score)
        return tuple(ended[: self.request.n])

    def unreturned(self, returned: tuple[Choice, ...]) -> int:
        """Tokens of samples that are not returned; 0 for beam search."""
        if self.search is not None or not self.request.silent:
            return 0
        ended = [len(choice.tokens) for choice in self.choices.values()]
        running = [len(one.tokens) - len(self.request.prompt) for one in self.members]
        return sum(ended) + sum(running) - sum(len(choice.tokens) for choice in returned)

    @property
    def finish(self) -> Finish:
        """Why the request as a whole ended: the reason of its best choice, or of the first that was
        not ended from outside."""
        if best := self.best():
            return best[0].finish
        ends = [self.choices[child].finish for child in sorted(self.choices)]
        return next((finish for finish in ends if finish is not Finish.ABORT), Finish.ABORT)


def labels(request: Request) -> list[str]:
    """The labels of the sequences of a group."""
    return [child_label(request.id, child) for child in range(request.width)]


class SequenceGroups(dict[str, SequenceGroup]):
    """Sequence groups by request id. Those in `forking` are resident and have not forked yet."""

    def __init__(self) -> None:
        super().__init__()
        self.forking: dict[str, SequenceGroup] = {}

    def namesake(self, request: Request, live: Container[str]) -> str:
        """The live request with a sequence of the same label as one of a new request, if any."""
        parent = request.id.partition("_")[2]
        if parent in self and request.id in labels(self[parent].request):
            return parent
        if request.width > 1:
            return next((label for label in labels(request) if label in live), "")
        return ""
