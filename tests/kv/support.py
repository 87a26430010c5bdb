"""A cache small enough to compute by hand, and sequences that come and go in it."""

from itertools import count
from typing import Any

import numpy as np

from paceline.core.config import CacheConfig
from paceline.core.request import Request, Sequence
from paceline.kv.cache import KVCache
from paceline.kv.hit import Hit

SIZE, SLOTS, LENGTH = 4, 4, 40
TEXT = list(range(100, 100 + LENGTH))
serials = count()


def cache(blocks: int = 16, host: int = 0, **settings: Any) -> KVCache:
    return KVCache(CacheConfig(num_blocks=blocks, block_size=SIZE, **settings), SLOTS, LENGTH, host)


def sequence(kv: KVCache, tokens: list[int], **fields: Any) -> Sequence:
    """A sequence with a key for every full block."""
    request = Request(f"r{next(serials)}", tokens, **fields)  # pyright: ignore[reportArgumentType]
    made = Sequence(request, next(serials), LENGTH, 0.0, request.prompt)
    kv.name(made)
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
    short = kv.short(np.array([slot]), np.array([len(made.tokens)], np.int32))
    kv.grow(np.array([slot]), short)
    kv.name(made)
    kv.seal(slot, made, len(made.tokens), None)
    kv.check()
