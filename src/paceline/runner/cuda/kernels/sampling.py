"""Sampling in three kernels that read the logits in place.

They choose the same tokens as `runner.sampling.token_choice`, for rows that take the likeliest
token or draw from the whole vocabulary. Rows with further settings use the sampler.
"""

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.core.sampling import Sampling
from paceline.runner.sampling.token_choice import CELL

# Kernels take pointers, strides and sizes one by one.


MASK_CHUNK = 4096  # logits that one program looks at
BITS = tl.constexpr(32)


def mask_logits(logits: Tensor, mask_of: Tensor, bits: Tensor) -> None:
    """Give tokens that are not allowed a logit of -inf; other logits are not touched.

    Line i of logits [lines, vocab] has mask `mask_of[i]`, or none if that is negative. Bit b of
    word w of a mask allows the token 32 w + b; `bits` has all masks, one after the other.
    """
    lines, vocab = logits.shape
    _mask[(lines, triton.cdiv(vocab, MASK_CHUNK))](
        logits, mask_of, bits, VOCAB=vocab, MASK_CHUNK=MASK_CHUNK
    )


@triton.jit
def _mask(logits, mask_of, bits, VOCAB: tl.constexpr, MASK_CHUNK: tl.constexpr):
    line, chunk = tl.program_id(0), tl.program_id(1)
    mask = tl.load(mask_of + line)
    if mask >= 0:
        at = chunk * MASK_CHUNK + tl.arange(0, MASK_CHUNK)
        words = (VOCAB + BITS - 1) // BITS
        is_token = at < VOCAB
        word = tl.load(bits + mask.to(tl.int64) * words + at // BITS, mask=is_token, other=0)
        is_forbidden = ((word >> (at % BITS)) & 1) == 0
        line_start = logits + line.to(tl.int64) * VOCAB
        tl.store(line_start + at, float("-inf"), mask=is_token & is_forbidden)


# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0124, PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard


CHUNK = 8192  # logits that one program reads
LEAST_WEIGHT = tl.constexpr(-60.0)  # as in `token_choice`
GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
FIRST = tl.constexpr(0xBF58476D1CE4E5B9)
SECOND = tl.constexpr(0x94D049BB133111EB)
UNIT = tl.constexpr(2.0**44)
CELL_UNIT = tl.constexpr(2.0**56)
FRACTION = tl.constexpr(2.0**-32)


def is_plain(sampling: Sampling, vocab: int) -> bool:
    """Whether a request samples by temperature alone."""
    unfiltered = sampling.min_p == 0.0 and sampling.top_p == 1.0
    unfiltered = unfiltered and not 0 < sampling.top_k < vocab
    edited = sampling.penalised or sampling.logit_bias or sampling.bad_token_ids
    edited = edited or sampling.allowed_token_ids is not None
    return (unfiltered or sampling.greedy) and not edited and sampling.logprobs is None


def choose(
    logits: Tensor, temperature: Tensor, keys: Tensor, slot: Tensor, position: Tensor, ids: Tensor
) -> None:
    """Write a token id for each row to `ids` [rows] of int32; -1 if its logits are not finite.

    Logits [rows, vocab] have any type. Temperatures and keys are those of the row's slot. A
    temperature of 0 takes the likeliest token; any other draws by the key and the position [rows]
    of the new token.
    """
    rows, vocab = logits.shape
    cell, chunks = gcd(vocab, CELL), triton.cdiv(vocab, CHUNK)
    cells = vocab // cell
    on: dict[str, Any] = {"device": logits.device}
    peaks = torch.empty((rows, chunks), dtype=torch.float32, **on)
    sums = torch.empty((rows, cells), dtype=torch.float32, **on)
    whole = {"VOCAB": vocab, "CHUNK": CHUNK, "launch_pdl": True}
    sizes = whole | {"CHUNKS": triton.next_power_of_2(chunks), "CELL": cell}
    _peaks[(rows, chunks)](logits, peaks, **whole)
    _sums[(rows, chunks)](logits, peaks, temperature, slot, sums, chunks, **sizes)
    _draw[(rows,)](
        logits,
        peaks,
        temperature,
        sums,
        keys,
        slot,
        position,
        ids,
        chunks,
        CELLS=cells,
        PADDED=triton.next_power_of_2(cells),
        **sizes,
    )


@triton.jit
def _peaks(logits, peaks, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, chunk = tl.program_id(0), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    mask = at < VOCAB
    given = tl.load(logits + row.to(tl.int64) * VOCAB + at, mask=mask, other=float("-inf"))
    peak = tl.max(given.to(tl.float32), 0)
    strange = tl.sum((given != given).to(tl.int32), 0) > 0
    line = row * tl.num_programs(1) + chunk
    tl.store(peaks + line, tl.where(strange, float("nan"), peak))


@triton.jit
def _peak_of(peaks, row, chunks, CHUNKS: tl.constexpr):
    """The largest logit of a row, its chunk, and whether it is finite."""
    chunk = tl.arange(0, CHUNKS)
    given = tl.load(peaks + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    strange = tl.sum((given != given).to(tl.int32), 0) > 0
    peak, index = tl.max(given, 0, return_indices=True)
    is_number = (strange == 0) & (peak > float("-inf")) & (peak < float("inf"))
    return tl.where(is_number, peak, 0.0), index, is_number


@triton.jit
def _sums(
    logits,
    peaks,
    temperature,
    slot,
    sums,
    chunks,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CELL: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row, chunk = tl.program_id(0), tl.program_id(1)
    owner = tl.load(slot + row)
    heat = tl.load(temperature + owner)
    if heat > 0.0:
        peak, _, _ = _peak_of(peaks, row, chunks, CHUNKS)
        cell = chunk * (CHUNK // CELL) + tl.arange(0, CHUNK // CELL)
        at = cell[:, None] * CELL + tl.arange(0, CELL)[None, :]
        given = tl.load(
            logits + row.to(tl.int64) * VOCAB + at, mask=at < VOCAB, other=float("-inf")
        )
        weights = tl.exp(tl.maximum((given.to(tl.float32) - peak) / heat, LEAST_WEIGHT))
        total = tl.sum(weights, 1)
        tl.store(sums + row * (VOCAB // CELL) + cell, total, mask=cell < VOCAB // CELL)


@triton.jit
def _word(key, position):
    """64 random bits, the same as `token_choice.random_words`."""
    word = key.to(tl.uint64, bitcast=True) + position.to(tl.uint64) * GAMMA
    word = (word ^ (word >> 30)) * FIRST
    word = (word ^ (word >> 27)) * SECOND
    return word ^ (word >> 31)


@triton.jit
def _pick(mass, real, part):
    """The index at which the cumulative mass passes `part` of the whole, in [0, 1)."""
    upto = tl.cumsum(mass, 0)
    whole = tl.sum(mass, 0)
    target = (part * whole.to(tl.float64)).to(tl.int64)
    last = tl.sum(real.to(tl.int32), 0) - 1
    return tl.minimum(tl.sum(((upto <= target) & real).to(tl.int32), 0), last)


@triton.jit
def _draw(
    logits,
    peaks,
    temperature,
    sums,
    keys,
    slot,
    position,
    ids,
    chunks,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    CELL: tl.constexpr,
    CELLS: tl.constexpr,
    PADDED: tl.constexpr,
):
    tl.extra.cuda.gdc_launch_dependents()
    tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * VOCAB
    peak, chunk, is_number = _peak_of(peaks, row, chunks, CHUNKS)
    owner = tl.load(slot + row)
    heat = tl.load(temperature + owner)
    if heat > 0.0:
        word = _word(tl.load(keys + owner), tl.load(position + row))
        cell = tl.arange(0, PADDED)
        total = tl.load(sums + row * CELLS + cell, mask=cell < CELLS, other=0.0)
        part = (word >> 32).to(tl.float64) * FRACTION
        first = _pick((total * UNIT).to(tl.int64), cell < CELLS, part)
        at = first * CELL + tl.arange(0, CELL)
        given = tl.load(line + at).to(tl.float32)
        weights = tl.exp(tl.maximum((given - peak) / heat, LEAST_WEIGHT))
        part = (word & 0xFFFFFFFF).to(tl.float64) * FRACTION
        chosen = first * CELL + _pick((weights * CELL_UNIT).to(tl.int64), at >= 0, part)
    else:
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        near = tl.load(line + token, mask=token < VOCAB, other=float("-inf")).to(tl.float32)
        chosen = tl.min(tl.where(near == peak, token, VOCAB), 0)
    tl.store(ids + row, tl.where(is_number, chosen, -1))
