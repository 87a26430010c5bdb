"""Sizes of vision towers, as config.json has them."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.cuda.model import CUDA
from paceline.runner.layers.native_stack import NATIVE
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe, manifest
from paceline.runner.models.traits import AROUND
from paceline.runner.vision.spec import TowerSpec
from tests.conformance.architectures import Case


def entries(architecture: str, **vision: Any) -> dict[str, Any]:
    found = deepcopy(Case(architecture).entries)
    found["vision_config"] |= vision
    return found


def tower(given: dict[str, Any], settings: dict[str, Any] | None = None) -> TowerSpec:
    vision = ModelConfig.of_hf(given, settings or {}).vision
    assert isinstance(vision, TowerSpec)
    return vision


def test_sizes_that_a_file_leaves_out_are_those_of_transformers() -> None:
    """SmolVLM-256M's file has no numbers of layers and no width of the MLP."""
    given = entries("smolvlm", hidden_size=768, image_size=512, patch_size=16)
    given["vision_config"] |= {"num_hidden_layers": None, "intermediate_size": None}
    given["vision_config"]["num_attention_heads"] = 12
    vision = tower({**given, "scale_factor": 4})
    assert (len(vision.blocks), vision.side, vision.merge) == (12, 32, 4)
    assert vision.blocks[0].up.weights[0].shape == (3072, 768)


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
    vision = tower(given, settings)
    assert (vision.pixels.mean, vision.pixels.factor) == ((0.1, 0.2, 0.3), 1.0)
    plain = tower(given, {"do_normalize": False})
    assert plain.pixels.std == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (entries("idefics3", num_attention_heads=5), "5 heads do not divide"),
        (entries("idefics3", image_size=100), "3 patches of 32 pixels.* multiple of 2"),
        (entries("idefics3", hidden_act="relu"), "'relu' is not supported"),
        (entries("qwen2_5_vl", out_hidden_size=48), "out_hidden_size is 48"),
        (entries("qwen2_5_vl", num_heads=3), "multiple of four times"),
        (entries("qwen2_5_vl", window_size=20), "no room for 2 patches"),
        ({**entries("idefics3"), "text_config": {"model_type": "bert"}}, "'bert' is not supported"),
        (entries("qwen3vl", deepstack_visual_indexes=[0, 0, 0]), "fewer than 3 entries"),
        (entries("qwen3vl", deepstack_visual_indexes=[1]), "name blocks of 1"),
        (entries("llava", model_type="dinov2"), "'dinov2' is not supported; .*siglip_vision_model"),
        (entries("llava", image_size=[56, 28]), "only squares"),
        ({**entries("llava"), "vision_feature_select_strategy": "full"}, "only 'default'"),
        ({**entries("llava"), "vision_feature_layer": [-2, -1]}, "is not supported"),
        ({**entries("llava"), "projector_hidden_act": "relu"}, "only 'gelu'"),
        (entries("internvl", norm_type="batch_norm"), "'batch_norm' is not supported"),
        (entries("internvl", use_absolute_position_embeddings=False), "must be learned"),
        ({**entries("internvl"), "vision_feature_layer": -2}, "must be -1"),
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


def test_sections_of_a_rope_may_take_turns() -> None:
    rope = ModelConfig.of_hf(Case("qwen3vl").entries).rope.long
    assert rope.axes == (0, 1, 2, 0, 1, 2, 0, 1)  # mrope_section is [2, 3, 3]


def test_a_decoder_may_be_of_an_architecture_that_its_file_names() -> None:
    given = Case("llava").entries
    gemma = {**given["text_config"], "model_type": "gemma2"}
    found = ModelConfig.of_hf({**given, "text_config": gemma})
    assert found.traits.norms == AROUND
    assert describe(found).norm.weight.name == "model.language_model.norm.weight"


def test_sizes_that_the_first_llava_leaves_out_are_those_of_llama() -> None:
    given = {
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": {"model_type": "llama", "vocab_size": 32064},
        "vision_config": {"model_type": "clip_vision_model"},
    }
    found = ModelConfig.of_hf(given)
    assert (found.width, found.layers, found.vocab) == (4096, 32, 32064)
    assert (tower(given).side, len(tower(given).blocks)) == (24, 23)


def test_a_gpu_reads_images() -> None:
    for architecture in ("qwen2vl", "qwen3vl", "llava", "internvl"):
        CUDA.require(describe(ModelConfig.of_hf(Case(architecture).entries)))
    spec = describe(ModelConfig.of_hf(Case("llava").entries))
    tower = spec.vision
    assert isinstance(tower, TowerSpec)
    CUDA.require(replace(spec, vision=replace(tower, reads_itself="always")))
    spec = replace(spec, vision=replace(tower, reads_itself="windowed"))
    CUDA.require(spec)
    reason = NATIVE.supports(spec)
    assert reason is not None
    assert "vision.reads_itself=windowed" in reason
