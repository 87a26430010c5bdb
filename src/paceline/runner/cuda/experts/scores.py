"""What a router computes of few positions, in one kernel with the norm."""

# Kernels take pointers, strides and sizes one by one.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import WIDE


def scores_of(hidden: Tensor, floor: float, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs [positions, outputs] in float32 of normalised positions. Nothing is rounded; the bias
    may have fewer outputs."""
    (rows, width), count = hidden.shape, len(weight)
    found = hidden.new_empty((rows, count), dtype=torch.float32)
    padded = triton.next_power_of_2(width)
    _score[(count, rows)](
        hidden,
        weight,
        weight if bias is None else bias,
        found,
        floor,
        WIDTH=width,
        PADDED=padded,
        BIASES=0 if bias is None else len(bias),
        num_warps=8 if padded > WIDE else 4,
        launch_pdl=True,
    )
    return found


@triton.jit
def _score(
    hidden,
    weight,
    bias,
    scores,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BIASES: tl.constexpr,
):
    """Score a row for an expert."""
    expert, row, index = tl.program_id(0), tl.program_id(1), tl.arange(0, PADDED)
    inside = index < WIDTH
    factors = tl.load(weight + expert * WIDTH + index, mask=inside, other=0.0)
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    values = tl.load(hidden + row * WIDTH + index, mask=inside, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    found = tl.sum(factors * values, 0) / length
    if BIASES > 0:
        found += tl.load(bias + expert, mask=expert < BIASES, other=0.0)
    tl.store(scores + row * tl.num_programs(0) + expert, found)
