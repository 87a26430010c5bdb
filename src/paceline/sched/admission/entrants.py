"""Candidates for admission, and the slots, blocks and positions that they need."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from paceline.core.request import Sequence
from paceline.core.settings.config import Config
from paceline.kv.hit import Hit
from paceline.sched.admission.limits import Limits
from paceline.sched.admission.rows import ArrivalRow
from paceline.sched.admission.step_room import StepRoom
from paceline.sched.groups.forks import Forks
from paceline.sched.plugin_checks import check_room
from paceline.sched.state import SchedulerState

Chunk = Callable[[ArrivalRow], int]
"""Positions that an arrival's row may have."""


class Entrant(ABC):
    """A candidate for admission: a sequence and its group.

    size     slots that it needs
    rest     positions that it wants
    room     positions of the step's budget that the policy grants
    tokens   positions of its first row within the limits
    ready    are all its swapped blocks on the host?
    """

    __slots__ = ("rest", "room", "sequence", "size", "tokens")

    ready = True
    lacks = "budget"  # the reason if `tokens` is 0

    def __init__(self, sequence: Sequence, size: int, rest: int, room: int, tokens: int) -> None:
        self.sequence = sequence
        self.size = size
        self.rest = rest
        self.room = room
        self.tokens = tokens

    @abstractmethod
    def short_of_blocks(self, free: int) -> int:
        """Blocks missing beyond `free` ones; 0 or less if they suffice."""


class WaitingEntrant(Entrant):
    """A sequence of the waiting queue, which continues its cached prefix."""

    __slots__ = ("_entrants", "_row", "hit", "most", "span")

    def __init__(self, entrants: "Entrants", head: Sequence, room: StepRoom, chunk: Chunk) -> None:
        self._entrants = entrants
        self.most = entrants.most(head)
        hit = entrants.state.prefixes.lookup(head, self.most)
        self._continue(head, hit, room, chunk)
        if hit.snapshot is not None and self.short_of_blocks(room.free) > 0:
            # Its snapshot must be held too. A sequence that needs nearly all blocks computes again.
            self._continue(head, Hit((), 0, cached=hit.cached), room, chunk)

    def _continue(self, head: Sequence, hit: Hit, room: StepRoom, chunk: Chunk) -> None:
        """Begin behind a hit."""
        entrants, state = self._entrants, self._entrants.state
        rest, taken = entrants.rest(head, hit), entrants.budget - room.left
        allowed = state.policy.room(head, rest, taken, room.left)
        if allowed is not room.left:
            check_room(state.policy, head, allowed, room.left)
        self._row = row = ArrivalRow(head, hit.tokens, rest, allowed, room.first, room.used)
        row.branch = state.states.branch_of(hit)
        size = 1 if head.child < 0 else len(state.group(head))
        super().__init__(head, size, rest, allowed, chunk(row))
        self.hit = hit
        self.span = entrants.span(head, hit, self.tokens)  # positions that its blocks must hold

    @property
    def lacks(self) -> str:
        return self._entrants.limits.reason(self._row.again())

    def short_of_blocks(self, free: int) -> int:
        is_alone, tables = self.size == 1, self._entrants.state.cache.tables
        if is_alone and self.hit.snapshot is None and tables.most_blocks(self.span) <= free:
            return 0  # enough even if all blocks of the hit are free ones
        return self._entrants.missing(self.sequence, self.hit, self.tokens) - free


class SwappedEntrant(Entrant):
    """A swapped sequence that returns with its group, each member with one position."""

    __slots__ = ("_entrants", "members", "spans")

    def __init__(self, entrants: "Entrants", head: Sequence, room: StepRoom) -> None:
        members = entrants.state.group(head)
        size, left = len(members), room.left
        super().__init__(head, size, rest=size, room=left, tokens=size if size <= left else 0)
        self._entrants = entrants
        self.members = members
        self.spans = [entrants.reach(len(one.tokens)) for one in members]

    @property
    def ready(self) -> bool:
        return self._entrants.state.swapping.tier.ready(self.sequence)

    def short_of_blocks(self, free: int) -> int:
        return self._entrants.state.swapping.tier.need(self.members, self.spans) - free


class Entrants:
    """Computes the needs of entrants."""

    def __init__(self, config: Config, state: SchedulerState, forks: Forks, limits: Limits) -> None:
        self.state = state
        self.limits = limits
        self.budget = config.step.max_num_batched_tokens
        self._forks = forks
        self._longest = config.step.max_model_len
        self._lookahead = config.speculation.lookahead_slots
        self._reserves_prompt = config.step.reserve_full_prompt

    def most(self, head: Sequence) -> int | None:
        """Most tokens of a waiting sequence's prefix hit; None: no limit.

        If others will fork from it and windows slide, the hit must not go beyond the fork point:
        behind that, the sequence lacks blocks that the others read. With states, it must be shorter
        still: the others copy the state that the sequence has there, not that of a snapshot.
        """
        has_states = self.state.states.enabled
        if self.state.cache.tables.slides or has_states:
            sequence_group = self.state.sequence_group(head)
            if sequence_group is not None and len(sequence_group.members) > 1:
                return max(sequence_group.fork_point - has_states, 0)
        return None

    def rest(self, head: Sequence, hit: Hit) -> int:
        """Positions to compute before it samples, or before its group forks."""
        sequence_group = self.state.sequence_group(head)
        if (
            sequence_group is not None
            and len(sequence_group.members) > 1
            and hit.tokens < sequence_group.fork_point
        ):
            return sequence_group.fork_point - hit.tokens
        return len(head.tokens) - hit.tokens

    def reach(self, tokens: int) -> int:
        """Positions that need blocks when `tokens` positions are computed, lookahead included."""
        return min(tokens + self._lookahead, self._longest)

    def span(self, head: Sequence, hit: Hit, tokens: int) -> int:
        """Positions for which the admission of a waiting sequence takes blocks."""
        return self.reach(len(head.tokens) if self._reserves_prompt else hit.tokens + tokens)

    def missing(self, head: Sequence, hit: Hit, tokens: int) -> int:
        """Free blocks that an admission uses up, including the fork of its group."""
        sequence_group = self.state.sequence_group(head)
        missing = self.state.cache.missing(hit, self.span(head, hit, tokens))
        if sequence_group is not None and len(sequence_group.members) > 1:
            missing += self._forks.need(sequence_group, self._span_alone, hit)
        return missing

    def missing_at_last(self, entrant: WaitingEntrant, hit: Hit) -> int:
        """Free blocks that an admission uses up until all known tokens are computed."""
        head = entrant.sequence
        whole = self.state.cache.missing(hit, len(head.tokens))
        return max(whole, self.missing(head, hit, min(entrant.tokens, self.rest(head, hit))))

    def _span_alone(self, sequence: Sequence) -> int:
        """Positions of a group member for which blocks are counted at admission."""
        return len(sequence.tokens if self._reserves_prompt else sequence.request.prompt)
