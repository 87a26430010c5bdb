"""The CUDA runtime on a CPU: what is launched runs at once, and graphs run their work again."""

from functools import partial
from typing import Any

import pytest
import torch

from paceline.runner.cuda.gemm import one_row
from paceline.runner.cuda.graphs.capture import CapturedGraphs
from paceline.runner.cuda.states import convolution
from paceline.runner.cuda.states.rows import CHUNK


class Done:
    """An event, a stream or a graph: nothing is under way on a CPU."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        """No: a copy to the device is the host's own memory here, and must not be used again."""
        return False


def use_host(patch: pytest.MonkeyPatch) -> None:
    """Let a `CudaRunner` run on the CPU."""
    empty = torch.empty

    def unpinned(*size: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        return empty(*size, **how)

    patch.setattr(torch, "empty", unpinned)
    for name in ("Event", "Stream", "current_stream"):
        patch.setattr(torch.cuda, name, Done)
    patch.setattr(torch.cuda, "synchronize", lambda: None)
    patch.setattr("paceline.runner.cuda.runner.GraphMemory", lambda: None)  # without graphs


def capture_late(patch: pytest.MonkeyPatch) -> None:
    """Let graphs be captured when they are first used: that runs their work once more."""

    def prepare(graphs: CapturedGraphs, size: Any) -> None:
        if size not in graphs:
            graphs._work(size)
            graphs._ready[size] = partial(graphs._work, size)

    def replay(graphs: CapturedGraphs, size: Any) -> None:
        graphs.prepare(size)
        graphs._ready[size]()

    patch.setattr(CapturedGraphs, "prepare", prepare)
    patch.setattr(CapturedGraphs, "replay", replay)
    patch.setattr(CapturedGraphs, "lacks", lambda graphs, size: size not in graphs)


def large_programs(patch: pytest.MonkeyPatch) -> None:
    """Few programs of some kernels, since the interpreter runs one after another."""
    large = one_row.Tuning(lines=64, chunk=32, stages=1, early=1)
    patch.setattr(one_row, "tuning", lambda width, outputs: large)
    patch.setattr(convolution, "TILE", CHUNK)
