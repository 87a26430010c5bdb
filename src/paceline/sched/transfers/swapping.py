"""Preemption by swapping: copy blocks to the host instead of computing them again."""

from dataclasses import dataclass
from itertools import permutations

from paceline.core.errors import ConfigError
from paceline.core.plan import Pairs
from paceline.core.request import Sequence
from paceline.core.settings.config import PreemptionConfig
from paceline.kv.cache import KVCache
from paceline.kv.tier import HostTier
from paceline.sched.slots import SlotTable


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates of recomputing and swapping."""

    recompute_tokens_per_s: float
    swap_blocks_per_s: float  # in one direction

    def __post_init__(self) -> None:
        if not (self.recompute_tokens_per_s > 0 and self.swap_blocks_per_s > 0):
            raise ConfigError("rates of recomputation and of swapping are positive")


class Swapping:
    """Decides between recomputing and swapping, and moves groups to the host and back."""

    def __init__(self, config: PreemptionConfig, table: SlotTable, cache: KVCache) -> None:
        self.tier = HostTier(cache)
        self.rates = Rates(config.recompute_tokens_per_s, config.swap_blocks_per_s)
        self._mode = config.preemption_mode
        self._table = table
        self._cache = cache

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
        return self._mode == "swap" or self._swap_s(residents) < self._recompute_s(residents)

    def _swap_s(self, residents: list[Sequence]) -> float:
        """Seconds to swap their blocks out and in."""
        moves = self.tier.moves(residents, self._kept(residents))
        return 2 * moves / self.rates.swap_blocks_per_s

    def _recompute_s(self, residents: list[Sequence]) -> float:
        """Seconds to recompute the positions in blocks that no other sequence holds."""
        slots = [sequence.slot for sequence in residents]
        lost = len(self._cache.tables.held_only_by(slots)) * self._cache.block_size
        computed = int(self._table.computed[slots].sum())
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
