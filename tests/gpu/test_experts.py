"""Kernels of a mixture of experts on a GPU, against products one by one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.support import ON_GPU, replayed

try:
    from paceline.runner.cuda.kernels.experts import Grouped, choose_experts
    from tests.gpu.linears import experts_of
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU
SHAPES = [(8, 2, 1024, 1408), (128, 8, 2048, 768), (5, 3, 200, 72)]


def expected(
    x: Tensor, scores: Tensor, weights: tuple[Tensor, Tensor], chosen: int, is_whole: bool
) -> Tensor:
    """Position by position, in float32."""
    share, experts = scores.softmax(dim=-1).topk(chosen)
    if is_whole:
        share = share / share.sum(dim=-1, keepdim=True)
    out = torch.zeros_like(x, dtype=torch.float32)
    gate_up, down = (weight.float() for weight in weights)
    for place in range(chosen):
        for expert in experts[:, place].unique().tolist():
            at = experts[:, place] == expert
            gate, up = (x[at].float() @ gate_up[expert].t()).chunk(2, dim=-1)
            out[at] += share[at, place, None] * ((F.silu(gate) * up) @ down[expert].t())
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 64, 700])
@pytest.mark.parametrize(("experts", "chosen", "width", "inner"), SHAPES)
def test_grouped_products(
    experts: int, chosen: int, width: int, inner: int, rows: int, dtype: torch.dtype
) -> None:
    on = {"device": "cuda", "dtype": dtype}
    x = torch.randn(rows, width, **on)
    scores = torch.randn(rows, experts, device="cuda")
    weights = (
        torch.randn(experts, 2 * inner, width, **on).mul_(width**-0.5),
        torch.randn(experts, width, inner, **on).mul_(inner**-0.5),
    )
    every = torch.arange(experts + 1, dtype=torch.int32, device="cuda")
    kernel = Grouped.of(experts_of(*weights))
    assert kernel is not None

    def run() -> Tensor:
        total = torch.ones_like(x)
        choice = choose_experts(scores, chosen, True, every)
        kernel.add_to(total, kernel.gated(x, choice), choice)
        return total

    got = replayed(run, times=20).float() - 1
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    due = expected(x, scores, weights, chosen, True)
    torch.testing.assert_close(got, due, rtol=tolerance, atol=tolerance)
