"""The unified discipline: residents first, then waiting sequences, prefill and decode mixed."""

from dataclasses import dataclass, replace

import numpy as np

from paceline.core.arrays import I32, NO_I32, NO_INDEX, Index
from paceline.core.config import Config
from paceline.core.plan import NOTHING_GROWN, Admitted, Grown
from paceline.core.request import Sequence
from paceline.kv.cache import Hit
from paceline.sched.journal import Gate
from paceline.sched.limits import within_budget, within_length, within_threshold
from paceline.sched.residency import Residency
from paceline.sched.speculation import Speculation


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """The rows of a step and what came with them, before anything is handed out."""

    slot: Index
    start: I32  # the first position of each row
    count: I32
    drafts: I32
    grown: Grown = NOTHING_GROWN
    admitted: tuple[Admitted, ...] = ()
    gate: Gate | None = None  # why nobody else was admitted; None: nobody waits


class Unified:
    """Builds the rows of one step. Everything it may change is in the Residency."""

    def __init__(self, config: Config, residency: Residency, speculation: Speculation) -> None:
        self._config = config.step
        self._at = residency
        self._speculation = speculation
        self._lookahead = config.speculation.lookahead_slots
        self._reserve = int(config.step.watermark * config.cache.num_blocks)

    def compose(self, now: float, admitting: bool) -> Composition:
        """Who computes how much now."""
        at = self._at
        if admitting:
            self._displace(now)
        preempted = at.stats.preemptions
        served = self._serve()
        if at.stats.preemptions > preempted:
            step = self._closed(served, "preempted", now, at.stats.preemptions - preempted)
        elif not admitting:
            step = self._closed(served, "paused", now)
        else:
            step = self._admit(served, now)
        return self._draft(step) if at.table.drafting else step

    def rest(self, now: float) -> Composition:
        """Nobody computes anything now."""
        nothing = Composition(NO_INDEX, NO_I32, NO_I32, NO_I32)
        return self._closed(nothing, "paused", now)

    # -- residents ----------------------------------------------------------

    def _serve(self) -> Composition:
        """Share the budget among residents and give each the blocks it lacks."""
        at = self._at
        slot, count, short = self._fit_residents()
        grown = at.cache.grow(slot, short)
        if not count.all():
            busy = count > 0
            at.table.idle(slot[~busy & (at.table.remaining(slot) > 0)], at.step)
            slot, count = slot[busy], count[busy]
        start = at.table.planned[slot]
        at.table.advance(slot, start + count)
        served = Composition(slot, start, count, np.zeros(len(slot), np.int32), grown)
        self._seal(served)
        return served

    def _fit_residents(self) -> tuple[Index, I32, I32]:
        """Residents with positions and new blocks for each; some give way if blocks are short."""
        at = self._at
        while True:
            slot = at.table.order
            count = self._share(slot)
            short = self._short(slot, count)
            missing = int(short.sum()) - at.cache.pool.free
            if missing <= 0:
                return slot, count, short
            needy = int(slot[np.cumsum(short) > at.cache.pool.free][0])
            victim = at.policy.victim()
            whom = "itself" if needy == victim else repr(at.table.name[needy])
            blocks = "1 block" if missing == 1 else f"{missing} blocks"
            at.preempt(victim, cause=f"want of {blocks} for {whom}")

    def _share(self, slot: Index) -> I32:
        """Positions for each resident within all limits."""
        config = self._config
        want = self._at.table.remaining(slot)
        want = within_threshold(want, config.long_prefill_token_threshold)
        return self._at.policy.share(slot, want, config.max_num_batched_tokens)

    def _draft(self, step: Composition) -> Composition:
        """Let drafts ride on the budget and the blocks that nobody else wanted."""
        at, slot = self._at, step.slot
        table, end = at.table, step.start + step.count
        order = table.order
        table.propose(
            order, self._speculation.drafts(table.most_drafts[order], table.acceptance[order])
        )
        drafts = np.where(step.start >= table.given[slot], table.drafts[slot], 0)
        drafts = within_length(drafts, end, table.limit[slot])
        left = self._config.max_num_batched_tokens - int(step.count.sum())
        drafts = within_budget(drafts, left)
        short = self._short(slot, drafts)
        unaffordable = (short > 0) & (np.cumsum(short) > at.cache.pool.free)
        drafts[unaffordable] = short[unaffordable] = 0
        if not drafts.any():
            return step
        grown = step.grown.followed_by(at.cache.grow(slot, short))
        table.advance(slot, end + drafts)
        return replace(step, count=step.count + drafts, drafts=drafts, grown=grown)

    def _short(self, slot: Index, count: I32) -> I32:
        end = self._at.table.planned[slot] + count
        if self._lookahead:
            end = np.minimum(end + self._lookahead, self._config.max_model_len)
        return np.where(count > 0, self._at.cache.short(slot, end), 0)

    def _seal(self, served: Composition) -> None:
        """Let others find the blocks of known tokens that this step fills."""
        at, slot = self._at, served.slot
        for row in np.flatnonzero(served.start < at.table.given[slot]).tolist():
            place = int(slot[row])
            end = int(served.start[row] + served.count[row])
            at.cache.seal(place, at.table.sequence(place), end, at.step)

    # -- arrivals -----------------------------------------------------------

    def _displace(self, now: float) -> None:
        """Let an arrival push out residents that it may displace, if that lets it in."""
        at = self._at
        head = at.queue.head(now)
        candidates = at.policy.displaceable(head, now) if head else []
        if head is None or not candidates:
            return
        for number in range(len(candidates) + 1):
            if self._fits_without(head, candidates[:number]):
                for slot in candidates[:number]:
                    at.preempt(slot, cause=f"{head.id!r}, which goes before it")
                return

    def _fits_without(self, head: Sequence, gone: list[int]) -> bool:
        """Would `head` be admitted in this step if the residents in `gone` were not here?"""
        at = self._at
        slot = at.table.order[~np.isin(at.table.order, gone)]
        count = self._share(slot)
        hit = at.lookup(head)
        tokens = self._chunk(head, hit, self._config.max_num_batched_tokens - int(count.sum()))
        if not tokens or not at.table.vacant + len(gone):
            return False
        freed = at.cache.held_only_by(gone)
        missing = at.cache.missing(hit, self._span(head, hit, tokens))
        missing += len(freed & set(hit.blocks)) + int(self._short(slot, count).sum())
        spared = self._reserve if len(slot) else 0
        return missing + spared <= at.cache.pool.free + len(freed)

    def _admit(self, served: Composition, now: float) -> Composition:
        """Admit waiting sequences by rank until one does not fit."""
        at = self._at
        left = self._config.max_num_batched_tokens - int(served.count.sum())
        admitted: list[Admitted] = []
        counts: list[int] = []
        gate: Gate | None = None
        while (head := at.queue.head(now)) is not None:
            hit = at.lookup(head)
            tokens = self._chunk(head, hit, left)
            gate = self._gate(head, hit, tokens, left, now)
            if gate is not None:
                break
            new = at.admit(head, hit, self._span(head, hit, tokens))
            at.cache.seal(new.slot, head, hit.tokens + tokens, at.step)
            admitted.append(new)
            counts.append(tokens)
            left -= tokens
        return self._joined(served, admitted, counts, gate)

    def _chunk(self, head: Sequence, hit: Hit, left: int) -> int:
        """Positions `head` would compute in this step; 0 if the budget does not let it in."""
        rest = len(head.tokens) - hit.tokens
        threshold = self._config.long_prefill_token_threshold
        want = min(rest, threshold) if threshold else rest
        if not self._config.enable_chunked_prefill and want > left:
            return 0
        return min(want, left)

    def _span(self, head: Sequence, hit: Hit, tokens: int) -> int:
        """Positions whose blocks admission takes."""
        span = len(head.tokens) if self._config.reserve_full_prompt else hit.tokens + tokens
        return min(span + self._lookahead, self._config.max_model_len)

    def _spared(self) -> int:
        """Free blocks that an admission must leave; none while nobody else runs."""
        return self._reserve if len(self._at.table.order) else 0

    def _gate(self, head: Sequence, hit: Hit, tokens: int, left: int, now: float) -> Gate | None:
        """What keeps `head` from being admitted, if anything."""
        at = self._at
        if not at.table.vacant:
            return self._gate_at(head, "seqs", 1, now)
        if not tokens:
            return self._gate_at(head, "budget", len(head.tokens) - hit.tokens - left, now)
        span, free = self._span(head, hit, tokens), at.cache.pool.free - self._spared()
        if at.cache.blocks_for(span) <= free:
            return None  # it fits even if nothing of the hit is held by others
        short = at.cache.missing(hit, span) - free
        return self._gate_at(head, "blocks", short, now) if short > 0 else None

    def _gate_at(self, head: Sequence, reason: str, short: int, now: float) -> Gate:
        aged = self._at.queue.impatient(now) is head
        return Gate(reason, head.serial, head.id, short, aged)

    def _closed(self, served: Composition, reason: str, now: float, short: int = 0) -> Composition:
        """Nobody is admitted in this step."""
        head = self._at.queue.head(now)
        gate = self._gate_at(head, reason, short, now) if head else None
        return replace(served, gate=gate)

    def _joined(
        self, served: Composition, new: list[Admitted], counts: list[int], gate: Gate | None
    ) -> Composition:
        """The rows of residents with those of the newly admitted behind them."""
        if not new:
            return replace(served, gate=gate)
        slot = np.array([one.slot for one in new], np.intp)
        start = np.array([one.computed for one in new], np.int32)
        count = np.array(counts, np.int32)
        self._at.table.advance(slot, start + count)
        return Composition(
            slot=np.concatenate([served.slot, slot]),
            start=np.concatenate([served.start, start]),
            count=np.concatenate([served.count, count]),
            drafts=np.concatenate([served.drafts, np.zeros(len(new), np.int32)]),
            grown=served.grown,
            admitted=tuple(new),
            gate=gate,
        )
