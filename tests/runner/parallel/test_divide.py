"""Every architecture, divided among ranks: the same logits as those of one process."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.model import Model
from paceline.runner.parallel.divide import Shard, divide
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, few_cases
from tests.runner.parallel.ranks import on_ranks
from tests.runner.sequences import OnCPU, logits_of

TOKENS = [5, 9, 2, 7, 1, 1, 3, 100, 50, 51, 52]
VOCAB = 102


def whole_and_divided(config: ModelConfig, size: int, weights: str) -> tuple[Tensor, Tensor]:
    """The logits of one process, and those of rank 0 of several."""

    def logits(group: RankGroup | None) -> Tensor:
        model = Model.load(Dummy(config, seed=2), weights=weights, group=group)
        return logits_of(OnCPU(model, "paged"), TOKENS)

    found, *others = on_ranks(size, logits)
    assert all(other.shape == (len(TOKENS), 0) for other in others), "they do not sample"
    return logits(None), found


@pytest.mark.parametrize("case", few_cases(), ids=str)
def test_two_ranks_have_the_logits_of_one_process(case: Case) -> None:
    expected, found = whole_and_divided(replace(case.config(), vocab=VOCAB), 2, "float32")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("architecture", ["llama", "phi3", "gptoss"])
def test_ranks_share_keys_if_there_are_fewer_of_them(architecture: str) -> None:
    """Two KV heads on four ranks."""
    config = replace(Case(architecture).config(), vocab=104)
    expected, found = whole_and_divided(config, 4, "float32")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def test_linears_of_integers_are_divided_too() -> None:
    """Parts of a linear have scales of their own, so they are rounded otherwise."""
    expected, found = whole_and_divided(replace(Case("llama").config(), vocab=VOCAB), 2, "int8")
    torch.testing.assert_close(found, expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("case", few_cases(), ids=str)
def test_parts_of_a_tensor_are_all_of_it(case: Case) -> None:
    config = replace(case.config(), vocab=VOCAB)
    whole = {tensor.name: tensor.shape for tensor in describe(config).tensors}
    sizes: dict[str, list[Any]] = {name: [] for name in whole}
    for rank in range(2):
        for tensor in divide(describe(config), Shard(rank, 2)).tensors:
            sizes[tensor.name].append(tensor)
    for name, (first, *rest) in sizes.items():
        if first.cut is None:
            assert first.shape == whole[name]
            assert "bias" in name or rest == [first], "a bias of a sum belongs to rank 0"
        else:
            runs = sorted({run for part in (first, *rest) for run in part.cut.runs})
            ends = [end for _, end in runs]
            assert [begin for begin, _ in runs] == [0, *ends[:-1]]
            assert ends[-1] == whole[name][first.cut.dim]
