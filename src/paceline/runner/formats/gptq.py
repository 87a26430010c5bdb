"""`quant_method: gptq`: 4 or 8 bits in groups of inputs, with or without act order."""

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.runner.weights.integer_format import Grouping, WordsOfInputs
from paceline.runner.weights.weight_format import Quantization, plain_rules


class Gptq(WordsOfInputs):
    """Eight inputs share a word. Files of the first version store zeros less one."""

    def __init__(self, grouping: Grouping, past: int) -> None:
        super().__init__("gptq", grouping, past=past, has_order=True)

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Quantization:
        if config.get("lm_head"):
            raise ConfigError("gptq with a quantized lm_head is not supported")
        if dynamic := config.get("dynamic"):
            raise ConfigError(f"gptq with dynamic = {dynamic!r} is not supported")
        past = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
        size = int(config.get("group_size", 128))
        grouping = Grouping(int(config.get("bits", 4)), size, has_zero=True)
        return Quantization(cls(grouping, past), plain_rules(config.get("modules_to_not_convert")))
