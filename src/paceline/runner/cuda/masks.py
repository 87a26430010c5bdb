"""The masks of a step on a GPU."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan
from paceline.runner.cuda.kernels.masks import mask_logits
from paceline.runner.cuda.staging import ALIGNED, Staging


class LogitMasks:
    """Brings the masks of a step to the GPU in one copy, behind the launch of its model.

        memory  | which mask each line of logits has; -1: none | masks, one after the other |

    The next step overwrites them.
    """

    def __init__(self, source: TokenMasks, lines: int, vocab: int, device: torch.device) -> None:
        """For steps of at most so many lines of logits."""
        self._source, self._staging = source, Staging(device)
        self._lines = -(-lines // ALIGNED) * ALIGNED
        size = self._lines * (1 + -(-vocab // 32))
        self._memory = torch.full((size,), -1, dtype=torch.int32, device=device)

    def wants(self, plan: Plan) -> bool:
        return self._source.wants(plan)

    def load(self, plan: Plan, wanted: Index, drafts: I32 | None = None) -> None:
        """Fill the masks of a step, and copy them. The steps before it are committed.

        Row `wanted[i]` has line i, or as many lines as it has places with drafts [wanted, most].
        """
        masks = self._source.fill(plan, wanted, drafts)
        mask_of = np.full(self._lines, -1, np.int32)
        if masks is None:
            self._staging.send_into(self._memory[: self._lines], mask_of)
            return
        mask_of[masks.line] = np.arange(len(masks.line), dtype=np.int32)
        size = self._lines + masks.bits.size
        self._staging.send_into(self._memory[:size], mask_of, masks.bits)

    def apply(self, logits: Tensor) -> None:
        """Mask the logits [lines, vocab] of the step."""
        mask_logits(logits, self._memory[: len(logits)], self._memory[self._lines :])
