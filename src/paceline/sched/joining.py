"""Requests that join the next step of a simulation at once, with their whole prompt."""

from paceline.core.arrays import I32, Index
from paceline.core.config import Config
from paceline.core.events import Happened
from paceline.core.request import Request, Sequence
from paceline.sched.components import SchedulerComponents
from paceline.sched.course import Joined
from paceline.sched.explain.journal import note
from paceline.sched.policy import Policy

MOST_AT_ONCE = 32  # what a turn of the engine accepts


class DirectJoin:
    """Admits requests that nothing keeps from joining, without a queue and gates: there are a slot,
    the budget and the blocks for the whole prompt of each, and none waits before it."""

    def __init__(self, config: Config, components: SchedulerComponents) -> None:
        self._state, self._arrivals = components.state, components.arrivals
        step, queue, policy = config.step, config.queue, type(components.state.policy)
        self._budget, self._size = step.max_num_batched_tokens, config.cache.block_size
        self._watermark = int(step.watermark * config.cache.num_blocks)
        self._longest = step.long_prefill_token_threshold or step.max_num_batched_tokens
        is_first_come = policy.rank is Policy.rank and policy.flow is Policy.flow
        is_open = queue.max_num_queued_reqs > MOST_AT_ONCE and not queue.max_queued_tokens
        self._most = MOST_AT_ONCE if is_first_come and is_open else 1
        self._is_possible = (
            policy.room is Policy.room
            and not components.state.policy.refresh
            and not config.preemption.swap_space
            and not step.max_step_s
            and not config.speculation.num_speculative_tokens
        )

    def fits(self, rows: int, requests: list[Request]) -> bool:
        """Would all of them be admitted, with their whole prompts, beside so many rows of
        residents?"""
        state, lengths = self._state, [len(one.prompt) for one in requests]
        if not self._is_possible or len(requests) > min(self._most, state.table.vacant):
            return False
        if rows + sum(lengths) > self._budget or max(lengths) > self._longest:
            return False
        if any(one.origin for one in requests):
            return False
        if any(one.width > 1 or one.items or one.generated or one.drafts for one in requests):
            return False
        blocks = rows + sum(-(-length // self._size) for length in lengths)
        return blocks <= state.cache.pool.free - self._watermark

    def join(self, slot: Index, start: I32, arrived: list[Sequence]) -> tuple[Joined, ...]:
        """Plan a step in which residents compute one position each, from `start[i]` on, and those
        join them that arrived."""
        state, tables = self._state, self._state.cache.tables
        for number, one in enumerate(arrived):
            note(one, Happened.SUBMITTED, state.now, state.step, number)
            state.live[one.id] = one
            state.policy.joined(one)
        state.step += 1
        if len(slot):
            tables.grow(slot, tables.short(slot, start + 1))
            state.table.advance(slot, start + 1)
        return tuple([self._admit(one) for one in arrived])

    def _admit(self, sequence: Sequence) -> Joined:
        state, known = self._state, len(sequence.tokens)
        hit = state.prefixes.lookup(sequence)
        admitted = self._arrivals.admit(sequence, hit, known)
        state.table.advance(admitted.slot, known)
        state.prefixes.seal_rivals()
        return Joined(sequence.request, admitted.slot, known - hit.tokens)
