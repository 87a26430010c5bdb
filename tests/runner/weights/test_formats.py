"""Quantized checkpoints compute what the numbers that they stand for do."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import ConfigError
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.models.architecture import parts_of
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.quantized_matrix import (
    ScaledMatrix,
    groups_of_int4,
    rows_of_fp8,
    rows_of_int8,
)
from paceline.runner.weights.safetensors import SINGLE, SafetensorsFolder
from tests.conformance.architectures import Case
from tests.runner.parallel.ranks import on_ranks
from tests.runner.sequences import OnCPU, Sequences, logits_of
from tests.runner.support import TINY
from tests.runner.weights.quantized_checkpoints import (
    KINDS,
    SHAPE,
    Kind,
    by_block,
    compressed,
    packed,
    write_both,
)

TOKENS = [5, 9, 2, 7, 1, 1, 3, 60, 50, 51, 52]


def logits(folder: Path, group: RankGroup | None = None, **options: Any) -> torch.Tensor:
    return logits_of(
        OnCPU(Model.load(SafetensorsFolder(folder), group=group, **options), "paged"), TOKENS
    )


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_plain_checkpoint(kind: str, tmp_path: Path) -> None:
    quantized, plain = write_both(KINDS[kind], tmp_path)
    found = SafetensorsFolder(quantized)
    verify(found)
    assert found.is_quantized
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-5, atol=1e-5)


def test_deepseek_as_it_is_published(tmp_path: Path) -> None:
    """Blocks of fp8 that heads and latent vectors do not fill, routers that are plain, and a layer
    that drafts."""
    entries = {**Case("deepseekv3").entries, "num_nextn_predict_layers": 1}
    kind = Kind(
        {"quant_method": "fp8", "weight_block_size": [16, 48]},
        by_block("weight_scale_inv", 16, 48),
    )
    quantized, plain = write_both(kind, tmp_path, **entries)
    tensors = load_file(quantized / SINGLE)
    tensors["model.layers.3.eh_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, quantized / SINGLE)
    found = SafetensorsFolder(quantized)
    verify(found)
    assert found.is_quantized
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-5, atol=1e-5)
    due, got = logits(plain).log_softmax(1), logits(quantized, weights="int8").log_softmax(1)
    # Rounding may choose another expert for a position.
    assert (got - due).abs().amax(dim=1).median() < 0.15


# Sizes that groups of 32 inputs divide, and a choice of experts that rounding does not change
WIDE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 4,
}
STATES: dict[str, dict[str, Any]] = {
    "qwen3next": {"linear_value_head_dim": 16, "shared_expert_intermediate_size": 32},
    "nemotronh": {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]},
    "jamba": {"mamba_dt_rank": 32},
}
PLAIN = ["lm_head", "re:.*in_proj_ba", "re:.*layers.1.mlp.*"]
FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [16, 48],
    "modules_to_not_convert": ["in_proj_ba", "model.layers.1.mlp"],
}
BESIDE_STATES = {
    "fp8": Kind(FP8, by_block("weight_scale_inv", 16, 48)),
    "int4": Kind({**KINDS["compressed int4"].config, "ignore": PLAIN}, packed(4)),
}


@pytest.mark.parametrize("architecture", STATES)
@pytest.mark.parametrize("kind", BESIDE_STATES)
def test_linears_beside_states(kind: str, architecture: str, tmp_path: Path) -> None:
    """Linears of Mamba and of linear attention, of which some stay plain."""
    entries = {**Case(architecture).entries, **WIDE, **STATES[architecture]}
    quantized, plain = write_both(BESIDE_STATES[kind], tmp_path, **entries)
    verify(SafetensorsFolder(quantized))
    torch.testing.assert_close(logits(quantized), logits(plain), rtol=1e-5, atol=1e-5)
    due, got = logits(plain).log_softmax(1), logits(quantized, weights="int8").log_softmax(1)
    assert (got - due).abs().mean() < 0.1


# With a scale for each output.
EIGHT_BITS = ["compressed int8", "compressed int8 and inputs", "compressed int8 weights"]
ROUNDED = [one for one in KINDS if "fp8" in one or "nvfp4" in one or one == "gptq of 8 bits"]
FOUR_BITS = [kind for kind in KINDS if kind not in (*EIGHT_BITS, *ROUNDED)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_for_integers_compute_them_too(kind: str, tmp_path: Path) -> None:
    quantized, plain = write_both(KINDS[kind], tmp_path)
    due, got = logits(plain).log_softmax(1), logits(quantized, weights="int8").log_softmax(1)
    assert (got - due).abs().max() < 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_for_integers_hold_the_weights(kind: str, tmp_path: Path) -> None:
    """A linear of unit vectors is its weights, as the kernel has them. Four bits lose at most 1/64
    of the largest step of an output, which is at least 1/16 of its range; others that are rounded
    lose half a step of 8 bits. Integers of 8 bits by rows lose nothing."""
    quantized, _ = write_both(KINDS[kind], tmp_path)
    checkpoint = SafetensorsFolder(quantized)
    for linear in parts_of(describe(checkpoint.config).layers[0], LinearSpec):
        factory = LayerFactory(checkpoint, torch.float32, "cpu", NativeLinear.of)
        found, due = factory.linear(linear), factory.matrix(linear).dense()
        assert found.matrix.bits == (4 if kind in FOUR_BITS else 8)
        low, high = due.aminmax(dim=1)
        most = torch.maximum(low.abs(), high.abs())
        bound = {4: (high - low) / 15 / 32, 8: most / 254}[found.matrix.bits]
        if kind in EIGHT_BITS:
            bound = torch.zeros_like(most)
        lost = (found(torch.eye(linear.inputs)).t() - due).abs().amax(dim=1)
        assert (lost <= bound + 1e-6 * most).all()


@pytest.mark.parametrize(
    ("kind", "takes_int8"),
    [
        ("compressed int8", False),
        ("compressed int8 and inputs", True),
        ("compressed int8 weights", False),
    ],
)
def test_int8_weights_know_which_inputs_they_were_made_for(
    kind: str, takes_int8: bool, tmp_path: Path
) -> None:
    checkpoint = SafetensorsFolder(write_both(KINDS[kind], tmp_path)[0])
    factory = LayerFactory(checkpoint, torch.float32, "cpu", NativeLinear.of)
    for linear in parts_of(describe(checkpoint.config).layers[0], LinearSpec):
        matrix = factory.matrix(linear)
        assert isinstance(matrix, ScaledMatrix)
        assert matrix.takes_int8 == takes_int8
        assert matrix.select(torch.arange(3)).is_like(matrix)


@pytest.mark.parametrize(
    "kind", ["fp8 by tensors", "compressed fp8 by channels", "compressed fp8 by blocks"]
)
def test_scales_are_divided_among_ranks(kind: str, tmp_path: Path) -> None:
    """Blocks of 32 divide the 96 columns of the MLP by no rank, so there is one of 64."""
    quantized, plain = write_both(KINDS[kind], tmp_path)
    if "blocks" in kind:
        with pytest.raises(ConfigError, match="scales are those of 32 rows or columns"):
            on_ranks(2, lambda group: logits(quantized, group))
        return
    found, _ = on_ranks(2, lambda group: logits(quantized, group))
    torch.testing.assert_close(found, logits(plain), rtol=1e-4, atol=2e-5)


def damaged(tmp_path: Path, kind: str, name: str, content: torch.Tensor) -> SafetensorsFolder:
    quantized, _ = write_both(KINDS[kind], tmp_path)
    tensors = load_file(quantized / SINGLE)
    tensors[f"model.layers.0.self_attn.{name}"] = content
    save_file(tensors, quantized / SINGLE)
    return SafetensorsFolder(quantized)


def test_a_scale_that_is_not_finite_is_named(tmp_path: Path) -> None:
    bad = torch.full((64, 1), float("nan"))
    found = damaged(tmp_path, "compressed fp8 by channels", "q_proj.weight_scale", bad)
    with pytest.raises(ConfigError, match=r"layers.0.self_attn.q_proj.weight_scale' has scales"):
        Model.load(found)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("fp8 by tensors", "weight_scale", ()),
        ("fp8 by blocks", "weight_scale_inv", (4, 2)),
        ("compressed int4", "weight_scale", (64, 2)),
        ("gptq", "scales", (2, 64)),
        ("awq", "scales", (2, 64)),
    ],
)
def test_a_scale_that_is_infinite_is_named(
    kind: str, name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    found = damaged(tmp_path, kind, f"q_proj.{name}", torch.full(shape, float("inf")))
    with pytest.raises(ConfigError, match=rf"q_proj.{name}' has scales that are not finite"):
        Model.load(found, weights="int8")


def test_a_tensor_of_another_shape_or_type_is_named(tmp_path: Path) -> None:
    wrong = torch.zeros(3, 5, dtype=torch.int32)
    with pytest.raises(ConfigError, match=r"q_proj.qweight \[3, 5\] instead of \[8, 64\]"):
        verify(damaged(tmp_path, "gptq", "q_proj.qweight", wrong))
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"q_proj.weight' has type F32, which is not supported"):
        damaged(tmp_path / "other", "compressed int8", "q_proj.weight", torch.zeros(64, 64))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "hqq"}, "'hqq', which is not supported; supported are awq, compressed_"),
        ({"quant_method": "int8"}, "checkpoints in 'int8' cannot be read"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ({"quant_method": "fp8", "weight_block_size": [0, 4]}, r"blocks of \[0, 4\]"),
        ({"quant_method": "gptq", "bits": 3}, "weights of 3 bits are not supported"),
        ({"quant_method": "gptq", "lm_head": True}, "quantized lm_head"),
        ({"quant_method": "awq", "version": "gemv"}, "version 'gemv'"),
        (compressed("marlin-24", num_bits=4), "4 bits in format 'marlin-24'"),
        ({"quant_method": "modelopt", "quant_algo": "FP4"}, "modelopt with 'FP4' is not supported"),
        (compressed("float-quantized", num_bits=8, strategy="attn_head"), "scales by 'attn_head'"),
        ({"quant_method": "compressed-tensors"}, "has no config_groups"),
        ("fp8", "quantization_config is 'fp8', not an object"),
    ],
)
def test_schemes_that_are_not_known_are_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.of_hf({**SHAPE, "quantization_config": config})


@pytest.mark.parametrize(("name", "bound"), [("fp8", 0.12), ("int8", 0.04), ("int4", 0.4)], ids=str)
def test_plain_checkpoints_are_quantized_while_they_load(name: str, bound: float) -> None:
    """The bound is that of the error of logits, relative to their size: random weights average
    nothing."""
    config = ModelConfig.of_hf(SHAPE)
    plain = logits_of(OnCPU(Model.load(Dummy(config, seed=3)), "paged"), TOKENS)
    source = Dummy(config.loaded_as(name), seed=3)
    found = logits_of(OnCPU(Model.load(source), "paged"), TOKENS)
    assert 0 < (found - plain).norm() / plain.norm() < bound


def test_a_name_that_no_plain_checkpoint_can_have() -> None:
    config = ModelConfig.of_hf(TINY)
    with pytest.raises(ConfigError, match="cannot be quantized to 'gptq'"):
        config.loaded_as("gptq")
    with pytest.raises(ConfigError, match=r"no weight format 'fp9': there are awq, .*fp8"):
        config.loaded_as("fp9")
    quantized = {**SHAPE, "quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(ConfigError, match=r"quantization is 'awq', but the checkpoint has .*'fp8'"):
        ModelConfig.of_hf(quantized, quantization="awq")


def test_errors_of_formats_are_bounded() -> None:
    weight = torch.randn(64, 256) * 0.05
    for matrix, bound in (
        (rows_of_fp8(weight), 0.03),
        (rows_of_int8(weight), 0.008),
        (groups_of_int4(weight, 32), 0.09),
    ):
        assert matrix.shape == (64, 256)
        assert (matrix.dense() - weight).norm() / weight.norm() < bound


KV_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
KV_NAMES = {  # of the scales of keys and of values, by who writes them
    "attention": ("k_scale", "v_scale"),
    "projections": ("k_proj.k_scale", "v_proj.v_scale"),
    "outputs": ("k_proj.output_scale", "v_proj.output_scale"),
}


def with_kv_scales(folder: Path, names: tuple[str, str], keys: float, values: float) -> Path:
    """A copy of a checkpoint with scales for the KV cache."""
    config = json.loads((folder / "config.json").read_text())
    method = config.setdefault("quantization_config", {"quant_method": "compressed-tensors"})
    method["kv_cache_scheme"] = KV_SCHEME
    tensors = load_file(folder / SINGLE)
    for layer in range(config["num_hidden_layers"]):
        for name, scale in zip(names, (keys, values), strict=True):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor([scale])
    there = folder.with_name(f"{folder.name} with scales")
    there.mkdir()
    (there / "config.json").write_text(json.dumps(config))
    save_file(tensors, there / SINGLE)
    return there


def run(folder: Path, group: RankGroup | None = None) -> tuple[torch.Tensor, Sequences]:
    """The logits, and the sequences whose keys and values are cached."""
    sequences = Sequences(OnCPU(Model.load(SafetensorsFolder(folder), group=group), "paged"))
    sequences.add("a", TOKENS)
    return sequences.step(a=len(TOKENS))["a"], sequences


@pytest.mark.parametrize("names", KV_NAMES)
@pytest.mark.parametrize("kind", ["compressed int4", "compressed fp8 by blocks", "plain"])
def test_scales_of_the_kv_cache_change_what_is_cached_alone(
    kind: str, names: str, tmp_path: Path
) -> None:
    """Keys are divided by 4, the power of two above 2.5, and values by 1 / 8."""
    quantized, plain = write_both(KINDS["compressed int4" if kind == "plain" else kind], tmp_path)
    before = plain if kind == "plain" else quantized
    folder = with_kv_scales(before, KV_NAMES[names], 2.5, 0.1)
    verify(SafetensorsFolder(folder))
    (due, whole), (found, scaled) = run(before), run(folder)
    assert torch.equal(found, due)
    keys, values = scaled.kv.content.chunk(2, dim=3)
    assert torch.equal(whole.kv.content, torch.cat((4 * keys, values / 8), dim=3))
    assert keys.any()
    assert values.any()


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ({**KV_SCHEME, "num_bits": 4}, "kv_cache_scheme .*'num_bits': 4.* is not supported"),
        ({**KV_SCHEME, "strategy": "attn_head"}, "'strategy': 'attn_head'"),
        ({**KV_SCHEME, "dynamic": True}, "'dynamic': True"),
    ],
)
def test_other_schemes_of_the_kv_cache_are_refused(scheme: dict[str, Any], message: str) -> None:
    config = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    with pytest.raises(ConfigError, match=message):
        ModelConfig.of_hf({**SHAPE, "quantization_config": config})


@pytest.mark.parametrize("scale", [0.0, float("inf"), float("nan"), -2.0])
def test_a_scale_of_the_kv_cache_must_be_positive(scale: float, tmp_path: Path) -> None:
    _, plain = write_both(KINDS["compressed int4"], tmp_path)
    folder = with_kv_scales(plain, KV_NAMES["attention"], scale, 1.0)
    with pytest.raises(ConfigError, match=r"self_attn.k_scale' is .*; a scale must be positive"):
        Model.load(SafetensorsFolder(folder))
