"""Linear recurrences of a matrix for each head: their sizes, and a step of one position.

`paceline.runner.layers` has the formulas. A state S is [key_dim, value_dim] in float32:

    S    = exp(decay) * S                          KDA: of each row of S
    S    = S + key * rate * value                  Mamba-2: `rate` is the time
    S    = S + key * rate * (value - key @ S)      the gated delta rule, and KDA
    read = query @ S
"""

from dataclasses import asdict, dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from paceline.runner.cuda.kernels.layers import activated
from paceline.runner.cuda.states.convolution import Convolution, tail_sum
from paceline.runner.cuda.states.rows import CudaStateRows, begins

NARROW, WIDE = 32, 64  # values of a head that one program has, with few heads in all rows or many
FEW_PROGRAMS, STEP_WARPS = 256, 4


@dataclass(frozen=True, slots=True)
class RecurrenceSizes:
    """Sizes, and where things are.

    heads               of values; so many `shared` consecutive ones have the same key and query
    query, key, value   where they begin among the channels of the convolution
    decay, rate         where they begin among the inputs
    corrects            the delta rule: queries and keys have length 1, and queries a scale
    by_key              each dimension of a key has a decay; otherwise each head
    """

    heads: int
    shared: int
    key_dim: int
    value_dim: int
    query: int
    key: int
    value: int
    decay: int
    rate: int
    corrects: bool
    by_key: bool = False

    @property
    def decays(self) -> int:
        """Decays of a head."""
        return self.key_dim if self.by_key else 1

    @property
    def constants(self) -> dict[str, Any]:
        """As kernels take them."""
        return {name.upper(): value for name, value in asdict(self).items()}

    @property
    def keys(self) -> int:
        """Numbers of a key as programs have them."""
        return max(triton.next_power_of_2(self.key_dim), 16)

    def values(self, most: int) -> int:
        """Values of a head that one program has."""
        return max(min(triton.next_power_of_2(self.value_dim), most), 16)

    def parts(self, most: int) -> int:
        """Programs for the values of a head."""
        return triton.cdiv(self.value_dim, self.values(most))

    @property
    def scale(self) -> float:
        """Of queries."""
        return self.key_dim**-0.5 if self.corrects else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Decay:
    """Where decays and rates come from: log decay = speed * softplus(x + bias), with a speed of
    each head and a bias of each decay.

    limits   of softplus(x + bias)
    factor   of x
    skip     [heads]; what a position reads beside the state, times its value; None: nothing
    """

    speed: Tensor
    bias: Tensor
    limits: tuple[float, float] = (0.0, float("inf"))
    factor: float = 1.0
    skip: Tensor | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As kernels take them."""
        return self.speed, self.bias, self.factor, *self.limits


def step(
    inputs: Tensor,
    rows: CudaStateRows,
    states: tuple[Tensor, Tensor],
    convolution: Convolution,
    sizes: RecurrenceSizes,
    decay: Decay,
    out: Tensor,
) -> None:
    """Advance the states of all rows of one position. Writes what they read, [positions, heads *
    value_dim], and leaves the tails of the convolution as they are."""
    state, tails = states
    most = WIDE if len(rows) * sizes.heads > FEW_PROGRAMS else NARROW
    _step[(len(rows), sizes.heads, sizes.parts(most))](
        inputs,
        out,
        state,
        tails,
        convolution.weight,
        convolution.weight if convolution.bias is None else convolution.bias,
        *decay.arguments,
        decay.speed if decay.skip is None else decay.skip,
        *(rows.slot, rows.row_start, rows.context),
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
        KEYS=sizes.keys,
        VALUES=sizes.values(most),
        num_warps=STEP_WARPS,
        launch_pdl=True,
    )


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


@triton.jit
def softplus(x):
    small = tl.exp(-tl.abs(x))
    rounded = 1 + small
    # log(1 + small), exact where 1 + small is not
    exact = tl.where(
        rounded == 1, small, tl.log(rounded) * small / tl.where(rounded == 1, 1, rounded - 1)
    )
    return tl.maximum(x, 0.0) + exact


@triton.jit
def two_sums(a, b, c, d):
    return a + c, b + d


@triton.jit
def three_sums(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def grown(state, key, value):
    """state + key * value, rounded once, so that all kernels that compute it have the same bits."""
    left = tl.broadcast_to(key[:, None], state.shape)
    return tl.fma(left, tl.broadcast_to(value[None, :], state.shape), state)


@triton.jit
def advanced(
    state,
    query,
    key,
    value,
    decay,
    rate,
    keys,
    SCALE: tl.constexpr,
    CORRECTS: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """A state after one position, what the position reads, its key, and the value which that adds
    to the state."""
    query, key = tl.where(keys, query, 0.0), tl.where(keys, key, 0.0)
    if BY_KEY:
        state *= tl.exp(decay)[:, None]
    else:
        state *= tl.exp(decay)
    if CORRECTS:
        # All sums over keys are of the state before, so two passes over shared memory have them.
        of_both = tl.reduce((query * query, key * key, query * key), 0, three_sums)
        scale = SCALE / tl.sqrt(of_both[0] + 1e-6)
        of_key = 1.0 / tl.sqrt(of_both[1] + 1e-6)
        query *= scale
        key *= of_key
        seen = tl.reduce((query[:, None] * state, key[:, None] * state), 0, two_sums)
        value = rate * (value - seen[1])
        read = seen[0] + of_both[2] * scale * of_key * value
        state = grown(state, key, value)
    else:
        value = rate * value
        state = grown(state, key, value)
        read = tl.sum(query[:, None] * state, 0)
    return state, read, key, value


@triton.jit
def log_decay(x, rate, speed, bias, factor, least, most, CORRECTS: tl.constexpr):
    """The logarithm of a decay, and the rate."""
    time = tl.minimum(tl.maximum(softplus(x * factor + bias), least), most)
    if CORRECTS:
        rate = 1.0 / (1.0 + tl.exp(-rate))
    else:
        rate = time
    return speed * time, rate


@triton.jit
def decays_of(
    decays,
    rates,
    speed,
    bias,
    factor,
    least,
    most,
    head,
    i,
    keys,
    KEY_DIM: tl.constexpr,
    CORRECTS: tl.constexpr,
    BY_KEY: tl.constexpr,
):
    """The logarithm of the decay of a head at one position, or of each of its keys, and its
    rate."""
    if BY_KEY:
        at = head * KEY_DIM + i
        x = tl.load(decays + at, mask=keys, other=0.0).to(tl.float32)
        own = tl.load(bias + at, mask=keys, other=0.0)
    else:
        x, own = tl.load(decays + head).to(tl.float32), tl.load(bias + head)
    rate, its = tl.load(rates + head).to(tl.float32), tl.load(speed + head)
    return log_decay(x, rate, its, own, factor, least, most, CORRECTS)


@triton.jit
def _step(
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
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    # Rows and states were written before the embedding of this step. That is a kernel which waits
    # for all before it, so they may be read early.
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(row_start + row)
    if tl.load(row_start + row + 1) != position + 1:
        tl.extra.cuda.gdc_wait()  # the next kernel waits for this one alone
        return
    at = tl.load(slot + row).to(tl.int64)
    is_new = begins(row_start, context, row)
    i, j = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    keys, values = i < KEY_DIM, j < VALUE_DIM
    cells = states + at * state_stride + (head * KEY_DIM + i[:, None]) * VALUE_DIM + j[None, :]
    inside = keys[:, None] & values[None, :]
    state = tl.load(cells, mask=inside & (is_new == 0), other=0.0)
    group = head // SHARED * KEY_DIM + i
    of_query, of_key, of_value = QUERY + group, KEY + group, VALUE + head * VALUE_DIM + j
    past, newest = tails + at * tail_stride, weight + (TAPS - 1) * CHANNELS
    query = tail_sum(past, weight, bias, of_query, keys, is_new, CHANNELS, TAPS, BIASED)
    key = tail_sum(past, weight, bias, of_key, keys, is_new, CHANNELS, TAPS, BIASED)
    value = tail_sum(past, weight, bias, of_value, values, is_new, CHANNELS, TAPS, BIASED)
    query_weight = tl.load(newest + of_query, mask=keys, other=0.0).to(tl.float32)
    key_weight = tl.load(newest + of_key, mask=keys, other=0.0).to(tl.float32)
    value_weight = tl.load(newest + of_value, mask=values, other=0.0).to(tl.float32)
    tl.extra.cuda.gdc_wait()
    x = inputs + position.to(tl.int64) * STRIDE
    query += query_weight * tl.load(x + FIRST + of_query, mask=keys, other=0.0).to(tl.float32)
    key += key_weight * tl.load(x + FIRST + of_key, mask=keys, other=0.0).to(tl.float32)
    value += value_weight * tl.load(x + FIRST + of_value, mask=values, other=0.0).to(tl.float32)
    query, key, value = activated(query, True), activated(key, True), activated(value, True)
    of = speed, decay_bias, factor, least, most
    decay, rate = decays_of(x + DECAY, x + RATE, *of, head, i, keys, KEY_DIM, CORRECTS, BY_KEY)
    found = advanced(state, query, key, value, decay, rate, keys, SCALE, CORRECTS, BY_KEY)
    state, read, _, _ = found
    tl.store(cells, state, mask=inside)
    if SKIPS:
        read += tl.load(skip + head) * value
    to = out + (position.to(tl.int64) * HEADS + head) * VALUE_DIM + j
    tl.store(to, read.to(out.dtype.element_ty), mask=values)
