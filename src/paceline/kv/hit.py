"""What a lookup finds of a sequence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix found in the cache."""

    blocks: tuple[int, ...]
    tokens: int


MISS = Hit((), 0)
