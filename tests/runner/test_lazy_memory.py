from pathlib import Path

import pytest
import torch

from paceline.runner.kv_store import lazy_zeros

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
