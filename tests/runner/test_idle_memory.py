"""Memory that a sleeping model gives back to the system."""

import mmap
from pathlib import Path

import pytest
import torch

from paceline.runner.idle_memory import DONTNEED, REMOVE, drop_pages
from paceline.runner.kv_store import lazy_zeros

SIZE = 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("kind", ["kv", "weights"])
def test_pages_are_given_back_and_are_zero_afterwards(kind: str) -> None:
    if kind == "kv":
        tensor, advice = lazy_zeros((SIZE,), torch.uint8), REMOVE
    else:
        tensor, advice = torch.empty(SIZE, dtype=torch.uint8), DONTNEED
    address = tensor.data_ptr()
    tensor.fill_(7)
    before = resident_bytes()
    drop_pages([tensor[100:200]], advice)  # a view stands for its whole storage
    assert before - resident_bytes() > 0.9 * SIZE
    assert tensor.data_ptr() == address
    assert int(tensor[SIZE // 2 : SIZE // 2 + 100].sum()) == 0
    drop_pages([torch.ones(3)], DONTNEED)  # it has no whole page
