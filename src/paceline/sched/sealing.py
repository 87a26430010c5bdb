"""When the full blocks of residents get keys.

A steady step seals nothing, and most content is never looked for, so hashing waits until a lookup,
a departure or an event needs the keys.
"""

import numpy as np

from paceline.kv.cache import KVCache
from paceline.sched.slots import SlotTable


def seal_filled(table: SlotTable, cache: KVCache, slot: int, step: int) -> bool:
    """Seal the full blocks of a resident that have been handed out up to `step`, which is in
    flight. Returns whether there were any."""
    known = int(table.known[slot])
    done = _seal(table, cache, slot, min(int(table.computed[slot]), known), None)
    planned = min(int(table.planned[slot]), known)
    return _seal(table, cache, slot, planned, step) or done


def seal_rivals(table: SlotTable, cache: KVCache, step: int) -> None:
    """Seal what residents have filled that compute the same as another one, oldest first."""
    for slot in [slot for slot in table.order.tolist() if slot in cache.index.rivals]:
        seal_filled(table, cache, slot, step)
        if cache.index.sealed[slot] >= int(table.given[slot]) // cache.block_size:
            cache.index.rivals.discard(slot)


def seal_computed(table: SlotTable, cache: KVCache) -> None:
    """Seal all full blocks that residents have computed."""
    order = table.order
    filled = np.minimum(table.computed[order], table.known[order])
    for slot, tokens in zip(order.tolist(), filled.tolist(), strict=True):
        _seal(table, cache, slot, tokens, None)


def _seal(table: SlotTable, cache: KVCache, slot: int, tokens: int, step: int | None) -> bool:
    """Seal the full blocks of the first `tokens` positions. Returns whether any got sealed: a
    lookup asks again until none does."""
    before = cache.index.sealed[slot]
    if tokens // cache.block_size <= before or not cache.index.enabled:
        return False
    sequence = table.sequence(slot)
    sequence.tokens = table.tokens[slot, : table.known[slot]].copy()
    cache.index.extend_keys(sequence)
    cache.seal(slot, sequence, tokens, step)
    return cache.index.sealed[slot] > before
