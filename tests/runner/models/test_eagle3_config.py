"""Configurations of EAGLE-3 heads, as they are published."""

from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.eagle3 import Eagle3Config
from tests.runner.eagle3 import head_config
from tests.runner.support import tiny

MODEL = tiny(num_hidden_layers=32)


def read(**changes: Any) -> Eagle3Config:
    return Eagle3Config.of_hf(head_config(MODEL, **changes))


@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM"]
)
def test_names_of_heads(name: str) -> None:
    assert read(architectures=[name]) == read()


def test_usual_layers_are_a_low_a_middle_and_a_high_one() -> None:
    assert read().layers_of(MODEL) == (2, 16, 29)
    assert read().layers_of(tiny(num_hidden_layers=1)) == (0, 0, 0)


def test_layers_are_given_as_inputs_at_the_top_and_as_outputs_below() -> None:
    given = [1, 15, 28]
    assert read(eagle_aux_hidden_state_layer_ids=given).layers == (1, 15, 28)
    nested = {"eagle_aux_hidden_state_layer_ids": given}
    assert read(eagle_config=nested).layers == (2, 16, 29)


def test_a_configuration_of_speculators() -> None:
    plain = head_config(MODEL)
    own = {name: plain.pop(name) for name in ("draft_vocab_size", "architectures")}
    nested = {**own, "architectures": ["Eagle3Speculator"], "transformer_layer_config": plain}
    assert Eagle3Config.of_hf(nested) == read()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["BertModel"]}, "'bertmodel', which is no EAGLE-3 head"),
        ({"num_hidden_layers": 2}, "has 2 layers; heads of one"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "reads the last layer alone"),
        ({"hidden_size": None}, "no 'hidden_size'"),
    ],
)
def test_heads_that_are_not_supported(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(**changes)


def test_a_head_for_another_model_is_refused() -> None:
    for other in (tiny(hidden_size=32), tiny(vocab_size=70)):
        with pytest.raises(ConfigError, match="use a head that was trained for the model"):
            read().layers_of(other)
    with pytest.raises(ConfigError, match=r"reads layers \[1, 15, 28\]"):
        read(eagle_aux_hidden_state_layer_ids=[1, 15, 28]).layers_of(tiny())
