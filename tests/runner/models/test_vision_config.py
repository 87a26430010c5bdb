"""Sizes of vision towers, as config.json has them."""

from copy import deepcopy
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe, manifest
from paceline.runner.vision.qwen_config import QwenVisionConfig
from paceline.runner.vision.siglip_config import SigLIPConfig
from tests.conformance.architectures import Case


def entries(architecture: str, **vision: Any) -> dict[str, Any]:
    found = deepcopy(Case(architecture).entries)
    found["vision_config"] |= vision
    return found


def test_sizes_that_a_file_leaves_out_are_those_of_transformers() -> None:
    """SmolVLM-256M's file has no numbers of layers and no width of the MLP."""
    given = entries("smolvlm", hidden_size=768, image_size=512, patch_size=16)
    given["vision_config"] |= {"num_hidden_layers": None, "intermediate_size": None}
    given["vision_config"]["num_attention_heads"] = 12
    vision = ModelConfig.of_hf({**given, "scale_factor": 4}).vision
    assert isinstance(vision, SigLIPConfig)
    assert (vision.layers, vision.mlp_width, vision.patches, vision.merge) == (12, 3072, 32, 4)


def test_older_files_have_the_decoder_beside_the_tower() -> None:
    nested = Case("qwen2_5_vl").entries
    flat = {key: value for key, value in nested.items() if key != "text_config"}
    rope = nested["text_config"]["rope_parameters"]
    older = {**nested["text_config"], "rope_scaling": {**rope, "type": "mrope"}}
    del older["rope_parameters"]
    assert ModelConfig.of_hf({**flat, **older}) == ModelConfig.of_hf(nested)


def test_tensors_have_older_names() -> None:
    spec = describe(ModelConfig.of_hf(Case("qwen2_5_vl").entries))
    aliases = {tensor.name: tensor.aliases for tensor in spec.tensors}
    assert aliases["model.language_model.norm.weight"] == ("model.norm.weight",)
    assert aliases["model.visual.merger.ln_q.weight"] == ("visual.merger.ln_q.weight",)
    assert aliases["lm_head.weight"] == ()
    assert "model.text_model.norm.weight" in manifest(Case("idefics3").config())


def test_scaling_of_pixels() -> None:
    given, settings = entries("qwen2_5_vl"), {"image_mean": [0.1, 0.2, 0.3], "do_rescale": False}
    vision = ModelConfig.of_hf(given, settings).vision
    assert isinstance(vision, QwenVisionConfig)
    assert (vision.pixels.mean, vision.pixels.factor) == ((0.1, 0.2, 0.3), 1.0)
    plain = ModelConfig.of_hf(given, {"do_normalize": False}).vision
    assert isinstance(plain, QwenVisionConfig)
    assert plain.pixels.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (entries("idefics3", num_attention_heads=5), "5 heads do not divide"),
        (entries("idefics3", image_size=100), "3 patches of 32 pixels"),
        (entries("idefics3", hidden_act="relu"), "'relu' is not supported"),
        (entries("qwen2_5_vl", out_hidden_size=48), "out_hidden_size is 48"),
        (entries("qwen2_5_vl", num_heads=3), "multiple of four times"),
        (entries("qwen2_5_vl", window_size=20), "no room for 2 patches"),
        ({**entries("idefics3"), "text_config": {"model_type": "mistral"}}, "."),
        ({**entries("idefics3"), "architectures": ["Idefics3ForCausalLM"]}, "not supported"),
        ({**entries("idefics3"), "architectures": ["LlamaForConditionalGeneration"]}, "not supp"),
    ],
)
def test_what_cannot_be_computed_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ModelConfig.of_hf(given)


def test_sections_of_a_rope_cover_all_pairs() -> None:
    given = Case("qwen2_5_vl").entries
    rope = {**given["text_config"]["rope_parameters"], "mrope_section": [2, 2, 2]}
    text = {**given["text_config"], "rope_parameters": rope}
    with pytest.raises(ConfigError, match=r"mrope_section is \[2, 2, 2\]"):
        ModelConfig.of_hf({**given, "text_config": text})
