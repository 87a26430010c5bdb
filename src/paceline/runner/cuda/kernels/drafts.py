"""Kernels of steps with drafts: drafts go behind the known tokens, and right ones stay there."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl
from torch import Tensor

LEAST_PLACES = 16  # of a row: kernels for fewer drafts are no faster, but would be compiled too


def put_drafts(tokens: Tensor, slot: Tensor, known: Tensor, drafts: Tensor, number: Tensor) -> None:
    """Write drafts [rows, most] behind the `known` [rows] tokens of each slot.

    Row i has `number[i]` places; one without a draft gets token 0, since it is computed anyway.
    """
    rows, most = drafts.shape
    _put_drafts[(rows,)](
        tokens,
        slot,
        known,
        drafts,
        number,
        tokens.stride(0),
        most,
        PLACES=places(most),
    )


def accept(
    columns: tuple[Tensor, Tensor], slot: Tensor, known: Tensor, ids: Tensor, drafts: Tensor
) -> None:
    """Keep sampled ids [rows, 1 + most] up to the first that its draft [rows, most] differs from.

    They become the tokens of the slot behind its `known` ones, and the slot stands at the last of
    them. Columns are tokens and positions by slot; the last slot is for padding, and does not
    change. In `ids`, -1 stands behind the ids that stay; a row whose last one is no token has -1
    everywhere.
    """
    tokens, position = columns
    rows, most = drafts.shape
    _accept[(rows,)](
        tokens,
        position,
        slot,
        known,
        ids,
        drafts,
        len(tokens) - 1,
        tokens.stride(0),
        most,
        PLACES=places(most + 1),
    )


def places(count: int) -> int:
    return max(triton.next_power_of_2(count), LEAST_PLACES)


@triton.jit(do_not_specialize=["most"])
def _put_drafts(tokens, slot, known, drafts, number, stride, most, PLACES: tl.constexpr):
    row = tl.program_id(0)
    own = tl.load(slot + row).to(tl.int64)
    first = tl.load(known + row).to(tl.int64)
    place = tl.arange(0, PLACES)
    mask = (place < most) & (place < tl.load(number + row))
    draft = tl.load(drafts + row * most + place, mask=mask, other=0).to(tl.int32)
    tl.store(tokens + own * stride + first + place, tl.maximum(draft, 0), mask=mask)


@triton.jit(do_not_specialize=["most"])
def _accept(
    tokens,
    position,
    slot,
    known,
    ids,
    drafts,
    padding_slot,
    stride,
    most,
    PLACES: tl.constexpr,
):
    row = tl.program_id(0)
    own = tl.load(slot + row).to(tl.int64)
    first = tl.load(known + row)
    place = tl.arange(0, PLACES)
    line = ids + row * (most + 1) + place
    got = tl.load(line, mask=place <= most, other=-1)
    draft = tl.load(drafts + row * most + place, mask=place < most, other=-1).to(tl.int32)
    is_right = (got == draft) & (draft >= 0)
    last = tl.min(tl.where(is_right, PLACES, place), 0)  # the first that is not as drafted
    is_bad = tl.sum(tl.where((place == last) & (got < 0), 1, 0), 0) > 0
    stays = place <= last
    tl.store(line, tl.where(stays & (is_bad == 0), got, -1), mask=place <= most)
    where = tokens + own * stride + first.to(tl.int64) + place
    tl.store(where, tl.maximum(got, 0), mask=stays & (place <= most) & (own < padding_slot))
    tl.store(position + own, (first + last).to(tl.int32), mask=own < padding_slot)
