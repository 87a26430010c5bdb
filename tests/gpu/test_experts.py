"""Kernels of a mixture of experts on a GPU, against linears one by one."""

import pytest
import torch
from torch import Tensor

from paceline.runner.cuda.experts.choice import ALONE, ExpertRouter, choose_experts
from paceline.runner.cuda.experts.coded import DECODED_ROWS, DecodedExperts, GroupedCodes
from paceline.runner.cuda.experts.few import FewExperts
from paceline.runner.cuda.experts.fp4 import Fp4Experts
from paceline.runner.cuda.experts.grouped import GroupedFp8
from paceline.runner.cuda.experts.humming import HummingExperts
from paceline.runner.cuda.experts.library import LEAST_ROWS, LibraryExperts
from paceline.runner.cuda.experts.moe import expert_kernels
from paceline.runner.cuda.gemm.linear_kernel import ExpertKernel
from paceline.runner.layers import mlp
from paceline.runner.models.experts import ExpertGroups, Routing
from tests.gpu.coded_linears import MATRICES
from tests.gpu.linears import expected_experts, experts_of, fp8_experts, quantized_experts
from tests.gpu.quantized_linears import close
from tests.gpu.support import ON_GPU, on_hopper, replayed, with_humming

pytestmark = ON_GPU
SHAPES = [(8, 2, 1024, 1408), (128, 8, 2048, 768), (5, 3, 200, 72)]


def added(kernel: ExpertKernel | None, x: Tensor, scores: Tensor, chosen: int) -> Tensor:
    """What a kernel adds to ones, the same in a graph every time."""
    assert kernel is not None

    def run() -> Tensor:
        total = torch.ones_like(x)
        kernel.add_to(total, x, choose_experts(scores, Routing(chosen, True)))
        return total

    return replayed(run, times=20).float() - 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 64, 700, 3000])
@pytest.mark.parametrize(("experts", "chosen", "width", "inner"), SHAPES)
def test_grouped_gemms(
    experts: int, chosen: int, width: int, inner: int, rows: int, dtype: torch.dtype
) -> None:
    on = {"device": "cuda", "dtype": dtype}
    x = torch.randn(rows, width, **on)
    scores = torch.randn(rows, experts, device="cuda")
    weights = experts_of(
        torch.randn(experts, 2 * inner, width, **on).mul_(width**-0.5),
        torch.randn(experts, width, inner, **on).mul_(inner**-0.5),
    )
    got = added(expert_kernels(weights).of(rows), x, scores, chosen)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    due = expected_experts(x, scores, weights, chosen, True)
    torch.testing.assert_close(got, due, rtol=tolerance, atol=tolerance)


@on_hopper
@pytest.mark.parametrize("is_by_row", [True, False], ids=["rows", "blocks"])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("rows", [1, 5, 64, 700, 3000])
@pytest.mark.parametrize(("experts", "chosen", "width", "inner"), SHAPES[:2])
def test_grouped_gemms_of_fp8(
    experts: int, chosen: int, width: int, inner: int, rows: int, is_full: bool, is_by_row: bool
) -> None:
    shape = experts, width, inner
    weights = fp8_experts(shape, "cuda", is_by_row, is_full, torch.bfloat16)
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(rows, experts, device="cuda")
    kernels, many = expert_kernels(weights), rows >= LEAST_ROWS and is_by_row and not is_full
    due = FewExperts if rows <= ALONE else LibraryExperts if many else GroupedFp8
    assert isinstance(kernels.of(rows), due)
    got = added(kernels.of(rows), x, scores, chosen)
    close(got, expected_experts(x, scores, weights, chosen, True), 6e-2)


@on_hopper
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("rows", [1, 64, 3000])
@pytest.mark.parametrize(
    ("experts", "chosen", "width", "inner"), [(8, 2, 1024, 1536), (16, 8, 2048, 768)]
)
def test_grouped_gemms_of_codes(
    experts: int, chosen: int, width: int, inner: int, rows: int, is_full: bool, name: str
) -> None:
    shape = experts, width, inner
    weights = quantized_experts(shape, MATRICES[name], "cuda", is_full, torch.bfloat16)
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(rows, experts, device="cuda")
    kernels = expert_kernels(weights, (FewExperts, DecodedExperts, GroupedCodes))
    due = DecodedExperts if rows >= DECODED_ROWS else GroupedCodes
    assert isinstance(kernels.of(rows), FewExperts if rows <= ALONE else due)
    got = added(kernels.of(rows), x, scores, chosen)
    close(got, expected_experts(x, scores, weights, chosen, True), 1.5e-2)


@on_hopper
@pytest.mark.parametrize("rows", [5, 17, 64, 256, 3000])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize(
    ("experts", "chosen", "width", "inner"),
    [(32, 4, 2880, 2880), (8, 2, 1024, 1536), (40, 3, 576, 320)],
)
def test_grouped_gemms_of_mxfp4(
    experts: int, chosen: int, width: int, inner: int, rows: int, is_full: bool
) -> None:
    """One expert has no pairs, and one has those of many tiles."""
    shape = experts, width, inner
    weights = quantized_experts(shape, MATRICES["mxfp4"], "cuda", is_full, torch.bfloat16)
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(rows, experts, device="cuda")
    scores[:, 1] -= 100
    scores[: rows // 2, 3] += 100
    kernel = expert_kernels(weights, (FewExperts, Fp4Experts, GroupedCodes)).of(rows)
    assert isinstance(kernel, Fp4Experts)
    got = added(kernel, x, scores, chosen)
    close(got, expected_experts(x, scores, weights, chosen, True), 1.5e-2)
    assert torch.equal(got, added(kernel, x, scores, chosen))


@on_hopper
@with_humming
@pytest.mark.parametrize("name", ["int4 with zeros", "nvfp4"])
@pytest.mark.parametrize("rows", [1, ALONE, 64, 3000])
def test_grouped_gemms_of_humming(rows: int, name: str) -> None:
    """`down` has outputs that are padded."""
    shape, chosen = (8, 960, 1408), 2
    weights = quantized_experts(shape, MATRICES[name], "cuda", True, torch.bfloat16)
    x = torch.randn(rows, 960, device="cuda", dtype=torch.bfloat16)
    scores = torch.randn(rows, 8, device="cuda")
    kernel = expert_kernels(weights).of(rows)
    assert isinstance(kernel, HummingExperts)
    close(
        added(kernel, x, scores, chosen), expected_experts(x, scores, weights, chosen, True), 3e-2
    )


@pytest.mark.parametrize("rows", [1, 4, 16, 17, 300])
@pytest.mark.parametrize("is_biased", [False, True])
def test_a_router_chooses_the_same_every_time(rows: int, is_biased: bool) -> None:
    hidden = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(128, 2048, device="cuda")
    bias = torch.randn(128, device="cuda") if is_biased else None
    router = ExpertRouter.of(weight, bias, Routing(8, True), dtype=torch.bfloat16)
    x, _ = router.choose(hidden, 0.5)
    due, _ = torch.nn.functional.linear(x.float(), weight, bias).topk(8)
    got = replayed(lambda: router.choose(hidden, 0.5)[1].share, times=100)
    torch.testing.assert_close(got, due.softmax(dim=-1), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 16, 300])
def test_a_router_with_groups_chooses_as_torch_does(rows: int) -> None:
    """Of the sizes of DeepSeek V3."""
    hidden = torch.randn(rows, 2048, device="cuda", dtype=torch.bfloat16)
    weight, correction = torch.randn(256, 2048, device="cuda") / 45, torch.rand(256, device="cuda")
    routing = Routing(8, True, "sigmoid", ExpertGroups(8, 4, 2), 2.5)
    router = ExpertRouter.of(weight, None, routing, correction, torch.bfloat16)
    x, _ = router.choose(hidden, 0.5)
    outputs = torch.nn.functional.linear(x.float(), weight)
    _, due = mlp.choose_experts(outputs, routing, correction)
    got = replayed(lambda: router.choose(hidden, 0.5)[1].share, times=100)
    torch.testing.assert_close(got, due, rtol=1e-3, atol=1e-3)
