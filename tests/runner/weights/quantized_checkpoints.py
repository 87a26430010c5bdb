"""Checkpoints as published models have them, and the same numbers as a plain checkpoint.

They are written by the rules of each format, with code that shares nothing with the readers.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.safetensors import SINGLE
from tests.runner.support import TINY

SHAPE = {**TINY, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 64}
FP8, GROUP = torch.float8_e4m3fn, 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that each place of a word has

# Tensors of a module by their endings, and the weight that they stand for.
Written = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class Kind:
    """A way to store weights [outputs, inputs], and what the config says of it."""

    config: dict[str, Any]
    write: Callable[[Tensor], Written]


def codes_of(weight: Tensor, scale: Tensor) -> Tensor:
    return (weight / scale).clamp(-448, 448).to(FP8)


def by_tensor(weight: Tensor) -> Written:
    scale = weight.abs().max() / 448
    codes = codes_of(weight, scale)
    found = {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor([0.5])}
    return found, codes.float() * scale


def by_channel(weight: Tensor) -> Written:
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    codes = codes_of(weight, scale)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


def by_channel_int8(weight: Tensor) -> Written:
    scale = (weight.abs().amax(dim=1, keepdim=True) / 127).bfloat16()
    codes = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale.float()


def by_block(name: str, rows: int, columns: int) -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        outputs, inputs = weight.shape
        scale = torch.empty(-(-outputs // rows), -(-inputs // columns))
        found = torch.empty_like(weight)
        codes = torch.empty(outputs, inputs, dtype=FP8)
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scale[i, j] = weight[at].abs().max() / 448
                codes[at] = codes_of(weight[at], scale[i, j])
                found[at] = codes[at].float() * scale[i, j]
        return {"weight": codes, name: scale}, found

    return write


def grouped(weight: Tensor, bits: int, group: Tensor, is_symmetric: bool) -> list[Tensor]:
    """Codes [outputs, inputs], scales and zeros [outputs, groups], by the group of each input.
    Groups have one size."""
    most = (1 << bits) - 1
    ordered = of_inputs(weight, group.argsort(stable=True))
    groups = ordered.view(len(weight), int(group.max()) + 1, -1)
    low, high = groups.aminmax(dim=2)
    if is_symmetric:
        scale = torch.maximum(low.abs(), high.abs()) / (most // 2)
        zero = torch.full_like(scale, 1 << bits - 1)
    else:
        scale = (high.clamp(min=0) - low.clamp(max=0)) / most
        zero = (-low.clamp(max=0) / scale).round().clamp(1, most)
    scale = scale.half().float()
    codes = (weight / of_inputs(scale, group) + of_inputs(zero, group)).round().clamp(0, most)
    return [codes.int(), scale, zero.int()]


def of_inputs(groups: Tensor, group: Tensor) -> Tensor:
    """What each input has of its group."""
    return groups.index_select(1, group)


def value(codes: Tensor, scale: Tensor, zero: Tensor, group: Tensor) -> Tensor:
    return (codes - of_inputs(zero, group)).float() * of_inputs(scale, group)


def words(codes: Tensor, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """Words of 32 bits along the first dimension."""
    per = 32 // bits
    rows = codes.view(-1, per, *codes.shape[1:])
    total = torch.zeros_like(rows[:, 0], dtype=torch.int32)
    for place, number in enumerate(order or range(per)):
        total |= rows[:, number].int() << bits * place
    return total


def groups_of(inputs: int, size: int = GROUP) -> Tensor:
    return torch.arange(inputs) // (size if size > 0 else inputs)


def gptq(bits: int, act_order: bool = False, past: int = 1) -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        group = groups_of(weight.shape[1])
        if act_order:
            group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(1))]
        codes, scale, zero = grouped(weight, bits, group, is_symmetric=False)
        found = {
            "qweight": words(codes.t(), bits),
            "qzeros": words(zero - past, bits).t().contiguous(),
            "scales": scale.half().t().contiguous(),
            "g_idx": group.int(),
        }
        return found, value(codes, scale, zero, group)

    return write


def awq(weight: Tensor) -> Written:
    group = groups_of(weight.shape[1])
    codes, scale, zero = grouped(weight, 4, group, is_symmetric=False)
    found = {
        "qweight": words(codes, 4, AWQ_ORDER).t().contiguous(),
        "qzeros": words(zero, 4, AWQ_ORDER).t().contiguous(),
        "scales": scale.half().t().contiguous(),
    }
    return found, value(codes, scale, zero, group)


def packed(
    bits: int, size: int = GROUP, is_symmetric: bool = True, act_order: bool = False
) -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        group = groups_of(weight.shape[1], size)
        if act_order:
            group = group.flip(0)
        codes, scale, zero = grouped(weight, bits, group, is_symmetric)
        found = {
            "weight_packed": words(codes.t(), bits).t().contiguous(),
            "weight_scale": scale.bfloat16().float() if is_symmetric else scale,
            "weight_shape": torch.tensor(weight.shape),
        }
        scale = found["weight_scale"]
        if not is_symmetric:
            found["weight_zero_point"] = words(zero, bits)
        if act_order:
            found["weight_g_idx"] = group.int()
        return found, value(codes, scale, zero, group)

    return write


def nvfp4(is_divisor: bool) -> Callable[[Tensor], Written]:
    def write(weight: Tensor) -> Written:
        groups = weight.view(len(weight), -1, 16)
        whole = weight.abs().max() / (6 * 448)
        scale = (groups.abs().amax(dim=2) / 6 / whole).to(FP8)
        step = scale.float().unsqueeze(2) * whole
        sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        near = ((groups / step).abs().unsqueeze(3) - sizes).abs().argmin(dim=3)
        codes = (near + 8 * (groups < 0)).flatten(1).byte()
        packed = codes[:, ::2] + 16 * codes[:, 1::2]
        value = (sizes[near] * groups.sign() * step).flatten(1)
        if is_divisor:
            names = {"weight_packed": packed, "weight_global_scale": 1 / whole.view(1)}
            return {**names, "weight_scale": scale, "input_global_scale": torch.ones(1)}, value
        scales = {"weight_scale": scale, "weight_scale_2": whole, "input_scale": torch.tensor(1.0)}
        return {"weight": packed, **scales}, value

    return write


def compressed(kind: str, inputs: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*layers.1.mlp.*"],
    }


EIGHT = {"num_bits": 8, "type": "float", "symmetric": True}
FOUR = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
STATIC = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
FLOAT = "float-quantized"
KINDS = {
    "fp8 by tensors": Kind({"quant_method": "fp8", "activation_scheme": "static"}, by_tensor),
    "fp8 by blocks": Kind(
        {
            "quant_method": "fp8",
            "weight_block_size": [16, 48],
            "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"],
        },
        by_block("weight_scale_inv", 16, 48),
    ),
    "compressed fp8 by channels": Kind(
        compressed(FLOAT, {"dynamic": True, "strategy": "token"}, **EIGHT, strategy="channel"),
        by_channel,
    ),
    "compressed fp8 by tensors": Kind(
        compressed(FLOAT, STATIC, **EIGHT, strategy="tensor"), by_tensor
    ),
    "compressed fp8 by blocks": Kind(
        compressed(FLOAT, **EIGHT, strategy="block", block_structure=[32, 32]),
        by_block("weight_scale", 32, 32),
    ),
    "compressed int8": Kind(
        compressed("int-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        by_channel_int8,
    ),
    "compressed int8 and inputs": Kind(
        compressed(
            "int-quantized",
            {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
            num_bits=8,
            type="int",
            symmetric=True,
            strategy="channel",
        ),
        by_channel_int8,
    ),
    "compressed int4": Kind(compressed("pack-quantized", **FOUR), packed(4)),
    "compressed int4 with zeros": Kind(
        compressed("pack-quantized", **{**FOUR, "symmetric": False}), packed(4, is_symmetric=False)
    ),
    "compressed int4 with act order": Kind(
        compressed("pack-quantized", **FOUR, actorder="group"), packed(4, act_order=True)
    ),
    "compressed int8 weights": Kind(
        compressed("pack-quantized", num_bits=8, type="int", symmetric=True, strategy="channel"),
        packed(8, -1),
    ),
    "gptq": Kind({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq(4)),
    "gptq with act order": Kind(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}, gptq(4, True)
    ),
    "gptq of 8 bits": Kind({"quant_method": "gptq", "bits": 8, "group_size": GROUP}, gptq(8)),
    "gptq of version 2": Kind(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "checkpoint_format": "gptq_v2",
        },
        gptq(4, past=0),
    ),
    "modelopt fp8": Kind(
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*layers.1.mlp*"]},
        by_tensor,
    ),
    "nvfp4": Kind(
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "ignore": ["lm_head", "model.layers.1.mlp*"],
        },
        nvfp4(is_divisor=False),
    ),
    "compressed nvfp4": Kind(
        compressed(
            "nvfp4-pack-quantized",
            {**NVFP4, "dynamic": "local"},
            **NVFP4,
        ),
        nvfp4(is_divisor=True),
    ),
    "awq": Kind({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
}


QUANTIZED = ("_proj.weight", "_proj_with_mqa.weight", "_proj_qkvz.weight")


def is_quantized(kind: Kind, name: str) -> bool:
    is_left_out = (
        "layers.1.mlp" in name and {"ignore", "modules_to_not_convert"} & kind.config.keys()
    )
    return name.endswith(QUANTIZED) and not is_left_out


def write_both(kind: Kind, folder: Path, seed: int = 3, **sizes: Any) -> tuple[Path, Path]:
    """A checkpoint in the format, and a plain one with the same numbers."""
    shape = SHAPE | sizes
    plain: dict[str, Tensor] = {}
    quantized: dict[str, Tensor] = {}
    source = Dummy(ModelConfig.of_hf(shape), seed=seed)
    for name in source.shapes:
        weight = source.read(name)
        if not is_quantized(kind, name):
            plain[name] = quantized[name] = weight
            continue
        found, plain[name] = kind.write(weight)
        stem = name.removesuffix("weight")
        quantized |= {stem + ending: tensor for ending, tensor in found.items()}
    folders = folder / "quantized", folder / "plain"
    configs = {**shape, "quantization_config": kind.config}, shape
    for there, config, tensors in zip(folders, configs, (quantized, plain), strict=True):
        there.mkdir()
        (there / "config.json").write_text(json.dumps(config))
        save_file({name: one.contiguous() for name, one in tensors.items()}, there / SINGLE)
    return folders
