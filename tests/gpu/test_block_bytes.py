"""Blocks of a GPU as bytes, through page-locked memory and through other memory."""

import numpy as np
import pytest
import torch

from paceline.runner.kv_store import BlockBytes, KVStore
from tests.runner.support import tiny

pytestmark = pytest.mark.gpu


def test_blocks_come_back_as_they_were_while_steps_run() -> None:
    kv = KVStore(tiny(), 64, 16, torch.bfloat16, "cuda")
    kv.content.copy_(torch.rand_like(kv.content))
    torch.cuda.synchronize()
    expected = kv.content.cpu()
    blocks, busy = BlockBytes(kv), torch.rand(2048, 2048, device="cuda")
    for _ in range(8):
        busy = busy @ busy * 1e-3  # the stream of the steps has work
    rows = blocks.read(range(64))
    pinned = blocks.host_memory(64)
    assert torch.from_numpy(pinned).is_pinned()
    blocks.read_into(range(64), pinned)
    assert np.array_equal(rows, pinned)
    assert rows.tobytes() == expected.view(torch.uint8).numpy().tobytes()
    blocks.write(range(32), rows[32:])
    blocks.write(range(32, 64), list(pinned[:32]))
    torch.cuda.synchronize()
    assert torch.equal(kv.content.cpu(), torch.cat([expected[32:], expected[:32]]))
