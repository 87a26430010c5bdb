"""Who is let in: swapped sequences, then waiting ones by rank, until one does not fit."""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.arrays import I32, Index
from paceline.core.config import Config
from paceline.core.plan import Admitted
from paceline.core.request import Sequence
from paceline.kv.hit import Hit
from paceline.sched.composition import Composition, Entry
from paceline.sched.explain.journal import Gate
from paceline.sched.families.forks import Forks
from paceline.sched.limits.limit import Limits
from paceline.sched.limits.rows import ArrivalRow, ResidentRows, Used
from paceline.sched.residency import Residency

Chunk = Callable[[ArrivalRow], int]
"""Positions that an arrival's row may have."""


@dataclass(slots=True)
class Intake:
    """Who has come in so far, and the budget that is left."""

    left: int
    chunk: Chunk
    first: bool  # has the step no row yet?
    used: Used  # what the rows so far have used up, by limit
    entries: list[Entry] = field(default_factory=list[Entry])
    admitted: list[Admitted] = field(default_factory=list[Admitted])

    def share(self, sequence: Sequence, start: int, rest: int, left: int) -> int:
        """Positions that a row which wants `rest` may have, and at most `left`."""
        return self.chunk(ArrivalRow(sequence, start, rest, left, self.first, self.used))

    def add(self, slot: int, start: int, count: int) -> None:
        self.entries.append(Entry(slot, start, count))
        self.left -= count
        self.first = False


class Admission:
    """Lets sequences in as long as there are slots, budget and blocks, and says why it stops."""

    def __init__(self, config: Config, residency: Residency, forks: Forks, limits: Limits) -> None:
        self._config = config.step
        self._at = residency
        self._forks = forks
        self._limits = limits
        self._lookahead = config.speculation.lookahead_slots
        self._reserve = int(config.step.watermark * config.cache.num_blocks)

    def let_in(
        self, served: Composition, now: float, chunk: Chunk, returning: bool = False
    ) -> Composition:
        """Admit until one does not fit; only those that were swapped, if `returning`."""
        at = self._at
        left = self._config.max_num_batched_tokens - int(served.count.sum())
        used = self.used_by(served.slot, served.start, served.count)
        intake = Intake(left, chunk, not len(served.slot), used)
        gate: Gate | None = None
        while (head := at.head(now)) is not None:
            if head.swapped:
                gate = self._return(head, intake, now)
            elif returning:
                gate = self.gate_at(head, "decodes", 0, now)
            else:
                gate = self._enter(head, intake, now)
            if gate is not None:
                break
        return served.joined(intake.entries, intake.admitted, gate)

    # -- waiting ------------------------------------------------------------

    def _enter(self, head: Sequence, intake: Intake, now: float) -> Gate | None:
        """Admit a waiting sequence, or say what keeps it out."""
        at = self._at
        hit = at.lookup(head)
        rest, taken = self.rest(head, hit), self._config.max_num_batched_tokens - intake.left
        room = at.policy.room(head, rest, taken, intake.left)
        tokens = intake.share(head, hit.tokens, rest, room)
        gate = self._gate(head, hit, tokens, intake.left, room, now)
        if gate is not None:
            return gate
        new = at.admit(head, hit, self.span(head, hit, tokens))
        intake.admitted.append(new)
        self._add(intake, head, hit.tokens, tokens)
        family = at.family(head)
        if family is not None and self._forks.at_once(family, hit):
            self._forks.fork(family)
            at.cache.fences.add_copies(at.step, (), [one.serial for one in family.members])
            for one in family.members[1:]:
                self._first_row(one, intake)
        return None

    def _first_row(self, sequence: Sequence, intake: Intake) -> None:
        """Let a sequence that came with another compute what budget and blocks allow."""
        table, cache, slot = self._at.table, self._at.cache, sequence.slot
        start = int(table.planned[slot])
        room = len(cache.tables.blocks(slot)) * cache.block_size - start
        rest = int(table.known[slot]) - start
        count = min(intake.share(sequence, start, rest, intake.left), room)
        self._add(intake, sequence, start, count)

    def _add(self, intake: Intake, sequence: Sequence, start: int, count: int) -> None:
        """A row for a sequence that has just come in, handed out so that those behind may share
        it."""
        if not count:
            return
        slot = sequence.slot
        intake.add(slot, start, count)
        if self._limits.counting:
            row = ArrivalRow(sequence, start, count, count, intake.first, intake.used)
            self._limits.spend(row, intake.used)
        self._at.table.advance(slot, start + count)
        self._at.seal_rivals()

    def used_by(self, slot: Index, start: I32 | None, count: I32) -> Used:
        """What rows of residents use up of a step, for limits that count it. Without a `start`,
        each row goes on where its resident stands."""
        used: Used = {}
        if self._limits.counting:
            self._limits.spend(ResidentRows(self._at.table, slot, count, 0, start), used)
        return used

    def rest(self, head: Sequence, hit: Hit) -> int:
        """Positions to compute before it samples, or before its family forks."""
        family = self._at.family(head)
        if family is not None and len(family.members) > 1 and hit.tokens < family.fork_point:
            return family.fork_point - hit.tokens
        return len(head.tokens) - hit.tokens

    def span(self, head: Sequence, hit: Hit, tokens: int) -> int:
        """Positions whose blocks admission takes."""
        span = len(head.tokens) if self._config.reserve_full_prompt else hit.tokens + tokens
        return min(span + self._lookahead, self._config.max_model_len)

    def spared(self) -> int:
        """Free blocks that an admission must leave; none while nobody else runs."""
        return self._reserve if len(self._at.table.order) else 0

    def missing(self, head: Sequence, hit: Hit, tokens: int) -> int:
        """Free blocks that an admission uses up, with those its family takes when it forks."""
        at, span = self._at, self.span(head, hit, tokens)
        family = at.family(head)
        missing = at.cache.missing(hit, span)
        if family is not None and len(family.members) > 1:
            missing += self._forks.need(family, self._span_alone, hit)
        return missing

    def _span_alone(self, sequence: Sequence) -> int:
        """Positions of a member of a family whose blocks are counted when it is admitted."""
        reserve = self._config.reserve_full_prompt
        return len(sequence.tokens) if reserve else len(sequence.request.prompt)

    def _gate(
        self, head: Sequence, hit: Hit, tokens: int, left: int, room: int, now: float
    ) -> Gate | None:
        """What keeps `head` from being admitted, if anything."""
        at = self._at
        size = 1 if head.child < 0 else len(at.group(head))
        if at.table.vacant < size:
            return self.gate_at(head, "seqs", size - at.table.vacant, now)
        if not tokens and room < left:
            return self.gate_at(head, "room", 0, now)
        if not tokens:
            return self.gate_at(head, "budget", self.rest(head, hit) - left, now)
        free = at.cache.pool.free - self.spared()
        if size == 1 and at.cache.blocks_for(self.span(head, hit, tokens)) <= free:
            return None  # it fits even if nothing of the hit is held by others
        short = self.missing(head, hit, tokens) - free
        return self.gate_at(head, "blocks", short, now) if short > 0 else None

    # -- swapped ------------------------------------------------------------

    def _return(self, head: Sequence, intake: Intake, now: float) -> Gate | None:
        """Bring a swapped sequence back, or say what keeps it out."""
        at, members = self._at, self._at.group(head)
        longest = self._config.max_model_len
        spans = [min(len(one.tokens) + self._lookahead, longest) for one in members]
        tier, free = at.swapping.tier, at.cache.pool.free - self.spared()
        if not tier.ready(head):
            return self.gate_at(head, "swapping", 0, now)
        if at.table.vacant < len(members):
            return self.gate_at(head, "seqs", len(members) - at.table.vacant, now)
        if intake.left < len(members):
            return self.gate_at(head, "budget", len(members) - intake.left, now)
        short = tier.need(members, spans) - free
        if short > 0:
            return self.gate_at(head, "blocks", short, now)
        intake.admitted += at.restore(head, spans)
        for one in members:
            self._first_row(one, intake)
        return None

    # -- gates --------------------------------------------------------------

    def gate_at(self, head: Sequence, reason: str, short: int, now: float) -> Gate:
        aged = self._at.queue.impatient(now) is head
        return Gate(reason, head.serial, head.id, short, aged)

    def closed(self, served: Composition, reason: str, now: float, short: int = 0) -> Composition:
        """Nobody is admitted in this step."""
        head = self._at.head(now)
        return served.closed(self.gate_at(head, reason, short, now) if head else None)
