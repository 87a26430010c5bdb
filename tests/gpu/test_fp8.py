"""Linears of fp8 weights on a GPU, against float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.fp8_linears import close, expected, fp8_weights
from tests.gpu.support import ON_GPU, on_hopper, replayed

try:
    from paceline.runner.cuda.gemm.fp8 import Fp8Library, Fp8Streamed
    from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, Use
    from paceline.runner.cuda.gemm.scaled import ScaledDecoded, ScaledFew
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU

# A decoded weight is rounded to 16 bits once more; the library rounds the inputs to 8 bits.
BOUNDS: dict[type[LinearKernel], float] = {
    ScaledFew: 6e-3,
    ScaledDecoded: 6e-3,
    Fp8Library: 5e-2,
    Fp8Streamed: 5e-2,
}


@on_hopper
@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", [1, 5, 16, 100, 192])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("is_by_row", [True, False], ids=["rows", "blocks"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1024, 1024), (5120, 17408), (34816, 5120)])
def test_every_use(
    kind: type[LinearKernel], rows: int, is_full: bool, is_by_row: bool, outputs: int, inputs: int
) -> None:
    weights = fp8_weights(outputs, inputs, "cuda", is_by_row, is_full)
    kernel, bound = kind.of(weights, Use.ADDED), BOUNDS[kind]
    if kernel is not None and rows > kernel.most_rows:
        return
    if kernel is None:
        assert kind is Fp8Streamed
        assert is_full or not is_by_row or outputs * inputs < 16 << 20
        return
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    due = expected(weights, x)
    close(kernel.plain(x), due, bound)
    assert torch.equal(kernel.plain(x), kernel.plain(x))  # in the same order every time
    total = torch.randn(rows, outputs, device="cuda").bfloat16()
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, bound)
    length = x.float().square().sum(dim=1, keepdim=True).add(9.0).sqrt()
    gate, up = expected(weights, x / length).chunk(2, dim=1)
    gated = kind.of(weights, Use.GATED)
    assert gated is not None
    close(gated.gated(x, 3.0, True), F.silu(gate) * up, 2 * bound)
    close(gated.gated(x, 3.0, False), F.gelu(gate, approximate="tanh") * up, 2 * bound)


@on_hopper
@pytest.mark.parametrize("kind", BOUNDS, ids=lambda kind: kind.name)
def test_in_a_graph(kind: type[LinearKernel]) -> None:
    weights = fp8_weights(5120, 17408, "cuda", True, False)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(33, 17408, device="cuda").bfloat16()
    close(replayed(lambda: kernel.plain(x), times=20), expected(weights, x), BOUNDS[kind])
