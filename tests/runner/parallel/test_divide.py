"""Every architecture, divided among ranks: the same logits as those of one process."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.model import Model
from paceline.runner.parallel.divide import Shard, check_size, divide, unfit
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case, few_cases
from tests.runner.parallel.ranks import on_ranks
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import tiny

TOKENS = [5, 9, 2, 7, 1, 1, 3, 100, 50, 51, 52]
VOCAB = 102
GEMMA4 = {"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 6}


def whole_and_divided(config: ModelConfig, size: int, weights: str) -> tuple[Tensor, Tensor]:
    """The logits of one process, and those of rank 0 of several."""

    def logits(group: RankGroup | None) -> Tensor:
        model = Model.load(Dummy(config, seed=2), weights=weights, group=group)
        return logits_of(OnCPU(model, "paged"), TOKENS)

    found, *others = on_ranks(size, logits)
    assert all(other.shape == (len(TOKENS), 0) for other in others), "they do not sample"
    return logits(None), found


def is_divisible(config: ModelConfig) -> bool:
    return not unfit(replace(config, vocab=VOCAB), 2)


DIVISIBLE = [case for case in few_cases() if is_divisible(case.config())]
KNOWN = [one for one in few_cases() if one.config().states is None or is_divisible(one.config())]


@pytest.mark.parametrize("case", DIVISIBLE, ids=str)
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


@pytest.mark.parametrize("case", KNOWN, ids=str)
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


def test_ranks_have_equal_parts_in_their_order() -> None:
    assert [Shard(rank, 4).of(8) for rank in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_ranks_that_share_keys_are_neighbours() -> None:
    found = [Shard(rank, 4).of_kv_heads(2) for rank in range(4)]
    assert found == [(0, 1), (0, 1), (1, 2), (1, 2)]


def test_the_sizes_of_a_part() -> None:
    part = Shard(3, 4).config(tiny(vocab_size=60))
    assert (part.heads, part.kv_heads, part.mlp_width, part.vocab) == (1, 1, 10, 60)


@pytest.mark.parametrize(
    ("size", "changes", "reason"),
    [
        (3, {"vocab_size": 60}, "4 attention heads, which is no multiple"),
        (2, {}, "61 token ids, which is no multiple"),
        (2, {"vocab_size": 60, "intermediate_size": 41}, "41 columns of the MLP"),
        (
            2,
            {"vocab_size": 60, "architectures": ["Olmo2ForCausalLM"]},
            "norms of the model span all",
        ),
        (2, {"vocab_size": 60, **GEMMA4}, "layers of the model have different heads"),
        (4, {"vocab_size": 60, "num_attention_heads": 12, "num_key_value_heads": 6}, "6 KV heads"),
    ],
)
def test_a_model_that_cannot_be_divided(size: int, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_size(tiny(**changes), size)


def test_an_error_names_the_sizes_that_fit() -> None:
    with pytest.raises(ConfigError, match=r"sizes that fit this model are 1, 2, 4$"):
        check_size(tiny(vocab_size=60), 8)


def test_experts_count_instead_of_an_mlp_that_no_layer_has() -> None:
    model = Case("qwen3moe").config(intermediate_size=47, vocab_size=100)
    check_size(model, 4)
    with pytest.raises(ConfigError, match="24 columns of an expert"):
        check_size(model, 16)


def test_several_residual_streams_are_not_divided() -> None:
    with pytest.raises(ConfigError, match="several residual streams are not divided"):
        check_size(Case("gemma3n").config(vocab_size=VOCAB), 2)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("jamba", "states of Mamba1 are not divided; sizes that fit .* 1$"),
        ("qwen3next", "2 heads of keys in gated delta nets, which is no multiple"),
        ("bamba", "2 groups of heads in Mamba-2, which is no multiple"),
    ],
)
def test_states_that_cannot_be_divided(architecture: str, reason: str) -> None:
    config = Case(architecture).config(vocab_size=64)
    with pytest.raises(ConfigError, match=reason):
        check_size(config, 4)
