"""What a lookup finds of a sequence, and where."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.plan import Pairs


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix that need not be computed, in parts by place. Each part continues the one before.

        device    host          to compute
        b4 b7     h2 h0 h5      . . . .

    The device part counts at once. The host part counts when it has been loaded into device
    blocks, which the step that admits the sequence does before it computes.
    """

    device: tuple[int, ...]
    tokens: int  # of all parts
    host: tuple[int, ...] = ()

    def loads(self, blocks: Sequence[int]) -> Pairs:
        """What must move before all of the hit counts: pairs of a host block and a device block.
        `blocks` are all device blocks of the sequence, in order."""
        first = len(self.device)
        return tuple(zip(self.host, blocks[first : first + len(self.host)], strict=True))


MISS = Hit((), 0)
