"""Policies that decide where snapshots of states are taken."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum

from paceline.core import plugins
from paceline.core.settings.config import CacheConfig

SPACING = 2  # memory of the KV between snapshots of one prompt, in snapshots


class SnapshotPoint(Enum):
    """What makes a position one where the state may be kept."""

    PROMPT = "the known tokens of an admission end"
    BRANCH = "an earlier sequence had the same tokens up to here"
    CHUNK = "a row ends within a prompt"
    TURN = "a sequence leaves its slot"

    @property
    def is_end(self) -> bool:
        """Does a prompt or a turn end here?"""
        return self in (SnapshotPoint.PROMPT, SnapshotPoint.TURN)


class SnapshotPolicy(ABC):
    """Decides at which positions the states of sequences are kept.

    A hit of a model with states ends at a snapshot. A snapshot takes `state_blocks` blocks, and
    what it saves is computing the tokens between it and the one before: so its price is the KV of
    `price` tokens. Snapshots are taken from free blocks alone, so a policy need not count blocks.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.price = config.state_blocks * config.block_size

    @abstractmethod
    def wants(self, point: SnapshotPoint, tokens: int, since: int, left: int) -> bool:
        """Whether to keep the state behind `tokens` positions. The latest snapshot of the sequence
        was at `since`, and it has `left` more known tokens."""

    def branch(self, since: int, cached: int) -> int:
        """Where a row must end, because the KV of `cached` tokens was found and a snapshot of the
        first `since`; 0: nowhere."""
        return 0

    def end(self, start: int, branch: int) -> int:
        """Where a row that begins at `start` must end if it would go further; 0: nowhere. `branch`
        is what the method of this name said."""
        return branch if start < branch else 0


class Auto(SnapshotPolicy):
    """Keeps states where later requests are likely to go on.

    That is behind a prompt, where a conversation goes on or is asked again; behind the last token
    of a turn; and where a prefix was seen to branch. Long prompts have further ones at ends of
    chunks, where they need no cut: as far apart as `SPACING` times their price, for prefixes that
    will be found to branch for the first time.
    """

    def wants(self, point: SnapshotPoint, tokens: int, since: int, left: int) -> bool:
        if point is not SnapshotPoint.CHUNK:
            return tokens > since
        distance = SPACING * self.price
        return tokens - since >= distance and left >= distance

    def branch(self, since: int, cached: int) -> int:
        return cached if cached > since else 0


class Block(SnapshotPolicy):
    """Keeps the state behind every full block of a prompt: rows end there."""

    def wants(self, point: SnapshotPoint, tokens: int, since: int, left: int) -> bool:
        return tokens % self.block_size == 0

    def end(self, start: int, branch: int) -> int:
        return (start // self.block_size + 1) * self.block_size


class Last(SnapshotPolicy):
    """Keeps the state behind a prompt, and behind a turn."""

    def wants(self, point: SnapshotPoint, tokens: int, since: int, left: int) -> bool:
        return point.is_end


class NoSnapshots(SnapshotPolicy):
    """Keeps no state, so there are no hits."""

    def wants(self, point: SnapshotPoint, tokens: int, since: int, left: int) -> bool:
        return False


KNOWN: Mapping[str, type[SnapshotPolicy]] = {
    "auto": Auto,
    "block": Block,
    "last": Last,
    "none": NoSnapshots,
}


def load(config: CacheConfig) -> SnapshotPolicy:
    """Load a policy by its name in KNOWN, or by dotted path."""
    return plugins.load("snapshots", config.snapshots, KNOWN, SnapshotPolicy)(config)
