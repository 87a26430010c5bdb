"""Masks that say which tokens a step may sample, in packed bits."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class MaskRows:
    """The masks of some lines of logits: line `line[i]` has row `at[i]` of `bits`. Bit b of word w
    allows the token 32 w + b."""

    line: Index  # [masks]
    at: Index  # [masks]
    bits: I32  # [rows, words]

    @property
    def rows(self) -> I32:
        """The masks in the order of `line`."""  # [masks, words]
        first = int(self.at[0]) if len(self.at) else 0
        if np.array_equal(self.at, np.arange(first, first + len(self.at))):
            return self.bits[first : first + len(self.at)]
        return self.bits[self.at]

    def allowed(self, vocab: int) -> Bool:
        """One value per token."""  # [masks, vocab]
        unpacked = np.unpackbits(self.rows.view(np.uint8), axis=1, bitorder="little")
        return unpacked[:, :vocab].astype(np.bool_)


class TokenMasks(Protocol):
    """Where a runner gets the masks of a step.

    A mask depends on the tokens before it, so a step with masks samples when the steps before it
    are committed: when the next step is launched, or when it is waited for itself. The engine has
    at most two steps in flight then.
    """

    def wants(self, plan: Plan) -> bool:
        """Does a row of this plan sample under a constraint?"""
        ...

    def write_into(self, bits: I32) -> None:
        """Write masks to this memory [rows, words] from now on, while no copy of it is under way.
        A step with drafts needs a row for each line of logits, another one for each slot."""
        ...

    def fill(self, plan: Plan, order: Index, drafts: I32 | None = None) -> MaskRows | None:
        """The masks of the rows that sample under a constraint; None if there are none.

        Row `order[i]` of those that sample has line i of logits; with drafts [samples, most], in
        the same order, it has lines from `i * (1 + most)` on, one for each place. A draft of -1 is
        none. Places behind a draft that the constraint does not allow have no mask.

        The steps before it are committed. The masks stay until the step is committed.
        """
        ...
