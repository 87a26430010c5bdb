"""Linears of codes in groups of inputs on a GPU, against float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.fp8_linears import close, expected
from tests.gpu.support import ON_GPU, on_hopper, replayed

try:
    from paceline.runner.cuda.gemm.coded import CodedDecoded, CodedFew
    from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
    from tests.gpu.coded_linears import MATRICES
except ImportError:
    pytest.skip("needs triton", allow_module_level=True)

pytestmark = ON_GPU
KINDS: list[type[LinearKernel]] = [CodedFew, CodedDecoded]


def weights_of(
    name: str, shape: tuple[int, int], is_full: bool, dtype: torch.dtype = torch.bfloat16
) -> LinearWeights:
    """With everything that weights may have, or with the least."""
    outputs, inputs = shape
    matrix = MATRICES[name](torch.randn(outputs, inputs, device="cuda") * inputs**-0.5)
    bias = torch.randn(outputs, device="cuda").to(dtype) if is_full else None
    factor = torch.rand(inputs, device="cuda") + 0.5 if is_full else None
    return LinearWeights("linear", matrix, bias, factor, dtype)


@on_hopper
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("rows", [1, 5, 17, 64, 300])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("shape", [(1024, 1024), (5120, 17408)])
def test_every_use(
    kind: type[LinearKernel], name: str, rows: int, is_full: bool, shape: tuple[int, int]
) -> None:
    weights = weights_of(name, shape, is_full)
    due_of = LinearWeights("", weights.matrix, weights.bias, weights.factor, weights.dtype)
    kernel = kind.of(weights, Use.ADDED)
    assert kernel is not None
    if rows > kernel.most_rows:
        return
    x = torch.randn(rows, shape[1], device="cuda").bfloat16()
    due = expected(due_of, x)
    close(kernel.plain(x), due, 6e-3)
    assert torch.equal(kernel.plain(x), kernel.plain(x))  # in the same order every time
    total = torch.randn(rows, shape[0], device="cuda").bfloat16()
    before = total.float()
    kernel.add_to(total, x)
    close(total, before + due, 6e-3)
    length = x.float().square().sum(dim=1, keepdim=True).add(9.0).sqrt()
    gate, up = expected(due_of, x / length).chunk(2, dim=1)
    gated = kind.of(weights, Use.GATED)
    assert gated is not None
    close(gated.gated(x, 3.0, True), F.silu(gate) * up, 2e-2)
    close(gated.gated(x, 3.0, False), F.gelu(gate, approximate="tanh") * up, 2e-2)


@on_hopper
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Q4_K", "Q2_K", "Q6_K", "int8 by rows", "nvfp4"])
def test_inputs_that_are_a_multiple_of_64(kind: type[LinearKernel], name: str) -> None:
    weights = weights_of(name, (960, 2880), is_full=True)
    x = torch.randn(7, 2880, device="cuda").bfloat16()
    due, kernel = expected(weights, x), kind.of(weights, Use.PLAIN)
    assert kernel is not None
    close(kernel.plain(x), due, 6e-3)


@on_hopper
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "nvfp4"])
def test_models_in_float16(name: str) -> None:
    weights = weights_of(name, (1024, 1024), True, torch.float16)
    x = torch.randn(9, 1024, device="cuda").half()
    due = expected(weights, x)
    for kind in KINDS:
        kernel = kind.of(weights, Use.PLAIN)
        assert kernel is not None
        close(kernel.plain(x), due, 4e-3)


@on_hopper
@pytest.mark.parametrize("name", MATRICES)
def test_in_a_graph(name: str) -> None:
    weights = weights_of(name, (5120, 17408), is_full=False)
    due_of = LinearWeights("", weights.matrix, None, None, weights.dtype)
    kernel = CodedFew.of(weights, Use.ADDED)
    assert kernel is not None
    x = torch.randn(33, 17408, device="cuda").bfloat16()
    close(replayed(lambda: kernel.plain(x), times=20), expected(due_of, x), 6e-3)
