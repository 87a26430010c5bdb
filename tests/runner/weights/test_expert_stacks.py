"""Experts of gpt-oss in files: as transformers saves them is in `tests/golden`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.models.describe import describe
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.expert_stacks import dequantised
from paceline.runner.weights.safetensors import SINGLE, SafetensorsFolder
from tests.conformance.architectures import Case

CASE = Case("gptoss")
MXFP4 = {"quantization_config": {"quant_method": "mxfp4"}}


def folder_of(path: Path, tensors: dict[str, Tensor], **changes: Any) -> Path:
    entries = {**CASE.entries, "hidden_size": 32, "intermediate_size": 64, **changes}
    (path / "config.json").write_text(json.dumps(entries))
    save_file(tensors, path / SINGLE)
    return path


def packed_tensors() -> dict[str, Tensor]:
    """A model whose experts are in MXFP4, in random bytes."""
    config = CASE.config(hidden_size=32, intermediate_size=64)
    dummy = Dummy(config)
    found: dict[str, Tensor] = {}
    for tensor in describe(config).tensors:
        form = tensor.stack
        if form is None:
            found[tensor.name] = dummy.read(tensor.name)
        elif form.name.endswith("_bias"):
            found[form.name] = torch.randn(4, tensor.shape[0] * form.every)
        else:
            rows, groups = tensor.shape[0] * form.every, tensor.shape[1] // 32
            found[f"{form.name}_blocks"] = torch.randint(256, (4, rows, groups, 16)).byte()
            found[f"{form.name}_scales"] = torch.randint(120, 130, (4, rows, groups)).byte()
    return found


def test_experts_in_mxfp4_are_decoded(tmp_path: Path) -> None:
    tensors = packed_tensors()
    found = SafetensorsFolder(folder_of(tmp_path, tensors, **MXFP4))
    verify(found)
    assert found.is_quantized
    stack = "model.layers.1.mlp.experts.gate_up_proj"
    whole = dequantised(tensors[f"{stack}_blocks"], tensors[f"{stack}_scales"])
    up = found.read("model.layers.1.mlp.experts.2.up_proj.weight")
    assert torch.equal(up, whole[2, 1::2])
    bias = found.read("model.layers.1.mlp.experts.3.gate_proj.bias")
    assert torch.equal(bias, tensors[f"{stack}_bias"][3, ::2])


def test_other_quantizations_and_numbers_of_experts_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, packed_tensors(), quantization_config={"quant_method": "nvfp4"})
    with pytest.raises(ConfigError, match="quantization_config"):
        SafetensorsFolder(folder)
    folder = folder_of(tmp_path, packed_tensors(), num_local_experts=5, **MXFP4)
    with pytest.raises(ConfigError, match="missing"):
        verify(SafetensorsFolder(folder))
