"""`quant_method: fp8`: codes of 8 bits with scales of tensors, or of blocks as DeepSeek has."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import rows_of_fp8
from paceline.runner.weights.scaled_format import ScaledFormat, block_in
from paceline.runner.weights.weight_format import Quantization, plain_rules

METHOD = "fp8"


class Fp8(ScaledFormat):
    """Of a plain checkpoint, each output gets a scale."""

    name: ClassVar[str] = METHOD

    def __init__(self, **options: Any) -> None:
        super().__init__(METHOD, **options)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        scheme = config.get("activation_scheme", "dynamic")
        if scheme not in ("dynamic", "static"):
            raise ConfigError(f"fp8 with activation_scheme {scheme!r} is not supported")
        kind = config.get("fmt", "e4m3")
        if kind not in ("e4m3", "float8_e4m3fn"):
            raise ConfigError(f"fp8 with fmt {kind!r} is not supported; e4m3 is")
        rules = plain_rules(config.get("modules_to_not_convert") or config.get("ignored_layers"))
        given = config.get("weight_block_size")
        if given is None:
            input_scale = "input_scale" if scheme == "static" else ""
            return Quantization(cls(scales="tensor", input_scale=input_scale), rules)
        scale = "weight_scale_inv"
        return Quantization(cls(scales="block", scale_name=scale, block=block_in(given)), rules)

    def quantize(self, weight: Tensor) -> Matrix:
        return rows_of_fp8(weight)
