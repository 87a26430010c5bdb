"""`quant_method: compressed-tensors`: 8 bits with scales, and 4 or 8 bits that are packed."""

import re
from collections.abc import Mapping
from typing import Any, cast

from paceline.core.errors import ConfigError
from paceline.runner.formats.modelopt import Modelopt
from paceline.runner.models.tensor_spec import TensorSpec
from paceline.runner.weights.integer_format import Grouping, PackedRows
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.scaled_format import ScaledFormat, block_in
from paceline.runner.weights.weight_format import Quantization, Read, WeightFormat, has_kv_scales

NAME = "compressed-tensors"
CODES = {"float-quantized": ("F8_E4M3",), "int-quantized": ("I8",)}
BITS = 8
STRATEGIES = ("tensor", "channel", "block")
NVFP4 = "nvfp4-pack-quantized"
KNOWN = (*CODES, "naive-quantized", "pack-quantized", NVFP4)


class CompressedTensors(WeightFormat):
    """Reads a config, which names the format of each group of modules."""

    name = NAME

    def read(self, weight: TensorSpec, read: Read) -> Matrix:
        raise ConfigError(f"{NAME} checkpoints name the formats of their weights")

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        groups = cast("dict[str, dict[str, Any]]", config.get("config_groups") or {})
        has_scales = has_kv_scales(NAME, config)
        if not groups and not has_scales:
            raise ConfigError(f"{NAME}: quantization_config has no config_groups")
        rules: list[tuple[str, WeightFormat | None]] = [
            (pattern(name), None) for name in config.get("ignore") or ()
        ]
        default: WeightFormat | None = None
        for name, group in groups.items():
            format = format_of(group, str(group.get("format") or config.get("format")), name)
            for target in group.get("targets") or ():
                if target == "Linear":
                    default = format
                else:
                    rules.append((pattern(target), format))
        return Quantization(default, tuple(rules), has_scales)


def pattern(name: str) -> str:
    """The pattern of a target: a regular expression, or the name of a module."""
    return name.removeprefix("re:") if name.startswith("re:") else re.escape(name)


def format_of(group: Mapping[str, Any], kind: str, name: str) -> WeightFormat:
    weights = cast("dict[str, Any]", group.get("weights") or {})
    bits, number = int(weights.get("num_bits", 8)), str(weights.get("type", "int"))
    strategy = str(weights.get("strategy") or "tensor")
    if kind == "naive-quantized":
        kind = "float-quantized" if number == "float" else "int-quantized"
    if kind == NVFP4:
        is_static = bool(group.get("input_activations"))
        codes, whole = "weight_packed", "weight_global_scale"
        return Modelopt(codes, whole, True, "input_global_scale" if is_static else "")
    if kind == "pack-quantized":
        if number != "int" or strategy not in ("group", "channel"):
            raise ConfigError(f"{NAME}: {name} is pack-quantized {number} by {strategy!r}")
        size = int(weights.get("group_size") or -1) if strategy == "group" else -1
        grouping = Grouping(bits, size, has_zero=not weights.get("symmetric", True))
        return PackedRows(grouping, has_order=weights.get("actorder") in ("group", True))
    if kind not in CODES or bits != BITS:
        raise ConfigError(
            f"{NAME}: {name} has {bits} bits in format {kind!r}, which is not supported; "
            f"supported are {', '.join(KNOWN)}"
        )
    if not weights.get("symmetric", True):
        raise ConfigError(f"{NAME}: {name} has {kind} weights with zeros, which is not supported")
    if strategy not in ("tensor", "channel", "block"):
        raise ConfigError(
            f"{NAME}: {name} has scales by {strategy!r}; tensor, channel and block are supported"
        )
    inputs = cast("dict[str, Any]", group.get("input_activations") or {})
    is_static = bool(inputs) and inputs.get("dynamic") is False
    block = block_in(weights.get("block_structure") or [128, 128])
    return ScaledFormat(
        f"{NAME} {kind}",
        CODES[kind],
        "weight_scale",
        strategy,
        block,
        "input_scale" if is_static else "",
        int(inputs.get("num_bits") or 16),
    )
