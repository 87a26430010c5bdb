"""The file adapter_config.json of PEFT."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError, RequestError
from paceline.core.json_file import json_object

NAME = "adapter_config.json"
ALL_LINEAR = "all-linear"
# Fields that change what an adapter computes, the values that change nothing, and what to do.
UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "bias": (("none", None), "biases are not adapted: train with bias='none'"),
    "modules_to_save": ((None, []), "whole modules cannot be replaced: merge the adapter"),
    "use_dora": ((False, None), "DoRA is not supported: merge the adapter"),
    "lora_bias": ((False, None), "biases are not adapted: train without lora_bias"),
    "layer_replication": ((None, []), "layers cannot be repeated: merge the adapter"),
    "trainable_token_indices": ((None, [], {}), "embeddings are not adapted: merge the adapter"),
    "target_parameters": ((None, []), "only modules are adapted, not parameters"),
    "alora_invocation_tokens": ((None, []), "activated LoRA is not supported"),
    "use_qalora": ((False, None), "QALoRA is not supported: merge the adapter"),
}
# These ways to begin change the weights of the model as well.
CHANGES_MODEL = re.compile(r"(pissa.*|olora|corda|loftq)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """Which modules are adapted, and how strongly. A pattern is a name of a module, or its end."""

    path: Path
    rank: int
    alpha: float
    targets: str | list[str]
    excluded: str | list[str] | None
    layers: list[int] | None  # None: all
    use_rslora: bool
    rank_pattern: Mapping[str, int] = field(default_factory=dict[str, int])
    alpha_pattern: Mapping[str, float] = field(default_factory=dict[str, float])

    @staticmethod
    def read(folder: Path) -> "PeftConfig":
        """RequestError if it is missing, malformed, or needs what is not supported."""
        path = folder / NAME
        try:
            raw = json_object(path)
        except ConfigError as error:
            raise RequestError(f"{folder} is no adapter of PEFT: {error}") from None
        if (kind := raw.get("peft_type", "LORA")) != "LORA":
            raise RequestError(f"{path}: peft_type is {kind!r}; only LORA is supported")
        for name, (harmless, advice) in UNSUPPORTED.items():
            if raw.get(name) not in harmless:
                raise RequestError(f"{path}: {name} is {raw[name]!r}; {advice}")
        start = raw.get("init_lora_weights")
        if isinstance(start, str) and CHANGES_MODEL.fullmatch(start):
            raise RequestError(
                f"{path}: init_lora_weights is {start!r}, which changes the model too: convert "
                "the adapter to plain LoRA"
            )
        layers = raw.get("layers_to_transform")
        return PeftConfig(
            path,
            number(path, raw, "r", int),
            number(path, raw, "lora_alpha", (int, float)),
            patterns(path, raw, "target_modules"),
            raw.get("exclude_modules"),
            [layers] if isinstance(layers, int) else layers,
            bool(raw.get("use_rslora")),
            raw.get("rank_pattern") or {},
            raw.get("alpha_pattern") or {},
        )

    def rank_of(self, module: str) -> int:
        return int(by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of the product of an adapter with A and B."""
        rank = self.rank_of(module)
        alpha = by_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / (rank**0.5 if self.use_rslora else rank)

    def adapts(self, module: str) -> bool:
        """Does the configuration name this module?"""
        if self.excluded and matches(self.excluded, module):
            return False
        layer = re.search(r"\.(\d+)\.", module)
        if self.layers is not None and layer and int(layer[1]) not in self.layers:
            return False
        return self.targets == ALL_LINEAR or matches(self.targets, module)


def number(path: Path, raw: Mapping[str, Any], name: str, kind: Any) -> Any:
    value: Any = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
        raise RequestError(f"{path}: {name} is {value!r}; it must be a positive number")
    return value


def patterns(path: Path, raw: Mapping[str, Any], name: str) -> Any:
    value = raw.get(name)
    if not value or not isinstance(value, str | list):
        raise RequestError(
            f"{path}: {name} is {value!r}; it must be a list of modules, a regular expression or "
            f"{ALL_LINEAR!r}"
        )
    return value


def matches(wanted: str | list[str], module: str) -> bool:
    """A list has names or their ends; a text is a regular expression for the whole name."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(module == one or module.endswith(f".{one}") for one in wanted)


def by_pattern(given: Mapping[str, Any], module: str, default: float) -> float:
    """The value of the first pattern that is the end of a name."""
    for pattern, value in given.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default
