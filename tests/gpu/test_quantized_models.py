"""Quantized models on a GPU compute what their numbers do in float32."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.model import Model
from paceline.runner.weights.checkpoint import Checkpoint
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.safetensors import SINGLE, SafetensorsFolder
from tests.conformance.architectures import Case
from tests.gpu.cuda_backend import OnCUDA
from tests.gpu.support import ON_GPU
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.weights.quantized_checkpoints import KINDS, Kind, by_block, write_both

pytestmark = ON_GPU
SIZES = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64}
BLOCKS = Kind(
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    by_block("weight_scale_inv", 128, 128),
)
ALL = {**KINDS, "fp8 by blocks of 128": BLOCKS}
TOKENS = [5, 9, 2, 7, 1, 1, 3, 60, 50, 51, 52]


def on_gpu(checkpoint: Checkpoint, kv: torch.dtype = torch.bfloat16, count: int = 1) -> Tensor:
    """Logits of a model in bf16, with KV of a type."""
    model = CudaModel.load(checkpoint, 64, torch.bfloat16, "cuda")
    return logits_of(OnCUDA(model, "cuda", kv), TOKENS * count)


def on_cpu(checkpoint: Checkpoint, count: int = 1) -> Tensor:
    return logits_of(OnCPU(Model.load(checkpoint, weights="float32"), "paged"), TOKENS * count)


def error(found: Tensor, due: Tensor) -> float:
    return float((found - due).norm() / due.norm())


@pytest.mark.parametrize("count", [1, 5], ids=["few rows", "more rows"])
@pytest.mark.parametrize("name", ALL)
def test_checkpoints(name: str, count: int, tmp_path: Path) -> None:
    """Those in fp8 quantize inputs too."""
    quantized, plain = write_both(ALL[name], tmp_path, **SIZES)
    found = on_gpu(SafetensorsFolder(quantized), count=count)
    bound = 0.1 if "fp8" in name else 0.03
    assert error(found, on_cpu(SafetensorsFolder(plain), count)) < bound


@pytest.mark.parametrize(
    ("architecture", "format", "bound"),
    [
        ("llama", "fp8", 0.1),
        ("llama", "int8", 0.03),
        ("llama", "int4", 0.03),
        ("llama", "modelopt", 0.03),
        ("llama", "benchmarks.coded_formats.Q4K", 0.03),
        ("llama", "benchmarks.coded_formats.Q6K", 0.03),
        ("qwen3moe", "fp8", 0.1),
        ("qwen3moe", "int8", 0.03),
        ("qwen3moe", "int4", 0.03),
        ("qwen3moe", "modelopt", 0.03),
        ("qwen3moe", "benchmarks.coded_formats.Q4K", 0.03),
        ("gptoss", "mxfp4", 0.03),
    ],
)
def test_plain_weights_that_are_quantized_on_load(
    architecture: str, format: str, bound: float
) -> None:
    sizes: dict[str, Any] = {**SIZES, "vocab_size": 64}
    if architecture == "qwen3moe":
        sizes["moe_intermediate_size"] = 128
    config = Case(architecture).config(**sizes).loaded_as(format)
    found = on_gpu(Dummy(config, seed=3))
    assert error(found, on_cpu(Dummy(config, seed=3))) < bound


def test_scales_keep_an_fp8_cache_from_overflow(tmp_path: Path) -> None:
    """Keys and values are 4,096 times as large as usual, which fp8 cannot hold. Queries and
    outputs are smaller, so attention is the same."""
    _, folder = write_both(BLOCKS, tmp_path, **SIZES)
    tensors = load_file(folder / SINGLE)
    for name, tensor in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            tensors[name] = 4096 * tensor
        if name.endswith(("q_proj.weight", "o_proj.weight")):
            tensors[name] = tensor / 4096
    save_file(tensors, folder / SINGLE)
    due = on_cpu(SafetensorsFolder(folder))
    assert error(on_gpu(SafetensorsFolder(folder)), due) < 0.02
    assert not error(on_gpu(SafetensorsFolder(folder), torch.float8_e4m3fn), due) < 0.2
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float"}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": scheme,
    }
    (folder / "config.json").write_text(json.dumps(config))
    for layer in range(config["num_hidden_layers"]):
        for one in "kv":
            name = f"model.layers.{layer}.self_attn.{one}_proj.{one}_scale"
            tensors[name] = torch.tensor(4096.0)
    save_file(tensors, folder / SINGLE)
    assert error(on_gpu(SafetensorsFolder(folder), torch.float8_e4m3fn), due) < 0.05
