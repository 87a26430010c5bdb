"""Preemption by swapping: copy blocks to the host instead of computing them again."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from paceline.core.arrays import I32, Index
from paceline.core.errors import ConfigError
from paceline.core.plan import Pairs
from paceline.core.request import Sequence
from paceline.core.settings.config import PreemptionConfig
from paceline.kv.cache import KVCache
from paceline.kv.tier import HostTier
from paceline.sched.slots import SlotTable
from paceline.sched.transfers.states import States


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of recomputing and swapping."""

    recompute_tokens_per_s: float
    swap_blocks_per_s: float  # in one direction

    def __post_init__(self) -> None:
        if not (self.recompute_tokens_per_s > 0 and self.swap_blocks_per_s > 0):
            raise ConfigError("rates of recomputation and of swapping are positive")


class Swapping:
    """Decides between recomputing and swapping, and moves groups to the host and back.

    A state is of one position, and must be of one whose token the host knows. So residents with
    states rest before they are swapped: they plan no position until all before are committed.
    `_resting` has the cause, and the slots of a group.
    """

    def __init__(
        self, config: PreemptionConfig, table: SlotTable, cache: KVCache, states: States
    ) -> None:
        self.tier = HostTier(cache)
        self.rates = Rates(config.recompute_tokens_per_s, config.swap_blocks_per_s)
        self._mode = config.preemption_mode
        self._table = table
        self._cache = cache
        self._states = states
        self._resting: list[tuple[str, list[int]]] = []

    # -- resting ------------------------------------------------------------

    def rest(self, residents: list[Sequence], cause: str) -> bool:
        """Let residents rest if they are to be swapped and steps in flight advance their states.
        False if they need not, or rest already: then blocks cannot wait for them."""
        slots = [one.slot for one in residents]
        rests = slots[0] in self._slots
        if not self._states.enabled or rests or self._are_still(slots):
            return False
        if not self.wanted(residents):
            return False
        self._resting.append((cause, slots))
        return True

    @property
    def _slots(self) -> list[int]:
        """Of all residents that rest."""
        return [slot for _, slots in self._resting for slot in slots]

    def let_rest(self, slot: Index, count: I32) -> I32:
        """Positions of residents, without those that rest."""
        return np.where(np.isin(slot, self._slots), 0, count) if self._resting else count

    def rested(self) -> list[tuple[int, str]]:
        """The residents that have rested, and why they are preempted."""
        return [(slots[0], cause) for cause, slots in self._resting if self._are_still(slots)]

    def left(self, slot: int) -> None:
        """A slot was given up."""
        for _, slots in self._resting:
            if slot in slots:
                slots.remove(slot)
        self._resting = [one for one in self._resting if one[1]]

    @property
    def coming(self) -> int:
        """Blocks that come free when those that rest are swapped."""
        return len(self._cache.tables.held_only_by(self._slots)) if self._resting else 0

    def _are_still(self, slots: list[int]) -> bool:
        table = self._table
        return bool((table.planned[slots] == table.computed[slots]).all())

    # -- swapping -----------------------------------------------------------

    def wanted(self, residents: list[Sequence]) -> bool:
        """Should these sequences be swapped rather than recomputed?"""
        if self._mode == "recompute" or not self._cache.host.size:
            return False
        kept = self._kept(residents)
        if not all(kept):
            return False  # there is nothing to keep yet
        slots, tables = [one.slot for one in residents], self._cache.tables
        if not all(map(tables.can_resume, slots, kept)) or not tables.begin_alike(kept):
            return False
        if not all(map(self._states.can_move, slots)):
            return False
        return self._mode == "swap" or self._swap_s(residents) < self._recompute_s(residents)

    def can_go(self, residents: list[Sequence]) -> bool:
        """Are the states of residents, if there are any, of positions that they can continue at?"""
        if not self._states.enabled:
            return True
        slots, table = [one.slot for one in residents], self._table
        return self._are_still(slots) and bool((table.planned[slots] < table.known[slots]).all())

    def _swap_s(self, residents: list[Sequence]) -> float:
        """Seconds to swap their blocks out and in."""
        moves = self.tier.moves(residents, self._kept(residents))
        return 2 * moves / self.rates.swap_blocks_per_s

    def _recompute_s(self, residents: list[Sequence]) -> float:
        """Seconds to recompute the positions in blocks that no other sequence holds. With states
        all positions count: snapshots are in free blocks, and there are hardly any."""
        slots = [sequence.slot for sequence in residents]
        lost = computed = int(self._table.computed[slots].sum())
        if not self._states.enabled:
            lost = len(self._cache.tables.held_only_by(slots)) * self._cache.block_size
        return min(lost, computed) / self.rates.recompute_tokens_per_s

    def out(self, residents: list[Sequence], step: int) -> Pairs | None:
        """Copy the blocks of residents to the host before they are released; None if there is no
        room."""
        return self.tier.store(residents, self._kept(residents), step)

    def _kept(self, residents: list[Sequence]) -> list[int]:
        """Positions to keep of each sequence. A block that is kept for one member of a group is
        kept for all that share it, even if it is not confirmed for the one that fills it: the step
        that fills it runs before the one that copies it."""
        tokens = [self._tokens(sequence) for sequence in residents]
        if self._states.enabled:
            return tokens  # those of their states
        slots = [sequence.slot for sequence in residents]
        tables, size, known = self._cache.tables, self._cache.block_size, self._table.known
        for one, other in permutations(range(len(residents)), 2):
            shared = tables.alike(slots[one], slots[other]) * size
            most = min(tokens[other], shared, int(known[slots[one]]) - 1)
            tokens[one] = max(tokens[one], most)
        return tokens

    def _tokens(self, sequence: Sequence) -> int:
        """Positions to keep: the confirmed ones, without the last known token, which is always
        computed again to sample from."""
        slot = sequence.slot
        return int(min(self._table.computed[slot], self._table.known[slot] - 1))
