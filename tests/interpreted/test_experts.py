"""Kernels of a mixture of experts, against products one by one."""

import pytest
import torch

from paceline.runner.cuda.kernels.experts import Grouped, choose_experts
from tests.gpu.linears import experts_of
from tests.gpu.test_experts import expected


@pytest.mark.parametrize("is_whole", [True, False])
def test_the_largest_shares_are_chosen(is_whole: bool) -> None:
    scores = torch.tensor([[0.0, 2.0, 1.0], [3.0, -1.0, 2.5], [0.1, 0.2, 0.3]])
    choice = choose_experts(scores, 2, is_whole, torch.arange(4, dtype=torch.int32))
    share, _ = scores.softmax(dim=-1).topk(2)
    if is_whole:
        share = share / share.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(choice.share, share)
    # Pairs 0 and 1 are of the first position, which chooses expert 1, then 2.
    assert choice.pairs.tolist() == [2, 0, 5, 1, 3, 4]
    assert choice.starts.tolist() == [0, 1, 3, 6]


@pytest.mark.parametrize("favourite", [None, 2], ids=["spread", "one expert has all"])
def test_grouped_products(favourite: int | None) -> None:
    """More pairs than a program has, and sizes that fill no tile."""
    rows, experts, chosen, width, inner = 19, 5, 2, 40, 36
    x, scores = torch.randn(rows, width), torch.randn(rows, experts)
    if favourite is not None:
        scores[:, favourite] += 10
    weights = (
        torch.randn(experts, 2 * inner, width) * width**-0.5,
        torch.randn(experts, width, inner) * inner**-0.5,
    )
    kernel = Grouped.of(experts_of(*weights))
    assert kernel is not None
    choice = choose_experts(scores, chosen, False, torch.arange(experts + 1, dtype=torch.int32))
    total = torch.ones(rows, width)
    kernel.add_to(total, kernel.gated(x, choice), choice)
    due = 1 + expected(x, scores, weights, chosen, False)
    torch.testing.assert_close(total, due, rtol=1e-4, atol=1e-4)
