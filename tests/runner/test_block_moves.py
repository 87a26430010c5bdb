"""Copies of blocks, as plans list them."""

import torch

from paceline.core.plan import NO_ROWS, Plan
from paceline.runner.kv_store import BlockMoves
from tests.runner.support import filled_store, tiny


def plan(**moves: tuple[tuple[int, int], ...]) -> Plan:
    return Plan(0, NO_ROWS, NO_ROWS.count, **moves)


def test_blocks_are_copied_then_swapped_out_then_in() -> None:
    kv = filled_store(tiny(), 6, 4)
    before = kv.content.clone()
    moves = BlockMoves(kv)
    moves.reserve(3)
    moves.carry_out(plan(copies=((0, 1),), swap_out=((1, 2), (3, 0))))
    assert torch.equal(kv.content[1], before[0])
    kv.content.zero_()
    moves.carry_out(plan(swap_in=((2, 5), (0, 4))))
    assert torch.equal(kv.content[5], before[0])  # the copy of the same plan was made before
    assert torch.equal(kv.content[4], before[3])
    assert not kv.content[:4].any()
