"""Fused kernels of a decoder layer: norms, activations and soft caps.

Every kernel may start before the previous one has ended (programmatic dependent launch), and reads
only weights until `gdc_wait` returns. There are two exceptions. Attention to new positions follows
an ordered linear and may read everything older than that linear. Attention of single rows beside
longer rows starts after the kernel of the longer rows has waited.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.models.linear_spec import Activation

LOGITS = 1024  # of a program


def cap_logits(logits: Tensor, cap: float) -> None:
    """Cap logits in place."""
    size = logits.numel()
    _cap_logits[(triton.cdiv(size, LOGITS),)](
        logits, size, CAP=cap, LOGITS=LOGITS, num_warps=4, launch_pdl=True
    )


@triton.jit
def capped(scores, CAP: tl.constexpr):
    """Cap scores that are logarithms to base 2, as kernels of attention have them."""
    # tanh(x) is (1 - e) / (1 + e) of e = exp(-2x), which stays finite for x >= 0.
    power = tl.exp2(tl.abs(scores) * (-2.0 / CAP))
    found = (CAP * 1.4426950408889634) * (1.0 - power) / (1.0 + power)
    return tl.where(scores < 0, -found, found)


@triton.jit
def _cap_logits(logits, size, CAP: tl.constexpr, LOGITS: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    at = tl.program_id(0).to(tl.int64) * LOGITS + tl.arange(0, LOGITS)
    values = tl.load(logits + at, mask=at < size, other=0.0).to(tl.float32)
    found = capped(values * 1.4426950408889634, CAP) * 0.6931471805599453
    tl.store(logits + at, found.to(logits.dtype.element_ty), mask=at < size)


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


WIDE = 2048  # from so many inputs on, a row has more threads


def normalized(
    x: Tensor,
    floor: float,
    factor: Tensor | None = None,
    bias: Tensor | None = None,
    is_centred: bool = False,
) -> Tensor:
    """x [n, width] divided by its length, or by `floor` if that is larger, times a factor [width],
    plus a bias [width]. A centred norm subtracts the mean of x first."""
    out = torch.empty_like(x)
    width = x.shape[1]
    _normalize[(len(x),)](
        x,
        x if factor is None else factor,
        x if bias is None else bias,
        out,
        floor,
        WIDTH=width,
        PADDED=_power(width),
        CENTRED=is_centred,
        FACTORED=factor is not None,
        BIASED=bias is not None,
        num_warps=8 if width > WIDE else 4,
        launch_pdl=True,
    )
    return out


def add_normalized(
    total: Tensor, x: Tensor, factor: Tensor, floor: float, scale: float = 1.0
) -> None:
    """total = (total + x / |x| * factor) * scale, each [n, width]."""
    width = x.shape[1]
    sizes = {"WIDTH": width, "PADDED": _power(width)}
    _add_normalized[(len(x),)](
        total, x, factor, floor, scale, **sizes, num_warps=4, launch_pdl=True
    )


@dataclass(frozen=True, slots=True, eq=False)
class NormedSum:
    """Norms of two tensors, and of their sum; each has its factors [width] and its floor. The
    residual stream has the scale afterwards."""

    first: tuple[Tensor, float]
    second: tuple[Tensor, float]
    both: tuple[Tensor, float]
    scale: float

    def add_to(self, total: Tensor, one: Tensor, other: Tensor) -> None:
        """total = (total + both(first(one) + second(other))) * scale, each [n, width]."""
        width = total.shape[1]
        norms = (*self.first, *self.second, *self.both)
        sizes = {"WIDTH": width, "PADDED": _power(width)}
        _add_normed_sum[(len(total),)](
            total, one, other, *norms, self.scale, **sizes, num_warps=8, launch_pdl=True
        )


@dataclass(frozen=True, slots=True, eq=False)
class DeferredNorm:
    """A norm that is applied after the linear that follows it.

    GEMMs are linear, so their outputs can be divided by the lengths of the input rows, which are
    `stream` [n, width]. A width of 0 means that the norm was applied before the linear.
    """

    stream: Tensor
    floor: float
    width: int

    @property
    def padded_width(self) -> int:
        return _power(max(self.width, 1))


def divide(x: Tensor, late: DeferredNorm) -> None:
    """Divide rows [n, width] by what a norm leaves to do, in place."""
    _divide[(len(x), triton.cdiv(x.shape[1], 2 * WIDE))](
        x,
        late.stream,
        late.floor,
        WIDTH=x.shape[1],
        PADDED=2 * WIDE,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )


def gated(gate_up: Tensor, is_silu: bool, late: DeferredNorm) -> Tensor:
    """Return act(gate) * up of [n, 2 * width]."""
    n, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((n, width), dtype=gate_up.dtype, device=gate_up.device)
    columns = min(_power(width), WIDE if late.width <= WIDE else 2 * WIDE)
    _gated[(n, triton.cdiv(width, columns))](
        gate_up,
        out,
        late.stream,
        late.floor,
        WIDTH=width,
        PADDED=columns,
        SILU=is_silu,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )
    return out


@dataclass(frozen=True, slots=True)
class PlainActivation:
    """The activation of an MLP without a gate; `numbers` are those of xIELU: the factors above and
    below zero, the slope, and where the exponential ends."""

    kind: Activation
    numbers: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def activate(x: Tensor, activation: PlainActivation, late: DeferredNorm) -> Tensor:
    """Return act(x) of [n, width], which is in the memory of x."""
    n, width = x.shape
    columns = min(_power(width), WIDE)
    _activate[(n, triton.cdiv(width, columns))](
        x,
        late.stream,
        late.floor,
        *activation.numbers,
        WIDTH=width,
        PADDED=columns,
        KIND=activation.kind,
        STREAM=late.width,
        STREAM_PADDED=late.padded_width,
        num_warps=4,
        launch_pdl=True,
    )
    return x


def _power(width: int) -> int:
    return triton.next_power_of_2(width)


@triton.jit
def _normalize(
    x,
    factor,
    bias,
    out,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    CENTRED: tl.constexpr,
    FACTORED: tl.constexpr,
    BIASED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    mask = columns < WIDTH
    values = tl.load(x + row + columns, mask=mask, other=0.0).to(tl.float32)
    if CENTRED:
        values = tl.where(mask, values - tl.sum(values, 0) / WIDTH, 0.0)
    values = values / tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    if FACTORED:
        values *= tl.load(factor + columns, mask=mask, other=0.0)
    if BIASED:
        values += tl.load(bias + columns, mask=mask, other=0.0)
    tl.store(out + row + columns, values.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _add_normalized(total, x, factor, floor, scale, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    mask = columns < WIDTH
    values = tl.load(x + row + columns, mask=mask, other=0.0).to(tl.float32)
    before = tl.load(total + row + columns, mask=mask, other=0.0).to(tl.float32)
    found = (before + _normed(values, factor, floor, columns, mask)) * scale
    tl.store(total + row + columns, found.to(total.dtype.element_ty), mask=mask)


@triton.jit
def _normed(values, factor, floor, columns, mask):
    length = tl.sqrt(tl.sum(values * values, 0) + floor * floor)
    return values / length * tl.load(factor + columns, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _add_normed_sum(
    total,
    one,
    other,
    first,
    first_floor,
    second,
    second_floor,
    both,
    both_floor,
    scale,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64) * WIDTH
    columns = tl.arange(0, PADDED)
    mask = columns < WIDTH
    a = tl.load(one + row + columns, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(other + row + columns, mask=mask, other=0.0).to(tl.float32)
    found = _normed(a, first, first_floor, columns, mask)
    found += _normed(b, second, second_floor, columns, mask)
    before = tl.load(total + row + columns, mask=mask, other=0.0).to(tl.float32)
    found = (before + _normed(found, both, both_floor, columns, mask)) * scale
    tl.store(total + row + columns, found.to(total.dtype.element_ty), mask=mask)


@triton.jit
def row_length(stream, floor, row, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    values = tl.load(stream + row * WIDTH + columns, mask=columns < WIDTH, other=0.0)
    values = values.to(tl.float32)
    return tl.sqrt(tl.sum(values * values, 0) + floor * floor)


@triton.jit
def _divide(
    x,
    stream,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    mask = columns < WIDTH
    values = tl.load(x + row * WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    values /= row_length(stream, floor, row, STREAM, STREAM_PADDED)
    tl.store(x + row * WIDTH + columns, values.to(x.dtype.element_ty), mask=mask)


@triton.jit
def activated(gate, SILU: tl.constexpr):
    if SILU:
        active = gate / (1.0 + tl.exp(-gate))
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate / (1.0 + tl.exp(-2.0 * inner))  # (1 + tanh) / 2 is a sigmoid
    return active


@triton.jit
def _gated(
    gate_up,
    out,
    stream,
    floor,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    SILU: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    mask = columns < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + columns, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        size = row_length(stream, floor, row, STREAM, STREAM_PADDED)
        gate, up = gate / size, up / size
    active = activated(gate, SILU)
    tl.store(out + row * WIDTH + columns, (active * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _activate(
    x,
    stream,
    floor,
    above,
    below,
    slope,
    end,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    KIND: tl.constexpr,
    STREAM: tl.constexpr,
    STREAM_PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    mask = columns < WIDTH
    spot = x + row * WIDTH + columns
    values = tl.load(spot, mask=mask, other=0.0).to(tl.float32)
    if STREAM > 0:
        values = values / row_length(stream, floor, row, STREAM, STREAM_PADDED)
    if KIND == "relu2":
        positive = tl.maximum(values, 0.0)
        values = positive * positive
    elif KIND == "xielu":
        negative = (tl.exp(tl.minimum(values, end)) - 1.0 - values) * below
        values = tl.where(values > 0, values * values * above, negative) + values * slope
    else:
        values = activated(values, KIND == "silu")
    tl.store(spot, values.to(x.dtype.element_ty), mask=mask)
