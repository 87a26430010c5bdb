"""Rows with drafts: they leave the states of their slots as they are, and these advance when it is
known how many drafts are accepted.

In a step, a program computes the positions of a row one after another, from a state in registers.
For each position it keeps what updates the state, as `DraftInputs` has it: a decay, a key and a
value, which is corrected already. So states advance without anything but these, in all layers at
the same time.

In a batch-invariant model, all rows are computed in this way.
"""

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated
from paceline.runner.cuda.states.convolution import TAIL_LINE, Convolution, kept
from paceline.runner.cuda.states.recurrence import (
    STEP_WARPS,
    WIDE,
    Decay,
    RecurrenceSizes,
    advanced,
    decays_of,
    grown,
)
from paceline.runner.cuda.states.rows import CudaStateRows, begins
from paceline.runner.state_store import StateStore


def step_with_drafts(
    inputs: Tensor,
    rows: CudaStateRows,
    layer: int,
    convolution: Convolution,
    sizes: RecurrenceSizes,
    decay: Decay,
    out: Tensor,
) -> None:
    """Compute all rows with drafts, and advance the states of rows of one position, or of all other
    rows if the convolution is fixed. Writes what they read, [positions, heads * value_dim], and
    leaves the tails of the convolution as they are."""
    (state, tails), drafts, most = rows.of_layer(layer), rows.drafts, 0
    kept_inputs = [state] * 3
    if drafts is not None:
        _, *kept_inputs = rows.drafts_of(layer)
        most = kept_inputs[0].shape[1]
    _step_with_drafts[(len(rows), sizes.heads, sizes.parts(WIDE))](
        inputs,
        out,
        state,
        tails,
        convolution.weight,
        convolution.weight if convolution.bias is None else convolution.bias,
        *decay.arguments,
        decay.speed if decay.skip is None else decay.skip,
        *(rows.slot, rows.row_start, rows.context, rows.slot if drafts is None else drafts),
        *kept_inputs,
        state.stride(0),
        tails.stride(0),
        **sizes.constants,
        STRIDE=inputs.stride(0),
        FIRST=convolution.first,
        CHANNELS=convolution.channels,
        TAPS=convolution.taps,
        BIASED=convolution.bias is not None,
        SKIPS=decay.skip is not None,
        SCALE=sizes.scale,
        MOST=most,
        EVERY=convolution.is_fixed,
        KEYS=sizes.keys,
        VALUES=sizes.values(WIDE),
        num_warps=STEP_WARPS,
        launch_pdl=True,
        **convolution.options,
    )


def advance_accepted(
    store: StateStore, slot: Tensor, known: Tensor, number: Tensor, position: Tensor
) -> None:
    """Advance the states of rows [n] that had `known` tokens and computed `number` drafts, to where
    their slots stand, `position` [slots]."""
    drafts, rows, layers = store.drafts, (slot, known, number, position), len(store.layers)
    assert drafts is not None, "no room for inputs of rows with drafts"
    *recurrent, tails = store.of(store.layers[0])
    layer_bytes = store.layout.bytes // layers
    for state in recurrent:
        _, heads, key_dim, value_dim = state.shape
        keys, values = (max(triton.next_power_of_2(dim), 16) for dim in (key_dim, value_dim))
        _advance_states[(len(slot), heads * triton.cdiv(value_dim, min(values, WIDE)), layers)](
            *(state, drafts.decay, drafts.key, drafts.value, *rows),
            state.stride(0),
            layer_bytes // state.itemsize,
            *(drafts.decay.stride(0), drafts.key.stride(0), drafts.value.stride(0)),
            HEADS=heads,
            KEY_DIM=key_dim,
            VALUE_DIM=value_dim,
            SHARED=heads * key_dim // drafts.key.shape[-1],
            BY_KEY=drafts.decay.shape[-1] > heads,
            MOST=drafts.positions,
            KEYS=keys,
            VALUES=min(values, WIDE),
            num_warps=STEP_WARPS,
        )
    _, before, channels = tails.shape
    _advance_tails[(len(slot), triton.cdiv(channels, TAIL_LINE), layers)](
        *(tails, drafts.tails, *rows),
        tails.stride(0),
        layer_bytes // tails.itemsize,
        drafts.tails.stride(0),
        CHANNELS=channels,
        TAPS=before + 1,
        TAPS_PADDED=triton.next_power_of_2(max(before, 1)),
        MOST=drafts.positions,
        LINE=TAIL_LINE,
        num_warps=4,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def _convolved(
    inputs,
    tail,
    weight,
    bias,
    first,
    position,
    is_new,
    channel,
    mask,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Some channels of a position behind the convolution and silu."""
    found = tl.load(bias + channel, mask=mask & BIASED, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        source = position - (TAPS - 1) + tap
        is_own = source >= first
        x = inputs + source.to(tl.int64) * STRIDE + FIRST + channel
        before = tail + (source - first + (TAPS - 1)) * CHANNELS + channel
        value = tl.load(x, mask=mask & is_own, other=0.0).to(tl.float32)
        value += tl.load(before, mask=mask & (is_own == 0) & (is_new == 0), other=0.0).to(
            tl.float32
        )
        found += value * tl.load(weight + tap * CHANNELS + channel, mask=mask, other=0.0).to(
            tl.float32
        )
    return activated(found, True)


@triton.jit
def _step_with_drafts(
    inputs,
    out,
    states,
    tails,
    weight,
    bias,
    speed,
    decay_bias,
    factor,
    least,
    most,
    skip,
    slot,
    row_start,
    context,
    drafts,
    kept_decay,
    kept_key,
    kept_value,
    state_stride,
    tail_stride,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    QUERY: tl.constexpr,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    DECAY: tl.constexpr,
    RATE: tl.constexpr,
    CORRECTS: tl.constexpr,
    BY_KEY: tl.constexpr,
    STRIDE: tl.constexpr,
    FIRST: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BIASED: tl.constexpr,
    SKIPS: tl.constexpr,
    SCALE: tl.constexpr,
    MOST: tl.constexpr,
    EVERY: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    row, head = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(row_start + row), tl.load(row_start + row + 1)
    is_drafted = False
    if MOST > 0:
        is_drafted = tl.load(drafts + row) > 0
    if (end == first) | ((end > first + 1) & (is_drafted == 0) & (not EVERY)):
        tl.extra.cuda.gdc_wait()  # the next kernel waits for this one alone
        return
    at = tl.load(slot + row).to(tl.int64)
    is_new = begins(row_start, context, row)
    i, j = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    keys, values = i < KEY_DIM, j < VALUE_DIM
    cells = states + at * state_stride + (head * KEY_DIM + i[:, None]) * VALUE_DIM + j[None, :]
    inside = keys[:, None] & values[None, :]
    state = tl.load(cells, mask=inside & (is_new == 0), other=0.0)
    group, own = head // SHARED * KEY_DIM + i, head * VALUE_DIM + j
    past = tails + at * tail_stride
    tl.extra.cuda.gdc_wait()
    for offset in range(end - first):
        position = first + offset
        of = inputs, past, weight, bias, first, position, is_new
        query = _convolved(*of, QUERY + group, keys, STRIDE, FIRST, CHANNELS, TAPS, BIASED)
        key = _convolved(*of, KEY + group, keys, STRIDE, FIRST, CHANNELS, TAPS, BIASED)
        value = _convolved(*of, VALUE + own, values, STRIDE, FIRST, CHANNELS, TAPS, BIASED)
        x = inputs + position.to(tl.int64) * STRIDE
        its = speed, decay_bias, factor, least, most, head, i, keys
        decay, rate = decays_of(x + DECAY, x + RATE, *its, KEY_DIM, CORRECTS, BY_KEY)
        found = advanced(state, query, key, value, decay, rate, keys, SCALE, CORRECTS, BY_KEY)
        state, read, key, new = found
        if SKIPS:
            read += tl.load(skip + head) * value
        to = out + position.to(tl.int64) * (HEADS * VALUE_DIM) + own
        tl.store(to, read.to(out.dtype.element_ty), mask=values)
        if is_drafted:
            line = at * MOST + offset
            if BY_KEY:
                cell = kept_decay + line * (HEADS * KEY_DIM) + head * KEY_DIM + i
                tl.store(cell, decay, mask=keys)
            else:
                tl.store(kept_decay + line * HEADS + head, decay)
            tl.store(kept_key + line * (HEADS // SHARED * KEY_DIM) + group, key, mask=keys)
            tl.store(kept_value + line * (HEADS * VALUE_DIM) + own, new, mask=values)
    if is_drafted == 0:
        tl.store(cells, state, mask=inside)


@triton.jit
def _advance_states(
    states,
    decay,
    key,
    value,
    slot,
    known,
    number,
    position,
    state_stride,
    layer_stride,
    decay_stride,
    key_stride,
    value_stride,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SHARED: tl.constexpr,
    BY_KEY: tl.constexpr,
    MOST: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    row, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(number + row) == 0:
        return
    PARTS: tl.constexpr = (VALUE_DIM + VALUES - 1) // VALUES
    head, part = tl.program_id(1) // PARTS, tl.program_id(1) % PARTS
    at = tl.load(slot + row).to(tl.int64)
    count = tl.load(position + at) - tl.load(known + row) + 1
    i, j = tl.arange(0, KEYS), part * VALUES + tl.arange(0, VALUES)
    keys, values = i < KEY_DIM, j < VALUE_DIM
    inside = keys[:, None] & values[None, :]
    cells = states + at * state_stride + layer * layer_stride
    cells += (head * KEY_DIM + i[:, None]) * VALUE_DIM + j[None, :]
    state = tl.load(cells, mask=inside, other=0.0)
    decay += layer * decay_stride
    key += layer * key_stride + head // SHARED * KEY_DIM
    value += layer * value_stride + head * VALUE_DIM
    for offset in range(count):
        line = at * MOST + offset
        if BY_KEY:
            own = decay + line * (HEADS * KEY_DIM) + head * KEY_DIM + i
            state *= tl.exp(tl.load(own, mask=keys, other=0.0))[:, None]
        else:
            state *= tl.exp(tl.load(decay + line * HEADS + head))
        left = tl.load(key + line * (HEADS // SHARED * KEY_DIM) + i, mask=keys, other=0.0)
        right = tl.load(value + line * (HEADS * VALUE_DIM) + j, mask=values, other=0.0)
        state = grown(state, left, right)
    tl.store(cells, state, mask=inside)


@triton.jit
def _advance_tails(
    tails,
    inputs,
    slot,
    known,
    number,
    position,
    tail_stride,
    layer_stride,
    inputs_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TAPS_PADDED: tl.constexpr,
    MOST: tl.constexpr,
    LINE: tl.constexpr,
):
    row, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    if tl.load(number + row) == 0:
        return
    at = tl.load(slot + row).to(tl.int64)
    count = tl.load(position + at) - tl.load(known + row) + 1
    tail = tails + at * tail_stride + layer * layer_stride
    own = inputs + layer * inputs_stride + at * (MOST * CHANNELS)
    channel = tl.program_id(1) * LINE + tl.arange(0, LINE)[None, :]
    kept(own, tail, 0, count, True, channel, CHANNELS, 0, CHANNELS, TAPS, TAPS_PADDED, 0)
