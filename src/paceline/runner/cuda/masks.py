"""The masks of a step on a GPU."""

import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan
from paceline.runner.cuda.kernels.masks import mask_logits
from paceline.runner.cuda.staging import ALIGNED, pinned_numbers


class LogitMasks:
    """Brings the masks of a step to the GPU in one copy, behind the launch of its model.

        memory  | which mask each line of logits has; -1: none | masks, one after the other |

    They are written where the GPU copies them from. The next step overwrites them, when the step
    before it has been waited for.
    """

    def __init__(self, source: TokenMasks, lines: int, vocab: int, device: torch.device) -> None:
        """For steps of at most so many lines of logits."""
        self._source, self._words = source, -(-vocab // 32)
        self._lines = -(-lines // ALIGNED) * ALIGNED
        size = self._lines * (1 + self._words)
        self._memory = torch.full((size,), -1, dtype=torch.int32, device=device)
        self._pinned = pinned_numbers(size)
        content = self._pinned.numpy()
        self._mask_of = content[: self._lines]
        self._bits = content[self._lines :].reshape(self._lines, self._words)
        source.write_into(self._bits)

    def wants(self, plan: Plan) -> bool:
        return self._source.wants(plan)

    def load(self, plan: Plan, wanted: Index, drafts: I32 | None = None) -> None:
        """Fill the masks of a step, and copy them. The steps before it are committed.

        Row `wanted[i]` has line i, or as many lines as it has places with drafts [wanted, most].
        """
        masks = self._source.fill(plan, wanted, drafts)
        self._mask_of[:] = -1
        size = self._lines
        if masks is not None:
            assert masks.bits is self._bits, "masks are in other memory"
            self._mask_of[masks.line] = masks.at
            size += (int(masks.at.max()) + 1) * self._words
        self._memory[:size].copy_(self._pinned[:size], non_blocking=True)

    def apply(self, logits: Tensor) -> None:
        """Mask the logits [lines, vocab] of the step."""
        mask_logits(logits, self._memory[: len(logits)], self._memory[self._lines :])
