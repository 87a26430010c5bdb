"""EAGLE-3 heads: their configurations, and what they compute."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.attention_backend import load
from paceline.runner.draft_heads.eagle3 import Eagle3Config, Eagle3Head
from paceline.runner.draft_heads.eagle3_folder import Eagle3Folder
from paceline.runner.kv_store import KVStore
from tests.runner.eagle3 import PlainHead, head_config, head_folder, head_tensors
from tests.runner.support import Piece, batch_of, tiny

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


SMALL = tiny()


@pytest.mark.parametrize("attention", ["paged", "native"])
@pytest.mark.parametrize("changes", [{}, {"norm_before_residual": True, "hidden_size": 40}])
def test_hidden_states_and_logits_are_those_of_a_plain_head(
    changes: dict[str, Any], attention: str, tmp_path: Path
) -> None:
    changes = {**changes, "target_hidden_size": SMALL.width}
    folder = Eagle3Folder(head_folder(tmp_path, SMALL, **changes))
    config = head_config(SMALL, **changes)
    plain = PlainHead(head_tensors(config, SMALL), config)
    head = Eagle3Head.load(folder, folder.head)
    random = torch.Generator().manual_seed(1)
    width = config["hidden_size"]
    states = torch.randn(11, 3 * SMALL.width, generator=random)
    embedded = torch.randn(11, width, generator=random)
    kv, found = KVStore(folder.config, 4, 4), []
    for piece in (slice(0, 4), slice(4, 10), slice(10, 11)):  # in chunks, the last one a decode
        tokens = [0] * (piece.stop - piece.start)
        batch = batch_of([Piece(tokens, piece.start, [2, 0, 3])], 4)
        fused = head.fuse(states[piece])
        found.append(head.forward(embedded[piece], fused, batch, kv, load(attention)))
    expected = plain.hidden(embedded, plain.fused(states))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        head.logits(found[-1]), plain.logits(expected[-1:]), rtol=1e-4, atol=1e-5
    )
