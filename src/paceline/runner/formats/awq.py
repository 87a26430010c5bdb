"""`quant_method: awq`: 4 bits in groups of inputs."""

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.weights.integer_format import Grouping, WordsOfInputs
from paceline.runner.weights.weight_format import Quantization, plain_rules

BITS = 4
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word has the code of each of its outputs


class Awq(WordsOfInputs):
    """Eight outputs share a word."""

    def __init__(self, grouping: Grouping) -> None:
        super().__init__("awq", grouping, ORDER, is_along=False)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise ConfigError(f"awq of version {version!r} is not supported; gemm is")
        bits = int(config.get("bits", config.get("w_bit", 4)))
        if bits != BITS:
            raise ConfigError(f"awq of {bits} bits is not supported; {BITS} is")
        size = int(config.get("group_size", config.get("q_group_size", 128)))
        rules = plain_rules(config.get("modules_to_not_convert"))
        return Quantization(cls(Grouping(bits, size, has_zero=True)), rules)
