"""Masks that say which tokens a step may sample, in packed bits."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.plan import Plan


@dataclass(frozen=True, slots=True, eq=False)
class MaskRows:
    """The masks of some lines of logits. Bit b of word w allows the token 32 w + b."""

    line: Index  # [masks]
    bits: I32  # [masks, words]

    def allowed(self, vocab: int) -> Bool:
        """One value per token."""  # [masks, vocab]
        unpacked = np.unpackbits(self.bits.view(np.uint8), axis=1, bitorder="little")
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

    def fill(self, plan: Plan, order: Index, drafts: I32 | None = None) -> MaskRows | None:
        """The masks of the rows that sample under a constraint; None if there are none.

        Row `order[i]` of those that sample has line i of logits; with drafts [samples, most], in
        the same order, it has lines from `i * (1 + most)` on, one for each place. A draft of -1 is
        none. Places behind a draft that the constraint does not allow have no mask.

        The steps before it are committed. The next call overwrites the masks.
        """
        ...
