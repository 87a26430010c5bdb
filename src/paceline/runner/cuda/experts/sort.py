"""Pairs of positions and experts in the order of the experts, and the tiles that they make."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl

SORTED = 4096  # pairs that a program reads at a time


@triton.jit(do_not_specialize=["size"])
def sort_pairs(
    found,
    pairs,
    tiles,
    ends,
    index,
    size,
    COUNT: tl.constexpr,
    TILE: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Write the pairs of an expert in their order, and the tiles that they make. Its first tile
    depends on its first pair alone, so that no program has to know how many tiles others need."""
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    own, each = tl.program_id(0), tl.arange(0, SIZE)
    lower, equal = tl.zeros([SIZE], tl.int32), tl.zeros([SIZE], tl.int32)
    for at in range(0, size, SIZE):
        one = tl.load(found + at + each, mask=each < size - at, other=COUNT)
        lower += (one < own).to(tl.int32)
        equal += (one == own).to(tl.int32)
    first, count = tl.sum(lower, 0), tl.sum(equal, 0)
    tl.store(ends + own, first + count)
    tile, end = first // TILE + own, (first + count) // TILE + own + 1
    for begin in range(first, first + count, TILE):
        tl.store(tiles + tile * 3, own)
        tl.store(tiles + tile * 3 + 1, begin)
        tl.store(tiles + tile * 3 + 2, first + count)
        tile += 1
    for rest in range(tile, end):
        tl.store(tiles + rest * 3, COUNT)
    spot = first
    for at in range(0, size, SIZE):
        one = tl.load(found + at + each, mask=each < size - at, other=COUNT)
        is_own = (one == own).to(tl.int32)
        place = spot + tl.cumsum(is_own, 0) - is_own
        tl.store(pairs + place, at + each, mask=is_own == 1)
        tl.store(index + at + each, place, mask=is_own == 1)
        spot += tl.sum(is_own, 0)
