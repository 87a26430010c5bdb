"""KV memory: blocks as bytes, copies of blocks, and memory that is touched late."""

from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.core.plan import NO_ROWS, Plan
from paceline.runner.kv_store import BlockBytes, BlockMoves, KVStore, lazy_zeros
from paceline.runner.models.config import HeadShape
from paceline.runner.models.layer_groups import layer_groups
from tests.runner.support import filled_store, tiny

LAYERS, BLOCKS, SIZE, KV_HEADS, HEAD_DIM = 3, 6, 4, 2, 8


@pytest.fixture
def kv() -> KVStore:
    config = tiny(num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM)
    return KVStore(config, BLOCKS, SIZE)


@pytest.fixture
def full(kv: KVStore) -> KVStore:
    kv.content.normal_()
    return kv


def test_a_new_store_holds_zeros(kv: KVStore) -> None:
    assert kv.content.shape == (BLOCKS, LAYERS, SIZE, 2 * KV_HEADS, HEAD_DIM)
    assert not kv.content.any()


def test_put_writes_one_layer_of_the_given_cells(kv: KVStore) -> None:
    cells = kv.cells(torch.tensor([[2 * SIZE + 3, 5 * SIZE, 1]]))
    new = torch.randn(3, 2 * KV_HEADS, HEAD_DIM)
    kv.put(cells[1], new)
    assert torch.equal(kv.content[2, 1, 3], new[0])
    assert torch.equal(kv.content[5, 1, 0], new[1])
    assert torch.equal(kv.content[0, 1, 1], new[2])
    assert kv.content.count_nonzero() == new.numel()


def test_layers_of_a_group_have_places_in_its_blocks() -> None:
    """Layers 0 and 2 have a window, and layer 1 has none: a block has room for one of them."""
    groups = layer_groups((8, None, 8))
    config = tiny(num_hidden_layers=LAYERS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM)
    kv = KVStore(config, BLOCKS, SIZE, groups=groups)
    assert kv.content.shape[1] == 1
    cells = kv.cells(torch.tensor([[SIZE], [2 * SIZE + 1], [3 * SIZE + 2]]))
    new = torch.randn(3, 1, 2 * KV_HEADS, HEAD_DIM)
    for layer in range(LAYERS):
        kv.put(cells[layer], new[layer])
    assert torch.equal(kv.content[1, 0, 0], new[1, 0])  # of group 0
    assert torch.equal(kv.content[2, 0, 1], new[0, 0])
    assert torch.equal(kv.content[3, 0, 2], new[2, 0])


def test_gather_reads_one_layer_of_the_given_blocks(full: KVStore) -> None:
    runs = full.runs(torch.tensor([[4, 1], [4, 0]]))
    found = torch.empty(4, SIZE, 2 * KV_HEADS, HEAD_DIM)
    for layer in range(LAYERS):
        full.gather(runs[layer], found)
        assert torch.equal(found, full.content[[4, 1, 4, 0], layer])


def test_the_end_of_a_block_is_cleared_in_every_layer(full: KVStore) -> None:
    expected = full.content.clone()
    expected[4, :, 1:] = 0
    full.clear(4, 1)
    assert torch.equal(full.content, expected)


def test_copies_are_all_read_before_any_is_written(full: KVStore) -> None:
    before = full.content.clone()
    full.copy([(0, 1), (1, 2), (2, 0), (3, 4)])
    assert torch.equal(full.content, before[[2, 0, 1, 3, 3, 5]])
    full.copy([])
    assert torch.equal(full.content, before[[2, 0, 1, 3, 3, 5]])


def test_blocks_leave_and_come_back_elsewhere(full: KVStore) -> None:
    before = full.content.clone()
    away = full.read([5, 2])
    full.content[[5, 2]] = 0
    assert torch.equal(away, before[[5, 2]]), "what was read is a copy"
    full.write([0, 2], away)
    assert torch.equal(full.content[0], before[5])
    assert torch.equal(full.content[2], before[2])


def test_a_block_takes_so_many_bytes(kv: KVStore) -> None:
    assert kv.block_bytes == LAYERS * SIZE * 2 * KV_HEADS * HEAD_DIM * 4
    assert kv.block_bytes == kv.read([3]).nbytes


def test_a_store_of_another_type_rounds() -> None:
    half = KVStore(tiny(), BLOCKS, SIZE, torch.bfloat16)
    new = torch.randn(1, 2 * half.kv_heads, half.head_dim)
    half.put(half.cells(torch.tensor([[0]]))[0], new)
    assert half.block_bytes * 2 == KVStore(tiny(), BLOCKS, SIZE).block_bytes
    assert torch.equal(half.content[0, 0, 0], new[0].bfloat16())


@pytest.mark.parametrize("heads", [HeadShape(1, 24, rank=16), HeadShape(3, 8)], ids=str)
def test_a_layer_may_keep_other_things_of_a_position(heads: HeadShape) -> None:
    """One latent row, or other heads: written, gathered, copied and moved as bytes."""
    kv = KVStore(tiny(num_hidden_layers=LAYERS), BLOCKS, SIZE, heads=[heads] * LAYERS)
    cell = heads.cell
    assert kv.block_bytes == LAYERS * SIZE * cell.values * 4
    new = torch.randn(SIZE, cell.vectors, cell.width)
    kv.put(kv.cells(2 * SIZE + torch.arange(SIZE)[None])[1], new)
    kv.copy([(2, 5)])
    out = torch.empty(1, SIZE, cell.vectors, cell.width)
    kv.gather(kv.runs(torch.tensor([5]))[1], out)
    assert torch.equal(out[0], new)
    blocks = BlockBytes(kv)
    rows = blocks.read([5])
    kv.clear(2, 0)
    blocks.write([2], rows)
    assert torch.equal(kv.content[2, 1], new)


CONFIG = tiny()


def test_blocks_are_read_and_written_as_bytes() -> None:
    kv = KVStore(CONFIG, 6, 4)
    kv.content.copy_(torch.rand_like(kv.content))
    blocks = BlockBytes(kv)
    rows = blocks.read((4, 1))
    assert rows.shape == (2, kv.block_bytes)
    assert rows[0].tobytes() == kv.content[4].numpy().tobytes()
    memory = blocks.host_memory(3)
    blocks.read_into((1,), [memory[2]])
    assert np.array_equal(memory[2], rows[1])
    blocks.write((0, 5), rows)
    assert torch.equal(kv.content[0], kv.content[4])
    assert torch.equal(kv.content[5], kv.content[1])


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


MIB = 1 << 20


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise AssertionError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    memory = lazy_zeros((3, 5, 2), dtype)
    assert torch.equal(memory, torch.zeros(3, 5, 2, dtype=dtype))
    memory[1] = 7
    assert memory.sum() == 70
    assert lazy_zeros((0, 5), dtype).shape == (0, 5)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_pages_are_taken_when_they_are_written() -> None:
    before = resident_bytes()
    memory = lazy_zeros((512, MIB), torch.uint8)
    assert resident_bytes() - before < 64 * MIB
    memory[:128] = 1
    assert resident_bytes() - before > 100 * MIB
    del memory
    assert resident_bytes() - before < 64 * MIB


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises((OSError, OverflowError)):
        lazy_zeros((1 << 50,), torch.float32)
