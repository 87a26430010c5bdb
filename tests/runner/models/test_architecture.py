"""The description of a model, and the rule that nothing else names tensors or reads traits."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import paceline.runner
from paceline.core.errors import ConfigError
from paceline.runner.models.architecture import HeadNorms, parts_of
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import LinearSpec, NormSpec
from paceline.runner.models.tensor_spec import TensorSpec
from tests.runner.support import tiny

RUNNER = Path(paceline.runner.__file__).parent
MODELS = RUNNER / "models"
TENSOR_NAMES = (
    "_proj",
    "layernorm",
    "embed_tokens",
    "lm_head",
    "model.layers",
    "blk.",
    "token_embd",
)

DESCRIBED = (MODELS, *map(MODELS.joinpath, ("architectures", "description", "states")))
DESCRIBED += (RUNNER / "encoders", RUNNER / "vision")
# with tensors of their own; the config of gptq has "lm_head"
OTHER_FILES = ("eagle3.py", "eagle3_folder.py", "gptq.py")


def sources() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(RUNNER.rglob("*.py")):
        if path.parent not in DESCRIBED and path.name not in OTHER_FILES:
            yield str(path.relative_to(RUNNER)), ast.parse(path.read_text(encoding="utf-8"))


def test_only_models_reads_traits() -> None:
    readers = [
        name
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"traits", "ARCHITECTURES"}
    ]
    assert not readers


def test_only_models_names_tensors() -> None:
    named = [
        (name, node.value)
        for name, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(part in node.value for part in TENSOR_NAMES)
    ]
    assert not named


def test_parts_are_found_however_deep_and_in_order() -> None:
    spec = describe(tiny(architectures=["Qwen3ForCausalLM"]))
    names = [norm.weight.name.removeprefix("model.") for norm in parts_of(spec, NormSpec)]
    assert names[:4] == [
        "layers.0.input_layernorm.weight",
        "layers.0.self_attn.q_norm.weight",
        "layers.0.self_attn.k_norm.weight",
        "layers.0.post_attention_layernorm.weight",
    ]
    assert names[-1] == "norm.weight"
    assert len(list(parts_of(spec, LinearSpec))) == 2 * 4 + 1


def test_a_tensor_that_is_used_twice_is_listed_once() -> None:
    spec = describe(tiny(tie_word_embeddings=True))
    assert spec.head.weights == (spec.embedding,)
    assert [tensor.name for tensor in spec.tensors].count(spec.embedding.name) == 1
    assert len(list(parts_of(spec, TensorSpec))) == len(spec.tensors) + 1


def test_sizes_follow_from_tensors() -> None:
    spec = describe(tiny())
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert (attention.qkv.outputs, attention.qkv.inputs) == (8 * (4 + 2 + 2), 24)
    assert (mlp.gate_up.outputs, mlp.width, spec.width) == (80, 40, 24)
    assert spec.norm.floor == pytest.approx((24 * 1e-5) ** 0.5)


def test_a_product_has_a_bias_for_every_weight_or_none() -> None:
    qkv = describe(tiny(architectures=["Qwen2ForCausalLM"])).layers[0].attention.qkv
    assert len(qkv.biases) == len(qkv.weights) == 3
    with pytest.raises(ConfigError, match="3 weights has 1 biases"):
        replace(qkv, biases=qkv.biases[:1])


def test_queries_and_keys_are_normed_alike() -> None:
    norms = describe(tiny(architectures=["Qwen3ForCausalLM"])).layers[0].attention.head_norms
    assert norms is not None
    with pytest.raises(ConfigError, match="must have the same eps and width"):
        HeadNorms(norms.query, replace(norms.key, eps=0.5))
