"""Kernels of causal convolutions over the last positions of each channel."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated
from paceline.runner.cuda.states.rows import CHUNK, CudaStateRows, begins

LINE = 128  # channels of a program
TILE = 16  # positions of a program: many small ones hide how long a read takes
TAIL_LINE = 512  # of a program that keeps tails


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """Position i of a channel becomes the sum of weight[j] * x[i - taps + 1 + j], plus a bias. What
    is before the row is in the tail of its slot.

    weight    [taps, channels]
    bias      [channels], or None
    first     where the channels begin among the inputs
    product   the channels are multiplied by those which are so far behind them; 0: they are not
    gate      and the result by those which are so far behind them; 0: it passes silu instead
    unit      so many channels, from the first on, become vectors of length 1
    width     of these vectors, and channels of a program
    is_fixed  the bits of a position do not depend on the rows of a step, nor on its own row
    """

    weight: Tensor
    bias: Tensor | None
    first: int = 0
    product: int = 0
    gate: int = 0
    unit: int = 0
    width: int = LINE
    is_fixed: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """How kernels are compiled. Whether operations are fused may depend on their programs."""
        return {"enable_fp_fusion": False} if self.is_fixed else {}

    @property
    def channels(self) -> int:
        return self.weight.shape[1]

    @property
    def taps(self) -> int:
        return self.weight.shape[0]

    @property
    def padded_taps(self) -> int:
        """Inputs in a tail, as programs have them."""
        return triton.next_power_of_2(max(self.taps - 1, 1))

    def empty(self, inputs: Tensor) -> Tensor:
        """Room for the result, [positions, channels]."""
        return inputs.new_empty((len(inputs), self.channels))

    def chunks(self, inputs: Tensor, rows: CudaStateRows, tails: Tensor, out: Tensor) -> None:
        """Convolve all rows of several positions."""
        if rows.chunks:
            self._launch(rows.chunks * (CHUNK // TILE), TILE, inputs, rows, tails, out, CHUNK)

    def short(self, inputs: Tensor, rows: CudaStateRows, tails: Tensor, out: Tensor) -> None:
        """Convolve all rows of one position, and those with drafts."""
        kept = None if rows.drafts is None else rows.store.drafts
        tile = 1 if kept is None else triton.next_power_of_2(kept.positions)
        self._launch(len(rows), tile, inputs, rows, tails, out)

    def _launch(
        self,
        programs: int,
        tile: int,
        inputs: Tensor,
        rows: CudaStateRows,
        tails: Tensor,
        out: Tensor,
        chunk: int = 0,
    ) -> None:
        """`chunk` is the size of chunks; 0: a program has a row, if the row fits in."""
        grid = (programs, triton.cdiv(self.channels, self.width))
        _convolve[grid](
            inputs,
            out,
            tails,
            self.weight,
            self.weight if self.bias is None else self.bias,
            *(rows.slot, rows.row_start, rows.context),
            *(rows.chunk_row, rows.chunk_begin, rows.chunk_end),
            tails.stride(0),
            STRIDE=inputs.stride(0),
            FIRST=self.first,
            CHANNELS=self.channels,
            TAPS=self.taps,
            BIASED=self.bias is not None,
            PRODUCT=self.product,
            GATE=self.gate,
            UNIT=self.unit,
            WIDTH=self.width,
            PADDED=triton.next_power_of_2(self.width),
            TILE=tile,
            TILES=chunk // tile,
            num_warps=4 if chunk else 1,
            launch_pdl=True,
            **self.options,
        )

    def keep(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> None:
        """Keep the last inputs of all rows. The kernels that read the old ones come before. Of rows
        with drafts, keep all inputs beside the old ones."""
        grid, tails = (len(rows), triton.cdiv(self.channels, TAIL_LINE)), rows.of_layer(layer)[-1]
        drafts, kept = rows.drafts, tails
        if drafts is not None:
            kept, *_ = rows.drafts_of(layer)
        _keep[grid](
            inputs,
            tails,
            *(rows.slot, rows.row_start, rows.context),
            rows.slot if drafts is None else drafts,
            kept,
            tails.stride(0),
            kept.stride(0),
            DRAFTED=drafts is not None,
            STRIDE=inputs.stride(0),
            FIRST=self.first,
            CHANNELS=self.channels,
            TAPS=self.taps,
            TAPS_PADDED=self.padded_taps,
            PRODUCT=self.product,
            LINE=TAIL_LINE,
            num_warps=4,
            launch_pdl=True,
        )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def given(inputs, mask, PRODUCT: tl.constexpr):
    """What goes into the convolution."""
    found = tl.load(inputs, mask=mask, other=0.0).to(tl.float32)
    if PRODUCT > 0:
        found *= tl.load(inputs + PRODUCT, mask=mask, other=0.0).to(tl.float32)
        found = found.to(inputs.dtype.element_ty).to(tl.float32)
    return found


@triton.jit
def tail_sum(
    tail,
    weight,
    bias,
    channel,
    mask,
    is_new,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BIASED: tl.constexpr,
):
    """The convolution of some channels without the newest input. `tail` is that of the row; a new
    sequence has none."""
    found = tl.load(bias + channel, mask=mask & BIASED, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS - 1):
        at = tap * CHANNELS + channel
        before = tl.load(tail + at, mask=mask & (is_new == 0), other=0.0).to(tl.float32)
        found += before * tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    return found


@triton.jit
def kept(
    inputs,
    tail,
    first,
    end,
    is_old,
    channel,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_PADDED: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Keep the last inputs of a row, of some channels [1, n]."""
    tap = tl.arange(0, TAPS_PADDED)[:, None]
    mask = (tap < TAPS - 1) & (channel < CHANNELS)
    source = end - (TAPS - 1) + tap
    at = source.to(tl.int64) * STRIDE + FIRST + channel
    x = given(inputs + at, mask & (source >= first), PRODUCT)
    there = tail + (source - first + (TAPS - 1)) * CHANNELS + channel
    x += tl.load(there, mask=mask & (source < first) & is_old, other=0.0).to(tl.float32)
    tl.debug_barrier()  # all old inputs are read before one is overwritten
    tl.store(tail + tap * CHANNELS + channel, x.to(tail.dtype.element_ty), mask=mask)


@triton.jit
def _convolve(
    inputs,
    out,
    tails,
    weight,
    bias,
    slot,
    row_start,
    context,
    chunk_row,
    chunk_begin,
    chunk_end,
    tail_stride,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BIASED: tl.constexpr,
    PRODUCT: tl.constexpr,
    GATE: tl.constexpr,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    if TILES > 0:
        chunk = tl.program_id(0) // TILES
        row, end = tl.load(chunk_row + chunk), tl.load(chunk_end + chunk)
        begin = tl.load(chunk_begin + chunk) + tl.program_id(0) % TILES * TILE
        if begin >= end:
            return
        first = tl.load(row_start + row)
    else:
        row = tl.program_id(0)
        first, end = tl.load(row_start + row), tl.load(row_start + row + 1)
        begin = first
        if (end == first) | (end > first + TILE):
            return
    tail = tails + tl.load(slot + row).to(tl.int64) * tail_stride
    is_old = begins(row_start, context, row) == 0
    line = tl.program_id(1) * WIDTH
    column = tl.arange(0, PADDED)[None, :]
    channel = line + column
    position = begin + tl.arange(0, TILE)[:, None]
    there = (column < WIDTH) & (channel < CHANNELS)
    mask = there & (position < end)
    found = tl.zeros((TILE, PADDED), tl.float32)
    for tap in tl.static_range(TAPS):
        source = position - (TAPS - 1) + tap
        at = source.to(tl.int64) * STRIDE + FIRST + channel
        x = given(inputs + at, mask & (source >= first), PRODUCT)
        if begin < first + (TAPS - 1):
            before = tail + (source - first + (TAPS - 1)) * CHANNELS + channel
            is_before = mask & (source < first) & is_old
            x += tl.load(before, mask=is_before, other=0.0).to(tl.float32)
        found += x * tl.load(weight + tap * CHANNELS + channel, mask=there, other=0.0).to(
            tl.float32
        )
    if BIASED:
        found += tl.load(bias + channel, mask=there, other=0.0).to(tl.float32)
    if GATE > 0:
        at = position.to(tl.int64) * STRIDE + FIRST + GATE + channel
        found *= tl.load(inputs + at, mask=mask, other=0.0).to(tl.float32)
    else:
        found = tl.where(there, activated(found, True), 0.0)
    if line < UNIT:
        found /= tl.sqrt(tl.sum(found * found, 1) + 1e-6)[:, None]
    at = position.to(tl.int64) * CHANNELS + channel
    tl.store(out + at, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _keep(
    inputs,
    tails,
    slot,
    row_start,
    context,
    drafts,
    kept_inputs,
    tail_stride,
    kept_stride,
    DRAFTED: tl.constexpr,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_PADDED: tl.constexpr,
    PRODUCT: tl.constexpr,
    LINE: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    first, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    if first >= end:
        return
    at = tl.load(slot + row).to(tl.int64)
    tail = tails + at * tail_stride
    is_old = begins(row_start, context, row) == 0
    channel = tl.program_id(1) * LINE + tl.arange(0, LINE)[None, :]
    if DRAFTED:  # noqa: SIM102 - Triton would load what stands behind `and`
        if tl.load(drafts + row) > 0:
            to = kept_inputs + at * kept_stride + channel
            for offset in range(end - first):
                x = inputs + (first + offset).to(tl.int64) * STRIDE + FIRST + channel
                x = given(x, channel < CHANNELS, PRODUCT)
                tl.store(
                    to + offset * CHANNELS, x.to(tails.dtype.element_ty), mask=channel < CHANNELS
                )
            return
    row_of = inputs, tail, first, end, is_old, channel
    kept(*row_of, STRIDE, FIRST, CHANNELS, TAPS, TAPS_PADDED, PRODUCT)
