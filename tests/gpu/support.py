"""What the tests on a GPU have in common."""

from collections.abc import Callable
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.cuda.kernels.nvrtc import can_compile
from tests.runner import support
from tests.runner.support import Rows

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or not can_compile(torch.device("cuda", 0)),
    reason="the kernel is for H100 and H200",
)
with_humming = pytest.mark.skipif(find_spec("humming") is None, reason="no humming")


def rows_of(counts: Rows, block_size: int) -> tuple[Batch, int]:
    return support.rows_of(counts, block_size, "cuda")


def replayed(run: Callable[[], Tensor], times: int = 300) -> Tensor:
    """What a model gives in a graph, the same every time: whoever read too early would now and
    then read something else."""
    run()  # compiles what it needs
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), torch.empty(0)
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    first = out.clone()
    for _ in range(times):
        with torch.inference_mode():  # where the model has made it
            out.zero_()
        graph.replay()
        assert torch.equal(out, first)
    return first
