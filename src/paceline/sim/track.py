"""What the oracle's device knows of one slot."""

from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.plan import NO_BLOCK, Admitted
from paceline.core.request import Request
from paceline.sim.reference import extended, start_digest

# Tokens that may follow some that were sampled in the same step; None: all.
Allowed = Callable[[list[int]], list[int] | None]


def anything(_: list[int]) -> None:
    """Any token may follow."""


@dataclass(slots=True)
class Track:
    """What the device knows of one slot."""

    request: Request
    tokens: list[int]
    tables: list[list[int]]  # blocks by attention group and index; `NO_BLOCK` where unmapped
    position: int  # positions whose KV is there
    sampled: bool = False  # since it took the slot; a drafter has nothing to go by before
    drafted: bool = False  # then the host knows its position only from above
    digests: list[int] = field(default_factory=list[int])  # expected, by position
    allowed: Allowed = anything  # in this step
    reads: dict[int, int] = field(default_factory=dict[int, int])  # rows of the store, by position

    @staticmethod
    def of(new: Admitted) -> "Track":
        """As a sequence takes a slot."""
        tables = [list(blocks) for blocks in (new.blocks, *new.more)]
        track = Track(new.request, new.tokens.tolist(), tables, new.computed)
        digest = start_digest(new.request)
        for position, token in enumerate(track.tokens[: new.computed]):
            digest = extended(new.request, digest, position, token)
            track.digests.append(digest)
        return track

    @property
    def table(self) -> list[int]:
        """The blocks of the first group."""
        return self.tables[0]

    def map(self, group: int, index: int, block: int) -> None:
        """Write an entry of a table that has none at this index."""
        table = self.tables[group]
        table.extend([NO_BLOCK] * (index + 1 - len(table)))
        assert table[index] == NO_BLOCK, f"{self.request.id!r} maps block {index} twice"
        table[index] = block

    def block(self, group: int, index: int) -> int:
        """The entry of a table; `NO_BLOCK` if it has none."""
        table = self.tables[group]
        return table[index] if index < len(table) else NO_BLOCK
