"""From slots to positions, and from ids to slots."""

import torch

from paceline.runner.cuda.kernels.columns import begin, settle, spread
from paceline.runner.kv_store import KVStore
from tests.runner.support import tiny

SLOTS, LENGTH, BLOCK, GROUPS = 5, 40, 8, 2
NOBODY = SLOTS


def state() -> tuple[KVStore, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A store, and by slot: tokens, a table of blocks, and positions; the last slot is nobody's."""
    random = torch.Generator().manual_seed(4)
    blocks = SLOTS * LENGTH // BLOCK
    kv = KVStore(tiny(num_hidden_layers=2), blocks + 1, BLOCK)
    tokens = torch.randint(0, 1000, (SLOTS + 1, LENGTH + 1), generator=random).int()
    table = torch.full((GROUPS, SLOTS + 1, LENGTH // BLOCK), blocks).int()
    for group in table:
        group[:SLOTS] = torch.randperm(blocks, generator=random).view(SLOTS, -1).int()
    return kv, tokens, table, torch.tensor([7, 8, 0, 23, 39, 0], dtype=torch.int32)


def cells_of(kv: KVStore, table: torch.Tensor, slot: int, at: int) -> list[int]:
    """In each group."""
    first = table[:, slot, at // BLOCK].long() * kv.content.stride(0)
    return (first + at % BLOCK * kv.content.stride(2)).tolist()


def test_one_further_position_each() -> None:
    kv, tokens, table, position = state()
    slots = [3, 0, 4, NOBODY]
    slot = torch.tensor(slots, dtype=torch.int32)
    context, own = torch.zeros(4).int(), torch.zeros(GROUPS, 4, table.shape[2]).int()
    token, at, cells = begin((tokens, table, position), slot, context, own, kv)
    for row, its in enumerate(slots):
        here = int(position[its])
        assert (int(token[row]), int(at[row])) == (int(tokens[its, here]), here)
        assert cells[:, row].tolist() == cells_of(kv, table, its, here)
        assert int(context[row]) == here + 1
        used = here // BLOCK + 1
        assert own[:, row, :used].tolist() == table[:, its, :used].tolist()


def test_rows_of_any_length() -> None:
    kv, tokens, table, position = state()
    rows = [(1, 1, 9), (4, 1, 40), (3, 6, 29), (0, 3, 3)]  # slots, positions, contexts
    room, positions = 6, 16
    slot = torch.full((room,), NOBODY).int()
    starts, context = torch.full((room + 1,), 11).int(), torch.zeros(room).int()
    slot[:4] = torch.tensor([its for its, _, _ in rows])
    starts[:5] = torch.tensor([0, 1, 2, 8, 11])
    context[:4] = torch.tensor([reads for _, _, reads in rows])
    own = torch.zeros(GROUPS, room, table.shape[2]).int()
    found = spread((tokens, table, position), (slot, starts, context), own, positions, kv)
    token, at, cells = found
    index = 0
    for row, (its, count, reads) in enumerate(rows):
        for here in range(reads - count, reads):
            assert (int(token[index]), int(at[index])) == (int(tokens[its, here]), here)
            assert cells[:, index].tolist() == cells_of(kv, table, its, here)
            index += 1
        used = -(-reads // BLOCK)
        assert own[:, row, :used].tolist() == table[:, its, :used].tolist()
        assert int(position[its]) == reads
    nobodys = cells_of(kv, table, NOBODY, 0)
    assert cells[:, index:].T.tolist() == [nobodys] * (positions - index)
    assert int(position[NOBODY]) == 0
    assert int(position[2]) == 0  # has no row


def test_ids_go_behind_what_is_computed() -> None:
    _, tokens, _, position = state()
    before, stood = tokens.clone(), position.clone()
    slot = torch.tensor([2, NOBODY, 4], dtype=torch.int32)
    context, ids = torch.tensor([5, 1, 40]).int(), torch.tensor([77, 5, -1]).int()
    settle(tokens, position, slot, context, ids)
    before[2, 5], before[4, 40] = 77, 0  # a row without a number gets any token, and is told of
    stood[2], stood[4] = 5, 40
    assert torch.equal(tokens, before)
    assert torch.equal(position, stood)
