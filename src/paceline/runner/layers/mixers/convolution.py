"""The causal convolution of each channel with its last positions."""

import torch
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import Linear
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.state_store import StateRows


class CausalConvolution:
    """Position i of a row becomes the sum of weight[j] * x[i - positions + 1 + j], plus a bias.

    The inputs of a row follow the last inputs of its sequence, which are its tail:

        padded   | tail | row 0       | tail | row 1 | tail | row 2  …
    """

    def __init__(
        self,
        factory: LayerFactory[Linear],
        weights: tuple[TensorSpec, ...],
        bias: TensorSpec | None = None,
    ) -> None:
        """Each weight is [channels, 1, positions]; channels are side by side. `bias` is [all
        channels]."""
        self._weight = factory.joined(weights)[:, 0].t().contiguous().to(factory.dtype)
        self._bias = None if bias is None else factory.read(bias).to(factory.dtype)

    def __call__(self, x: Tensor, rows: StateRows, tails: Tensor) -> Tensor:
        """Convolve inputs [positions, channels], and keep the new tails."""
        width = len(self._weight) - 1
        start, rank = rows.row_start, torch.arange(len(rows.slot) + 1, device=x.device)
        count = start[1:] - start[:-1]
        at = torch.arange(len(x), device=x.device) + width * (
            rank[1:].repeat_interleave(count)
        )  # of each position in `padded`
        inside = torch.arange(width, device=x.device)
        before = (start + width * rank)[:-1, None] + inside  # [rows, width], of the old tails
        behind = before + count[:, None]  # the same of the new ones
        padded = x.new_empty(len(x) + width * len(count), x.shape[1])
        padded[at] = x
        padded[before] = tails[rows.slot]
        tails[rows.slot] = padded[behind]
        total = len(padded) - width
        found = padded[:total] * self._weight[0]
        for offset, weight in enumerate(self._weight[1:], 1):
            found.addcmul_(padded[offset : offset + total], weight)
        found = found[at - width]
        return found if self._bias is None else found.add_(self._bias)
