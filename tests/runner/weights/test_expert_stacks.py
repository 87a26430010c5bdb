"""Experts of gpt-oss in files: as transformers saves them is in `tests/golden`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear_choice import choose
from paceline.runner.layers.native_linear import NativeLinear
from paceline.runner.models.architecture import parts_of
from paceline.runner.models.describe import describe
from paceline.runner.models.experts import ExpertSpec
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.weights.checkpoint import verify
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.fp4 import Mxfp4Matrix
from paceline.runner.weights.safetensors import SINGLE, SafetensorsFolder
from tests.conformance.architectures import Case
from tests.runner.parallel.ranks import on_ranks
from tests.runner.sequences import OnCPU, logits_of

CASE = Case("gptoss")
SHAPE = {"hidden_size": 32, "vocab_size": 100}
MXFP4: dict[str, Any] = {
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
}
SIZES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
NUMBERS = torch.tensor([*SIZES, *(-size for size in SIZES)])
TOKENS = [5, 9, 2, 7, 1, 1, 3, 60, 50, 51, 52]


def folder_of(path: Path, tensors: dict[str, Tensor], inner: int = 64, **changes: Any) -> Path:
    path.mkdir(exist_ok=True)
    entries = {**CASE.entries, **SHAPE, "intermediate_size": inner, **changes}
    (path / "config.json").write_text(json.dumps(entries))
    save_file({name: one.contiguous() for name, one in tensors.items()}, path / SINGLE)
    return path


def packed_tensors(inner: int = 64) -> dict[str, Tensor]:
    """A model whose experts are in MXFP4, in random bytes."""
    config = CASE.config(**SHAPE, intermediate_size=inner)
    dummy = Dummy(config)
    found: dict[str, Tensor] = {}
    for tensor in describe(config).tensors:
        form = tensor.stack
        if form is None:
            found[tensor.name] = dummy.read(tensor.name)
        elif form.name in found or f"{form.name}_blocks" in found:
            continue
        elif form.name.endswith("_bias"):
            found[form.name] = torch.randn(4, tensor.shape[0] * form.every)
        else:
            rows, groups = tensor.shape[0] * form.every, tensor.shape[1] // 32
            found[f"{form.name}_blocks"] = torch.randint(256, (4, rows, groups, 16)).byte()
            found[f"{form.name}_scales"] = torch.randint(118, 124, (4, rows, groups)).byte()
    return found


def decoded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same numbers as plain tensors, [experts, inputs, outputs]."""
    found = {name: one for name, one in tensors.items() if one.dtype != torch.uint8}
    for name, blocks in tensors.items():
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            numbers = torch.stack((NUMBERS[(blocks & 15).int()], NUMBERS[(blocks >> 4).int()]), -1)
            scales = 2.0 ** (tensors[f"{stem}_scales"].float() - 127)
            found[stem] = (numbers.flatten(-2) * scales.unsqueeze(-1)).flatten(-2).transpose(1, 2)
    return found


def logits(folder: Path, group: RankGroup | None = None, **options: Any) -> Tensor:
    model = Model.load(SafetensorsFolder(folder), group=group, **options)
    return logits_of(OnCPU(model, "paged"), TOKENS)


def test_experts_stay_packed_and_have_the_numbers_of_plain_ones(tmp_path: Path) -> None:
    tensors = packed_tensors()
    found = SafetensorsFolder(folder_of(tmp_path / "packed", tensors, **MXFP4))
    plain = SafetensorsFolder(folder_of(tmp_path / "plain", decoded(tensors)))
    verify(found)
    assert (found.is_quantized, plain.is_quantized) == (True, False)
    ours, theirs = (
        LayerFactory(one, torch.float32, "cpu", NativeLinear.of) for one in (found, plain)
    )
    experts = [list(parts_of(describe(one.config), ExpertSpec)) for one in (found, plain)]
    for own, other in zip(*experts, strict=True):
        for linear, due in ((own.gate_up, other.gate_up), (own.down, other.down)):
            matrix = ours.matrix(linear)
            assert isinstance(matrix, Mxfp4Matrix)
            assert torch.equal(matrix.dense(), theirs.matrix(due).dense())
            assert ours.linear(linear).matrix.bits == 4


def test_torch_computes_what_the_c_decoder_does_not(tmp_path: Path) -> None:
    """Sinks and clamps are those of torch; linears are those of the kernels for integers."""
    tensors = packed_tensors()
    packed = folder_of(tmp_path / "packed", tensors, **MXFP4)
    choice = choose("auto", SafetensorsFolder(packed))
    assert choice.is_native
    assert "torch computes the rest: it does not implement layers.attention.sinks" in choice.reason
    due = logits(folder_of(tmp_path / "plain", decoded(tensors)))
    torch.testing.assert_close(logits(packed), due, rtol=1e-5, atol=1e-5)
    assert (logits(packed, weights="int8") - due).norm() < 0.05 * due.norm()


@pytest.mark.parametrize("inner", [64, 96], ids=["whole groups", "parts of groups"])
def test_experts_are_divided_among_ranks(inner: int, tmp_path: Path) -> None:
    packed = folder_of(tmp_path, packed_tensors(inner), inner, **MXFP4)
    found, _ = on_ranks(2, lambda group: logits(packed, group))
    torch.testing.assert_close(found, logits(packed), rtol=1e-4, atol=1e-4)


def test_other_quantizations_and_numbers_of_experts_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, packed_tensors(), quantization_config={"quant_method": "nvfp5"})
    with pytest.raises(ConfigError, match="quantization_config"):
        SafetensorsFolder(folder)
    folder = folder_of(tmp_path, packed_tensors(), num_local_experts=5, **MXFP4)
    with pytest.raises(ConfigError, match="missing"):
        verify(SafetensorsFolder(folder))
    wrong = {**packed_tensors(), "model.layers.0.mlp.experts.down_proj_scales": torch.zeros(4, 3)}
    with pytest.raises(ConfigError, match="down_proj_scales' has type F32, which is not supported"):
        SafetensorsFolder(folder_of(tmp_path, wrong, **MXFP4))


def test_an_exponent_that_is_no_number_is_named(tmp_path: Path) -> None:
    tensors = packed_tensors()
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 0] = 255
    found = SafetensorsFolder(folder_of(tmp_path, tensors, **MXFP4))
    with pytest.raises(ConfigError, match=r"layers.1.mlp.experts.2.down_proj.*not finite"):
        Model.load(found, weights="int8")


def test_experts_in_tensors_of_their_own_are_refused(tmp_path: Path) -> None:
    config = {**Case("qwen3moe").entries, **MXFP4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="mxfp4 checkpoints are read if one tensor has all"):
        SafetensorsFolder(tmp_path)
