"""Mamba-1 on a GPU.

A program has some channels of a row, and takes its positions one after another. So prompts are
slower than with recurrences of heads, which are computed in chunks.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated, normalized
from paceline.runner.cuda.linears import CudaLinear, NormedLinear
from paceline.runner.cuda.states.convolution import Convolution
from paceline.runner.cuda.states.recurrence import softplus
from paceline.runner.cuda.states.rows import CudaStateRows, begins
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.models.linear_spec import NormSpec
from paceline.runner.models.states.mamba1 import Mamba1Spec

FEW_PROGRAMS = 256
CHANNELS, MANY_CHANNELS = 32, 128  # of a program, with few rows or many


@dataclass(frozen=True, slots=True, eq=False)
class StateWeights:
    """Weights of the recurrence, in float32: see `Mamba1Spec`.

    speed   [channels, state_size]
    bias    [channels]; of times
    skip    [channels]
    """

    speed: Tensor
    bias: Tensor
    skip: Tensor


class CudaMamba1:
    """See `BetweenLinears`."""

    def __init__(self, factory: LayerFactory[CudaLinear], spec: Mamba1Spec) -> None:
        weight = factory.read(spec.convolution)[:, 0].t().contiguous().to(factory.dtype)
        bias = None if spec.bias is None else factory.read(spec.bias).to(factory.dtype)
        self._convolution = Convolution(weight, bias, is_fixed=factory.is_invariant)
        self._selection = factory.linear(spec.selection)
        times = factory.linear(spec.times, spec.time_norm)
        self._times = NormedLinear(times, spec.time_norm)
        self._weights = StateWeights(
            factory.read(spec.log_decay).exp_().neg_(),
            factory.read(spec.time_bias),
            factory.read(spec.skip),
        )

        def numbers(norm: NormSpec) -> tuple[Tensor, float]:
            return factory.factor(norm).to(factory.dtype), norm.floor

        self._key, self._query = numbers(spec.key_norm), numbers(spec.query_norm)

    def __call__(self, inputs: Tensor, rows: CudaStateRows, layer: int) -> Tensor:
        convolution, (states, tails) = self._convolution, rows.of_layer(layer)
        value = convolution.empty(inputs)
        if not rows.is_decode:
            value.zero_()  # some positions belong to no row
        convolution.short(inputs, rows, tails, value)
        convolution.chunks(inputs, rows, tails, value)
        size = states.shape[-1]
        rank = self._selection(value)
        time, key, query = rank.split([rank.shape[1] - 2 * size, size, size], dim=1)
        times = self._times.finished(time.contiguous())
        vectors = [
            normalized(one.contiguous(), floor, factor)
            for one, (factor, floor) in ((key, self._key), (query, self._query))
        ]
        advance(inputs, rows, (value, times, *vectors), states, self._weights, convolution)
        convolution.keep(inputs, rows, layer)
        return value


def advance(
    inputs: Tensor,
    rows: CudaStateRows,
    vectors: tuple[Tensor, ...],
    states: Tensor,
    weights: StateWeights,
    convolution: Convolution,
) -> None:
    """Advance the states of all rows, by values, times, keys and queries. Values become what
    positions read, gated."""
    _, channels, size = states.shape
    is_many = len(rows) * channels > FEW_PROGRAMS * MANY_CHANNELS and not convolution.is_fixed
    each = MANY_CHANNELS if is_many else CHANNELS
    _advance[(len(rows), triton.cdiv(channels, each))](
        *(inputs, *vectors, states, weights.speed, weights.bias, weights.skip),
        *(rows.slot, rows.row_start, rows.context),
        states.stride(0),
        STRIDE=inputs.stride(0),
        CHANNELS=channels,
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        EACH=each,
        num_warps=4,
        launch_pdl=True,
        **convolution.options,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _advance(
    inputs,
    values,
    times,
    keys,
    queries,
    states,
    speed,
    bias,
    skip,
    slot,
    row_start,
    context,
    state_stride,
    STRIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    EACH: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0)
    channel = tl.program_id(1) * EACH + tl.arange(0, EACH)
    number, there = tl.arange(0, PADDED), channel < CHANNELS
    held = number < SIZE
    cell, mask = channel[:, None] * SIZE + number[None, :], there[:, None] & held[None, :]
    speeds = tl.load(speed + cell, mask=mask, other=0.0)
    biases = tl.load(bias + channel, mask=there, other=0.0)
    skips = tl.load(skip + channel, mask=there, other=0.0)
    tl.extra.cuda.gdc_wait()
    first, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    if first == end:
        return
    cells = states + tl.load(slot + row).to(tl.int64) * state_stride + cell
    is_old = begins(row_start, context, row) == 0
    state = tl.load(cells, mask=mask & is_old, other=0.0)
    for offset in range(end - first):
        position = (first + offset).to(tl.int64)
        at = position * CHANNELS + channel
        value = tl.load(values + at, mask=there, other=0.0).to(tl.float32)
        time = tl.load(times + at, mask=there, other=0.0).to(tl.float32)
        time = softplus(time + biases)
        key = tl.load(keys + position * SIZE + number, mask=held, other=0.0).to(tl.float32)
        query = tl.load(queries + position * SIZE + number, mask=held, other=0.0).to(tl.float32)
        state *= tl.exp(time[:, None] * speeds)
        state += (value * time)[:, None] * key[None, :]
        read = tl.sum(state * query[None, :], 1) + skips * value
        gate = inputs + position * STRIDE + CHANNELS + channel
        read *= activated(tl.load(gate, mask=there, other=0.0).to(tl.float32), True)
        tl.store(values + at, read.to(values.dtype.element_ty), mask=there)
    tl.store(cells, state, mask=mask)
