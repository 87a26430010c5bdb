"""The result of a lookup: the cached prefix of a sequence, and where it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.plan import Blocks, Pairs


@dataclass(frozen=True, slots=True)
class Hit:
    """A prefix that need not be computed, in parts by place. Each part continues the one before.

        device    host          to compute
        b4 b7     h2 h0 h5      . . . .

    The device part can be used at once. The host part must be loaded into device blocks first; the
    step that admits the sequence does so before it computes.
    """

    device: tuple[int, ...]  # by index; of several attention groups, all that they read
    tokens: int  # of all parts
    host: tuple[int, ...] = ()
    groups: tuple[Blocks, ...] = ()  # `device` by group and index, if there are several groups

    def loads(self, blocks: Sequence[int]) -> Pairs:
        """The copies that the hit needs before it can be used: pairs of a host block and a device
        block. `blocks` are the device blocks of the sequence, in order."""
        first = len(self.device)
        return tuple(zip(self.host, blocks[first : first + len(self.host)], strict=True))


MISS = Hit((), 0)
