"""Linears of 4-bit and 8-bit integers on a GPU, against float32."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from paceline.runner.weights.quantized_matrix import ScaledMatrix
from tests.gpu.fp8_linears import close, expected
from tests.gpu.support import ON_GPU, on_hopper, replayed

try:
    from paceline.runner.cuda.gemm.int4 import Int4Decoded, Int4Few
    from paceline.runner.cuda.gemm.int4_panels import Int4Panels, PanelsDecoded
    from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
    from paceline.runner.cuda.gemm.scaled import Int8Library, ScaledDecoded, ScaledFew
    from tests.gpu.int4_linears import integer_weights
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU
KINDS: dict[type[LinearKernel], tuple[int, ...]] = {
    Int4Panels: (32, 64, 128),
    PanelsDecoded: (32, 64, 128),
    Int4Few: (32, 64, 128),
    Int4Decoded: (32, 64, 128),
    ScaledFew: (0,),
    ScaledDecoded: (0,),
}
CASES = [(kind, group) for kind, groups in KINDS.items() for group in groups]


def weights_of(outputs: int, inputs: int, group: int, is_full: bool) -> LinearWeights:
    return integer_weights(outputs, inputs, group, "cuda", is_full, torch.bfloat16)


@on_hopper
@pytest.mark.parametrize(("kind", "group"), CASES)
@pytest.mark.parametrize("rows", [1, 5, 17, 64, 128, 300])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize(("outputs", "inputs"), [(1024, 1024), (5120, 17408), (34816, 5120)])
def test_every_use(
    kind: type[LinearKernel], group: int, rows: int, is_full: bool, outputs: int, inputs: int
) -> None:
    weights = weights_of(outputs, inputs, group, is_full)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    if rows > kernel.most_rows:
        return
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    due = expected(weights, x)
    close(kernel.plain(x), due, 6e-3)
    assert torch.equal(kernel.plain(x), kernel.plain(x))  # in the same order every time
    total = torch.randn(rows, outputs, device="cuda").bfloat16()
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, 6e-3)
    length = x.float().square().sum(dim=1, keepdim=True).add(9.0).sqrt()
    gate, up = expected(weights, x / length).chunk(2, dim=1)
    gated = kind.of(weights, Use.GATED)
    assert gated is not None
    close(gated.gated(x, 3.0, True), F.silu(gate) * up, 2e-2)
    close(gated.gated(x, 3.0, False), F.gelu(gate, approximate="tanh") * up, 2e-2)


@on_hopper
@pytest.mark.parametrize(("kind", "group"), CASES)
def test_in_a_graph(kind: type[LinearKernel], group: int) -> None:
    weights = weights_of(5120, 17408, group, is_full=False)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(33, 17408, device="cuda").bfloat16()
    close(replayed(lambda: kernel.plain(x), times=20), expected(weights, x), 6e-3)


@on_hopper
@pytest.mark.parametrize("rows", [65, 300, 2048])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
def test_inputs_are_quantized_too_if_the_weights_were_made_for_that(
    rows: int, is_full: bool
) -> None:
    weights = weights_of(5120, 17408, 0, is_full)
    assert isinstance(weights.matrix, ScaledMatrix)
    weights.matrix = replace(weights.matrix, input_bits=8)
    kernel = Int8Library.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(rows, 17408, device="cuda").bfloat16()
    due = expected(weights, x)
    close(replayed(lambda: kernel.plain(x), times=20), due, 2e-2)
    total = torch.randn(rows, 5120, device="cuda").bfloat16()
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, 2e-2)
    length = x.float().square().sum(dim=1, keepdim=True).add(9.0).sqrt()
    gate, up = expected(weights, x / length).chunk(2, dim=1)
    close(kernel.gated(x, 3.0, True), F.silu(gate) * up, 6e-2)
