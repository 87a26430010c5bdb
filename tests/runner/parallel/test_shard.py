"""Parts of models, and the numbers of ranks that a model can be divided among."""

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.parallel.divide import Shard, check_size
from tests.conformance.architectures import Case
from tests.runner.support import tiny


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
