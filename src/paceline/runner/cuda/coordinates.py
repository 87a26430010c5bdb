"""Rotary cos/sin tables and coordinates of positions on the GPU."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan
from paceline.runner.batch import request_coordinates
from paceline.runner.cuda.kernels.sampling import mask_logits
from paceline.runner.cuda.staging import ALIGNED, Staging, pinned_numbers
from paceline.runner.models.rope import AXES, Rope


class RotaryTable:
    """Rotary cosines and sines of every position, and of positions with several coordinates.

    by_position   cosines and sines, [positions, 2, head_dim / 2]
    """

    def __init__(self, rope: Rope, positions: int, device: torch.device | str) -> None:
        self.by_position = rotary_table(rope, positions, device)
        self._axes = torch.tensor(rope.axes, device=device) if rope.axes else None

    def of(self, coordinates: Tensor) -> Tensor | None:
        """Cosines and sines of positions with these coordinates, [n, axes] to [n, 2, head_dim / 2]:
        each pair has those of one coordinate. None if a position is one number."""
        if self._axes is None:
            return None
        by_pair = coordinates.index_select(1, self._axes)  # [n, head_dim / 2]
        return self.by_position.gather(0, by_pair[:, None].expand(-1, 2, -1).long())


def rotary_table(rope: Rope, positions: int, device: torch.device | str) -> Tensor:
    """Return cosines and sines of every position, [positions, 2, head_dim / 2] in float32."""
    each = torch.arange(positions, device=device, dtype=torch.float32)
    angle = each[:, None] * torch.tensor(rope.frequencies, device=device)
    cos_sin = torch.stack((angle.cos(), angle.sin()), dim=1)
    return cos_sin.mul_(torch.tensor(rope.amplitudes, device=device))


class CudaCoordinates:
    """The coordinates of every position of every slot, and of one more slot for padding.

    In slots without images, each coordinate of a position is the position itself. Behind a
    prompt with images, coordinates are as far from the position as those of its last token.
    """

    def __init__(self, slots: int, length: int, square: int, device: torch.device) -> None:
        """`square`: pixels along each side of what becomes one embedding of an image."""
        self._square, self._staging = square, Staging(device)
        self._positions = torch.arange(length, dtype=torch.int32, device=device)
        self._table = self._positions.repeat(AXES, slots + 1, 1)  # [axes, slots + 1, length]
        self._shown: set[int] = set()  # slots whose table is that of a prompt with images

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for new in plan.admitted:
            table = self._table[:, new.slot]
            if new.request.images:
                known = request_coordinates(new.request, self._square)
                table[:] = self._positions + int(known[-1, 0] - len(new.request.prompt))
                (sent,) = self._staging.send(known.T.astype(np.int32).ravel())
                table[:, : len(known)] = sent.view(AXES, -1)
                self._shown.add(new.slot)
            elif new.slot in self._shown:
                table[:] = self._positions
                self._shown.remove(new.slot)

    def of(self, slot: Tensor, position: Tensor) -> Tensor:
        """The coordinates of positions in slots, [n] each: [n, axes]."""
        at = slot.long() * len(self._positions) + position
        return self._table.view(AXES, -1).index_select(1, at).t()


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

        Row `wanted[i]` has line i, or as many lines as it has positions with drafts [wanted, most].
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
