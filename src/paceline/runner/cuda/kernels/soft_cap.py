"""A soft cap, x to cap * tanh(x / cap), of scores inside kernels and of logits."""

import triton
import triton.language as tl
from torch import Tensor

PLACES = 1024  # of a program


def cap_logits(logits: Tensor, cap: float) -> None:
    """Cap logits in place."""
    size = logits.numel()
    _cap_logits[(triton.cdiv(size, PLACES),)](
        logits, size, CAP=cap, PLACES=PLACES, num_warps=4, launch_pdl=True
    )


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """Cap scores that are logarithms to base 2, as kernels of attention have them."""
    # tanh(x) is (1 - e) / (1 + e) of e = exp(-2x), which stays finite for x >= 0.
    power = tl.exp2(tl.abs(scores) * (-2.0 / CAP))
    found = (CAP * 1.4426950408889634) * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -found, found)


@triton.jit
def _cap_logits(logits, size, CAP: tl.constexpr, PLACES: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
    values = tl.load(logits + at, mask=at < size, other=0.0).to(tl.float32)
    found = capped(values * 1.4426950408889634, CAP) * 0.6931471805599453
    tl.store(logits + at, found.to(logits.dtype.element_ty), mask=at < size)
