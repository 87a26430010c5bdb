"""Kernels of a mixture of experts, against linears one by one."""

from itertools import accumulate

import pytest
import torch

from paceline.runner.cuda.experts import few
from paceline.runner.cuda.experts.choice import ALONE, ExpertRouter, choose_experts
from paceline.runner.cuda.experts.coded import DecodedExperts, GroupedCodes
from paceline.runner.cuda.experts.few import FewExperts
from paceline.runner.cuda.experts.grouped import Grouped, GroupedFp8, add_pairs
from paceline.runner.cuda.experts.humming import gated_pairs, in_order
from paceline.runner.cuda.experts.moe import expert_kernels
from paceline.runner.cuda.experts.sort import inputs_of_pairs
from paceline.runner.cuda.gemm.coded_matrix import KernelMatrix
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertGate, ExpertKernel
from paceline.runner.layers import mlp as layers
from paceline.runner.models.experts import ExpertGroups, Routing
from paceline.runner.weights.quantized_matrix import rows_of_int8
from tests.gpu.coded_linears import MATRICES
from tests.gpu.linears import expected_experts, experts_of, fp8_experts, quantized_experts
from tests.gpu.quantized_linears import close


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few, "LINES", 64)


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_largest_shares_are_chosen(is_whole: bool) -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 2.5], [0.1, 0.2, 0.3]]).repeat(2, 1)
    choice = choose_experts(scores, Routing(2, is_whole))
    share, _ = scores.softmax(dim=-1).topk(2)
    if is_whole:
        share = share / share.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(choice.share, share)
    # Pairs 0 and 1 are of the first position, which chooses expert 1, then 2.
    assert choice.pairs.tolist() == [2, 8, 0, 5, 6, 11, 1, 3, 4, 7, 9, 10]
    assert choice.tiles.tolist() == [[0, 0, 2], [1, 2, 6], [2, 6, 12]]


def experts_by_pair(choice: ExpertChoice, pairs: int) -> list[int]:
    """What tiles say, each of whose pairs must be there once."""
    found: dict[int, int] = {}
    for expert, first, end in choice.tiles.tolist():
        if expert < choice.experts:
            for at in range(first, min(first + choice.tile_pairs, end)):
                pair = int(choice.pairs[at])
                assert pair not in found
                found[pair] = expert
    return [found[pair] for pair in range(pairs)]


@pytest.mark.parametrize("rows", [1, ALONE])
@pytest.mark.parametrize("experts", [3, 12, 32])
def test_pairs_that_are_tiles_are_sorted(rows: int, experts: int) -> None:
    choice = choose_experts(torch.randn(rows, experts), Routing(3, True))
    expert = choice.tiles[:, 0]
    found, ends = in_order(choice)
    assert torch.equal(found.pairs.long(), expert.argsort(stable=True))
    assert found.index is not None
    assert torch.equal(found.pairs[found.index], choice.pairs)
    assert ends.tolist() == [int((expert < own).sum()) for own in range(experts + 1)]


@pytest.mark.parametrize("is_factored", [True, False])
def test_pairs_are_copied_and_gated_in_their_order(is_factored: bool) -> None:
    x, factor = torch.randn(7, 1200).bfloat16(), torch.rand(1200) if is_factored else None
    choice = choose_experts(torch.randn(7, 5), Routing(2, True))
    due = x[choice.pairs.long() // 2]
    if factor is not None:
        due = (due * factor).bfloat16()
    torch.testing.assert_close(
        inputs_of_pairs(x, factor, choice), due, rtol=1e-2, atol=0
    )  # the interpreter rounds down
    gate, up = due.float().chunk(2, dim=1)
    got = gated_pairs(due, ExpertGate(True, None))
    torch.testing.assert_close(
        got.float(), torch.nn.functional.silu(gate) * up, rtol=1e-2, atol=1e-2
    )


def test_pairs_are_copied_in_the_order_in_which_threads_decode_weights() -> None:
    """A block of 128 inputs is 64 bytes of codes, of which each thread has 16."""
    width, block = 576, 128
    x = torch.arange(3 * width).view(3, width).float()
    choice = choose_experts(torch.randn(3, 5), Routing(2, True))
    found = inputs_of_pairs(x, None, choice, block)
    rows = torch.nn.functional.pad(x[choice.pairs.long() // 2], (0, -width % block))
    # [pairs, blocks, two threads, lower or upper code, thread, word, second, odd]
    parts = rows.view(len(found), -1, 2, 2, 2, 4, 2, 2)
    due = parts.permute(0, 1, 5, 3, 7, 2, 4, 6)  # [..., word, upper, odd, thread, second]
    assert torch.equal(found, due.reshape(found.shape))


@pytest.mark.parametrize("rows", [1, ALONE, ALONE + 1, 40, 200])
@pytest.mark.parametrize("experts", [3, 12])
@pytest.mark.parametrize("favourite", [None, 2], ids=["spread", "one expert has all"])
def test_each_pair_is_in_one_tile_of_its_expert(
    rows: int, experts: int, favourite: int | None
) -> None:
    scores = torch.randn(rows, experts)
    if favourite is not None:
        scores[:, favourite] += 10
    choice = choose_experts(scores, Routing(2, True))
    due = scores.topk(2).indices.flatten().tolist()
    assert experts_by_pair(choice, 2 * rows) == due


@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("is_biased", [False, True])
def test_a_router_normalises_scores_and_chooses(rows: int, is_biased: bool) -> None:
    hidden, weight = torch.randn(rows, 40), torch.randn(12, 40)
    bias = torch.randn(12) if is_biased else None
    router = ExpertRouter.of(weight, bias, Routing(3, True))
    for _ in range(2):  # the second finds its counters as the first did
        x, choice = router.choose(hidden, 0.5)
        length = (hidden.square().sum(dim=1, keepdim=True) + 0.25).sqrt()
        torch.testing.assert_close(x, hidden / length)
        share, due = torch.nn.functional.linear(x, weight, bias).topk(3)
        assert experts_by_pair(choice, 3 * rows) == due.flatten().tolist()
        torch.testing.assert_close(choice.share, share.softmax(dim=-1), rtol=1e-4, atol=1e-4)


ROUTINGS = {
    "sigmoids": Routing(3, True, "sigmoid", scale=2.5),
    "groups": Routing(4, False, "sigmoid", ExpertGroups(4, 2, 2)),
    "groups of softmax": Routing(2, False, groups=ExpertGroups(3, 1, 1), scale=16.0),
}


@pytest.mark.parametrize("rows", [2, 17])
@pytest.mark.parametrize("is_corrected", [True, False])
@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS)
def test_routings_are_those_of_torch(rows: int, is_corrected: bool, routing: Routing) -> None:
    hidden, correction = torch.randn(rows, 40), 0.5 * torch.randn(12) if is_corrected else None
    ours = ExpertRouter.of(torch.randn(12, 40), None, routing, correction)
    x, found = ours.choose(hidden, 0.5)
    outputs = torch.nn.functional.linear(x, ours.weight)
    due, share = layers.choose_experts(outputs, routing, correction)
    assert experts_by_pair(found, routing.chosen * rows) == due.flatten().tolist()
    torch.testing.assert_close(found.share, share, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 19])
@pytest.mark.parametrize("favourite", [None, 2], ids=["spread", "one expert has all"])
def test_grouped_gemms(rows: int, favourite: int | None) -> None:
    """More pairs than a tile has, and sizes that fill no tile."""
    experts, chosen, width, inner = 5, 2, 40, 36
    x, scores = torch.randn(rows, width), torch.randn(rows, experts)
    if favourite is not None:
        scores[:, favourite] += 10
    weights = experts_of(
        torch.randn(experts, 2 * inner, width) * width**-0.5,
        torch.randn(experts, width, inner) * inner**-0.5,
    )
    kernel = Grouped.of(weights)
    assert kernel is not None
    total = torch.ones(rows, width)
    kernel.add_to(total, x, choose_experts(scores, Routing(chosen, False)))
    due = 1 + expected_experts(x, scores, weights, chosen, False)
    torch.testing.assert_close(total, due, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_by_row", [True, False], ids=["rows", "blocks"])
@pytest.mark.parametrize("is_full", [False, True], ids=["least", "most"])
@pytest.mark.parametrize("rows", [1, ALONE + 1])
def test_grouped_gemms_of_fp8(is_by_row: bool, is_full: bool, rows: int) -> None:
    experts, chosen = 4, 2
    weights = fp8_experts((experts, 256, 128), "cpu", is_by_row, is_full, torch.float16)
    kernel = (FewExperts if rows <= ALONE else GroupedFp8).of(weights)
    assert kernel is not None
    x, scores = torch.randn(rows, 256).half(), torch.randn(rows, experts)
    total = torch.zeros(rows, 256).half()
    kernel.add_to(total, x, choose_experts(scores, Routing(chosen, True)))
    close(total, expected_experts(x, scores, weights, chosen, True), 6e-2)


@pytest.mark.parametrize(
    "name", ["Q4_K", "int4 with zeros", "Q6_K", "int8 by rows", "nvfp4", "mxfp4"]
)
@pytest.mark.parametrize("kind", [FewExperts, GroupedCodes, DecodedExperts])
def test_grouped_gemms_of_codes(name: str, kind: type[ExpertKernel]) -> None:
    experts, chosen, rows = 3, 2, 1 if kind is FewExperts else ALONE + 1
    weights = quantized_experts((experts, 128, 128), MATRICES[name], "cpu", True, torch.float16)
    kernels = expert_kernels(weights).kernels
    kernel = next(one for one in kernels if isinstance(one, kind))
    assert isinstance(kernel.weights.down, KernelMatrix)  # others would take memory beside it
    x, scores = torch.randn(rows, 128).half(), torch.randn(rows, experts)
    total = torch.zeros(rows, 128).half()
    kernel.add_to(total, x, choose_experts(scores, Routing(chosen, True)))
    close(total, expected_experts(x, scores, weights, chosen, True), 6e-3)


def test_experts_that_no_kernel_computes_are_decoded(caplog: pytest.LogCaptureFixture) -> None:
    weights = quantized_experts((2, 48, 32), rows_of_int8, "cpu", False, torch.float16)
    kernels = expert_kernels(weights)
    assert str(kernels) == "2 in float16: grouped"
    assert "no kernel computes experts in int8 by rows: they are decoded" in caplog.text


def test_sums_of_pairs_in_the_order_of_their_experts() -> None:
    """As the library gives them."""
    rows, experts, width, routing = 9, 4, 24, Routing(3, True)
    choice = choose_experts(torch.randn(rows, experts), routing)
    assert choice.ends is not None
    assert choice.index is not None
    tiles = choice.tiles.tolist()
    ends = [max((tile[2] for tile in tiles if tile[0] == own), default=0) for own in range(experts)]
    assert choice.ends.tolist() == list(accumulate(ends, max))
    assert choice.pairs[choice.index.long()].tolist() == list(range(3 * rows))
    parts, total = torch.randn(3 * rows, width), torch.ones(rows, width)
    add_pairs(total, parts[choice.pairs.long()], choice, is_sorted=True)
    due = 1 + (parts.view(rows, 3, width) * choice.share.unsqueeze(-1)).sum(dim=1)
    torch.testing.assert_close(total, due)
