"""Kernels of steps with drafts: drafts go behind the known tokens, and right ones stay there."""

# Kernels take pointers, strides and sizes one by one, and are written as one piece.
# ruff: noqa: PLR0913, PLR0917
# Parameters of kernels have no types.
# pyright: standard

import triton
import triton.language as tl
from torch import Tensor

LEAST_WIDTH = 16  # of a row: kernels for fewer drafts are no faster, but would be compiled too


def put_drafts(tokens: Tensor, slot: Tensor, known: Tensor, drafts: Tensor, number: Tensor) -> None:
    """Write drafts [rows, most] behind the `known` [rows] tokens of each slot.

    Row i has `number[i]` positions; one without a draft gets token 0, since it is computed anyway.
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
        WIDTH=padded(most),
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
        WIDTH=padded(most + 1),
    )


def padded(count: int) -> int:
    return max(triton.next_power_of_2(count), LEAST_WIDTH)


@triton.jit(do_not_specialize=["most"])
def _put_drafts(tokens, slot, known, drafts, number, stride, most, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    owner = tl.load(slot + row).to(tl.int64)
    first = tl.load(known + row).to(tl.int64)
    index = tl.arange(0, WIDTH)
    mask = (index < most) & (index < tl.load(number + row))
    draft = tl.load(drafts + row * most + index, mask=mask, other=0).to(tl.int32)
    tl.store(tokens + owner * stride + first + index, tl.maximum(draft, 0), mask=mask)


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
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    owner = tl.load(slot + row).to(tl.int64)
    first = tl.load(known + row)
    index = tl.arange(0, WIDTH)
    line = ids + row * (most + 1) + index
    got = tl.load(line, mask=index <= most, other=-1)
    draft = tl.load(drafts + row * most + index, mask=index < most, other=-1).to(tl.int32)
    is_right = (got == draft) & (draft >= 0)
    last = tl.min(tl.where(is_right, WIDTH, index), 0)  # the first that is not as drafted
    is_bad = tl.sum(tl.where((index == last) & (got < 0), 1, 0), 0) > 0
    stays = index <= last
    tl.store(line, tl.where(stays & (is_bad == 0), got, -1), mask=index <= most)
    where = tokens + owner * stride + first.to(tl.int64) + index
    tl.store(where, tl.maximum(got, 0), mask=stays & (index <= most) & (owner < padding_slot))
    tl.store(position + owner, (first + last).to(tl.int32), mask=owner < padding_slot)
