"""Pairs of positions and experts in the order of the experts, the tiles that they make, and their
inputs."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice

SORTED = 4096  # pairs that a program reads at a time
COLUMNS = 1024  # of a program that copies inputs


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


def inputs_of_pairs(
    x: Tensor, factor: Tensor | None, choice: ExpertChoice, spread: int = 1
) -> Tensor:
    """The inputs of pairs in their order, [pairs, width], times the factor. With a `spread`, they
    are in the order of `fp4_experts.cu`, and zeros follow up to a multiple of it."""
    pairs, width = len(choice.pairs), x.shape[1]
    out = x.new_empty((pairs, triton.cdiv(width, spread) * spread))
    _copy_inputs[(pairs, triton.cdiv(out.shape[1], COLUMNS))](
        x,
        x if factor is None else factor,
        choice.pairs,
        out,
        WIDTH=width,
        PADDED=out.shape[1],
        CHOSEN=choice.chosen,
        COLUMNS=COLUMNS,
        FACTORED=factor is not None,
        SPREAD=spread > 1,
        num_warps=4,
        launch_pdl=True,
    )
    return out


@triton.jit
def _copy_inputs(
    x,
    factor,
    pairs,
    out,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    FACTORED: tl.constexpr,
    SPREAD: tl.constexpr,
):
    tl.extra.cuda.gdc_wait()
    # Not earlier: a GEMM may read where experts end before it waits for this kernel.
    tl.extra.cuda.gdc_launch_dependents()
    pair = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column = spot
    if SPREAD:
        column = spot // 128 * 128 + spread(spot % 128)
    inside = column < WIDTH
    row = tl.load(pairs + pair).to(tl.int64) // CHOSEN
    value = tl.load(x + row * WIDTH + column, mask=inside, other=0.0)
    if FACTORED:
        value = value.to(tl.float32) * tl.load(factor + column, mask=inside, other=0.0)
    tl.store(out + pair * PADDED + spot, value.to(out.dtype.element_ty), mask=spot < PADDED)


@triton.jit
def spread(spot):
    """The input, of 128, that is at a spot of what the tensor cores multiply in `fp4_experts.cu`.

    They take 16 inputs at a time. Of these, each of four threads has two pairs, 8 apart. It reads
    16 of the 64 bytes of a line, as words of four bytes: in turn the lower codes of a word, and its
    upper codes, which are 32 inputs on. A pair has the first and the third, or the second and the
    fourth.
    """
    word, is_upper = spot // 32, spot // 16 % 2
    thread, is_second, is_odd = spot % 8 // 2, spot % 2, spot // 8 % 2
    return thread // 2 * 64 + is_upper * 32 + thread % 2 * 16 + word * 4 + is_second * 2 + is_odd
