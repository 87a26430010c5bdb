"""Groups of heads that share keys, as kernels of attention see them."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from paceline.runner.models.config import HeadShape

LEAST = 16  # rows and columns of the smallest GEMM on tensor cores
FLOAT_BYTES = 4  # of float32, which tensor cores do not multiply exactly
STAGES = 3  # tiles being loaded
FEW_DIMS = 128  # largest head size for two warps
MOST_DIMS = 256  # largest head size for four warps and long tiles of keys
WIDE_CELLS = {True: 64, False: 32}  # of a tile of larger heads, whether keys are values or not
MOST_SHARING = 64  # heads that share a latent vector, in one program
MOST_SHARES = 8  # programs for the heads of a latent vector


@dataclass(frozen=True, slots=True)
class HeadGroups:
    """How kernels see the heads of a layer.

    count    of groups, with a program for each: those that share keys, or at most so many of those
             that share a latent vector
    dim      of values, and of keys
    rest     further dimensions of keys, which are latent then; 0: there are none
    """

    count: int
    dim: int
    rest: int

    @staticmethod
    def of(shape: HeadShape, heads: int) -> "HeadGroups":
        """Kernels for so many heads of queries."""
        if not shape.is_latent:
            return HeadGroups(shape.kv_heads, shape.head_dim, 0)
        groups = next(n for n in range(1, heads + 1) if heads <= n * MOST_SHARING and not heads % n)
        assert groups <= MOST_SHARES, f"no kernel for {heads} heads of latent attention"
        return HeadGroups(groups, shape.rank, shape.head_dim - shape.rank)

    @property
    def is_wide(self) -> bool:
        return self.dim > MOST_DIMS

    @property
    def cells(self) -> int:
        """Of a tile of keys, if heads are wide."""
        return WIDE_CELLS[self.rest > 0]

    def stages(self, dtype: torch.dtype) -> int:
        """Tiles of keys being loaded."""
        if dtype.itemsize >= FLOAT_BYTES:
            return 1
        return 2 if self.is_wide else STAGES

    @property
    def constants(self) -> dict[str, int]:
        """What kernels are compiled for."""
        return {
            "KV_HEADS": self.count,
            "DIM": self.dim,
            "WIDTH": max(triton.next_power_of_2(self.dim), LEAST),
            "REST": self.rest,
            "REST_WIDTH": max(triton.next_power_of_2(self.rest), LEAST),
        }


def room_for(query: Tensor, shape: HeadShape) -> Tensor:
    """Room for what queries [positions, heads, head_dim] see, which is as wide as values."""
    size = (*query.shape[:2], shape.rank or query.shape[2])
    return torch.empty(size, dtype=query.dtype, device=query.device)


def warps(seen: HeadGroups, group: int, dtype: torch.dtype, is_new: bool) -> int:
    """Of a program of `decode` for so many heads."""
    if seen.is_wide and (group > LEAST or is_new):
        return 8
    is_small = dtype.itemsize < FLOAT_BYTES
    return 2 if is_small and seen.dim <= FEW_DIMS and not is_new else 4
