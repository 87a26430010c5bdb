"""Blocks as bytes are what the store has, in both directions."""

import numpy as np
import torch

from paceline.runner.kv_store import BlockBytes, KVStore
from tests.runner.support import tiny

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
