"""Memory that takes no pages of the machine before it is written."""

import mmap
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU. The system provides a page at its first write; `torch.zeros` writes all."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(*shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(*shape)
