"""What a step encodes, and which positions read what was encoded."""

from dataclasses import dataclass

from paceline.core.arrays import I32, NO_I32, NO_INDEX, Index


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """An item to encode before the rows of a step are computed.

    Its content is in the request of the sequence in `slot`, which has a row in the same step. What
    the rows of the encoder store held before is no longer needed.
    """

    slot: int
    item: int  # its place in `Request.items`
    identity: str
    rows: I32  # [length]; rows of the encoder store that its embeddings go to


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Positions of a step that have an embedding of an item instead of that of their token.

    Position `place[i]` of row `row[i]` of the plan, counted from the row's first, has the one in
    `source[i]` of the encoder store. In the order of the rows, and of their positions.
    """

    row: Index  # [embedded]
    place: I32  # [embedded]
    source: I32  # [embedded]

    def __len__(self) -> int:
        return len(self.row)


NOTHING_EMBEDDED = Embedded(NO_INDEX, NO_I32, NO_I32)
