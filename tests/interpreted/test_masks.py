"""Packed masks on the logits of a GPU, against those of a CPU."""

import numpy as np
import pytest
import torch

from paceline.core.masks import MaskRows
from paceline.runner.cuda.kernels.sampling import mask_logits
from paceline.runner.step_tokens import apply_masks


@pytest.mark.parametrize("vocab", [61, 4096 + 45])
def test_the_same_logits(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    bits = random.integers(-(2**31), 2**31, (3, -(-vocab // 32))).astype(np.int32)
    bits[1, ::2] = 0
    logits = torch.from_numpy(random.random((5, vocab), np.float32))
    expected = logits.clone()
    apply_masks(expected, MaskRows(np.arange(3), np.arange(3), bits), torch.tensor([3, 0, 2]))
    mask_of = torch.tensor([1, -1, 2, 0, -1], dtype=torch.int32)
    mask_logits(logits, mask_of, torch.from_numpy(bits).flatten())
    assert torch.equal(logits, expected)
