"""Decodes MXFP4: numbers of 4 bits, of which 32 share a power of two."""

import torch
from torch import Tensor

GROUP = 32  # numbers with one scale
SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = torch.tensor((*SIZES, *(-size for size in SIZES)))
BIAS = 127  # of the exponent that is stored


def dequantised(blocks: Tensor, scales: Tensor) -> Tensor:
    """Numbers [..., inputs] in float32, from bytes of two numbers each, [..., inputs / 32, 16], and
    exponents [..., inputs / 32]. The lower half of a byte is the earlier number."""
    halves = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [..., groups, 32]
    powers = scales.to(torch.int32).sub_(BIAS).unsqueeze(-1)
    return torch.ldexp(VALUES[halves.long()], powers).flatten(-2)
