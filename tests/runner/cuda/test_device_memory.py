"""Copies of weights for sleep, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.runner.cuda import device_memory
from paceline.runner.cuda.device_memory import DeviceMemory


def test_no_copy_crosses_pieces_of_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses one that does."""
    monkeypatch.setattr(device_memory, "PINNED_AT_ONCE", 100)
    sizes = 30, 70, 5, 420, 100, 1
    segments = [torch.full((size,), number) for number, size in enumerate(sizes)]
    host = torch.zeros(sum(sizes), dtype=torch.int64)
    nothing: Any = None
    pools: Any = SimpleNamespace(content=lambda tag: iter(segments))
    memory = DeviceMemory(nothing, nothing, pools)
    memory._host = SimpleNamespace(content=host)  # pyright: ignore[reportAttributeAccessIssue]
    for part, place in memory._copies():
        first = place.storage_offset()
        assert len(part) == len(place) > 0
        assert first // 100 == (first + len(place) - 1) // 100
        place.copy_(part)
    assert torch.equal(host, torch.cat(segments))
