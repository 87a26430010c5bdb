"""A cache small enough to compute by hand, and sequences that come and go in it."""

from itertools import count
from typing import Any

import numpy as np

from paceline.core.plan import Pairs
from paceline.core.request import Request, Sequence
from paceline.core.settings.config import CacheConfig
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit
from paceline.kv.tier import HostTier

SIZE, SLOTS, LENGTH = 4, 4, 40
TEXT = list(range(100, 100 + LENGTH))
serials = count()


def cache(blocks: int = 16, host: int = 0, **settings: Any) -> KVCache:
    return KVCache(CacheConfig(num_blocks=blocks, block_size=SIZE, **settings), SLOTS, LENGTH, host)


def sequence(kv: KVCache, tokens: list[int], **fields: Any) -> Sequence:
    """A sequence with a key for every full block."""
    request = Request(f"r{next(serials)}", tokens, **fields)  # pyright: ignore[reportArgumentType]
    made = Sequence(request, next(serials), LENGTH, 0.0, request.prompt)
    kv.index.extend_keys(made)
    return made


def admit(kv: KVCache, slot: int, made: Sequence, step: int | None = None) -> Hit:
    """Attach all of a sequence and seal it, as a step that computes it whole does."""
    hit = kv.lookup(made)
    kv.attach(slot, made, hit, len(made.tokens))
    kv.seal(slot, made, len(made.tokens), step)
    kv.check()
    return hit


def put(kv: KVCache, slot: int, tokens: list[int], **fields: Any) -> Sequence:
    made = sequence(kv, tokens, **fields)
    admit(kv, slot, made)
    return made


def cached(kv: KVCache, tokens: list[int], **fields: Any) -> Sequence:
    """A sequence that came and went, leaving its content behind."""
    made = put(kv, SLOTS - 1, tokens, **fields)
    kv.release(SLOTS - 1, made)
    return made


def extend(kv: KVCache, slot: int, made: Sequence, tokens: list[int]) -> None:
    """Generate `tokens` and seal what they fill."""
    made.tokens = np.append(made.tokens, np.array(tokens, np.int32))
    short = kv.tables.short(np.array([slot]), np.array([len(made.tokens)], np.int32))
    kv.tables.grow(np.array([slot]), short)
    kv.index.extend_keys(made)
    kv.seal(slot, made, len(made.tokens), None)
    kv.check()


def unkeyed(kv: KVCache, tokens: list[int], slot: int = 0) -> Sequence:
    """A resident that has filled its blocks, none of which has a key."""
    request = Request(f"u{slot}{len(tokens)}", tokens)  # pyright: ignore[reportArgumentType]
    made = Sequence(request, -1, LENGTH, 0.0, request.prompt)
    kv.attach(slot, made, kv.lookup(made), len(tokens))
    kv.check()
    return made


def residents_sealed_for(kv: KVCache, newcomer: Sequence) -> list[int]:
    """The residents that a lookup asks to be sealed."""
    slots: list[int] = []

    def ask(slot: int) -> bool:
        slots.append(slot)
        return False

    kv.lookup(newcomer, ask)
    return slots


def forked(kv: KVCache, tokens: int, length: int = 10) -> tuple[Sequence, Sequence, Pairs]:
    """A sequence in slot 0, and one in slot 1 that begins with its first `tokens`."""
    parent = put(kv, 0, TEXT[:length])
    child = sequence(kv, TEXT[:length])
    copies = kv.fork(0, 1, child, tokens)
    kv.check()
    return parent, child, copies


# -- with a host tier --------------------------------------------------------


def tier(host: int = 8, blocks: int = 16, **settings: Any) -> tuple[KVCache, HostTier]:
    kv = cache(blocks, host, **settings)
    return kv, HostTier(kv)


def check(kv: KVCache, host: HostTier) -> None:
    kv.check()
    host.check()


def resident(kv: KVCache, slot: int, tokens: list[int]) -> Sequence:
    """A sequence that has computed all it knows."""
    made = put(kv, slot, tokens)
    made.slot = slot
    return made


def give_way(kv: KVCache, *sequences: Sequence) -> None:
    """Leave the slots; the blocks are free unless something else holds them."""
    for one in sequences:
        kv.release(one.slot, one)
        one.slot = -1


def away(kv: KVCache, host: HostTier, *sequences: Sequence, step: int = 1) -> None:
    """Store all but the last token of each, leave the slots, and let the step run."""
    assert host.store(list(sequences), [len(one.tokens) - 1 for one in sequences], step) is not None
    give_way(kv, *sequences)
    kv.fences.confirm(step)
    check(kv, host)


def overwrite(kv: KVCache) -> None:
    """Let others use every free block and leave again, so that nothing old is found."""
    taken = kv.pool.take(kv.pool.free)
    kv.pool.drop(taken)
