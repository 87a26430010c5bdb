"""The linears of a model that adapters may change, by the names of their modules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from torch import Tensor

from paceline.core.errors import ConfigError, RequestError
from paceline.core.system.files import json_object
from paceline.runner.layers.factory import LayerFactory, attention_order
from paceline.runner.layers.linear import Linear
from paceline.runner.models.architecture import DecoderSpec, MLPSpec
from paceline.runner.models.linear_spec import LinearSpec
from paceline.runner.models.tensor_spec import Cut, Shape
from paceline.runner.weights.checkpoint import part_of

LinearName = Literal["qkv", "output", "gate_up", "down"]
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class Site:
    """One linear of one layer."""

    layer: int
    linear: LinearName


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTarget:
    """A module: some outputs of a linear.

    A model may keep the factor of the norm before a linear in its weights, and the outputs of
    attention in another order. A rank may have some inputs or some outputs of the module. The
    weights of an adapter follow all that.
    """

    site: Site
    first: int  # of the outputs of the linear
    outputs: int  # of this rank
    shape: Shape  # of the whole module, [outputs, inputs]
    cut: Cut | None  # the part of this rank; None: all of it
    factor: Tensor | None  # [inputs], of the norm before the linear
    order: Tensor | None  # [outputs] of this rank, where they come from
    scale: float  # of the KV cache, folded into the weights

    def own_part(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The part of this rank of the factors [rank, inputs] and [outputs, rank]. The linears of
        ranks that have some inputs each are summed."""
        if self.cut is None:
            return a, b
        return (a, part_of(b, self.cut)) if self.cut.dim == 0 else (part_of(a, self.cut), b)


@dataclass(frozen=True, slots=True)
class SiteShape:
    """The sizes of a linear: outputs of each of its modules, in order."""

    inputs: int
    parts: tuple[int, ...]


class AdapterTargets:
    """All modules of a model that can be adapted: attention, and MLPs without experts."""

    def __init__(self, factory: LayerFactory[Linear], spec: DecoderSpec) -> None:
        self.dtype = factory.dtype
        self.modules: dict[str, ModuleTarget] = {}
        self.sites: dict[Site, SiteShape] = {}
        for layer, one in enumerate(spec.layers):
            if (attention := one.attention) is not None:
                order = attention_order(attention)
                before = factory.folded(attention.norm)
                self._add(factory, Site(layer, "qkv"), attention.qkv, before, order)
                self._add(factory, Site(layer, "output"), attention.output)
            mlp = one.mlp
            if isinstance(mlp, MLPSpec):
                before = factory.folded(mlp.norm)
                self._add(factory, Site(layer, "gate_up"), mlp.gate_up, before)
                self._add(factory, Site(layer, "down"), mlp.down)

    def _add(
        self,
        factory: LayerFactory[Linear],
        site: Site,
        linear: LinearSpec,
        factor: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        first, factor = 0, None if factor is None else factor.cpu()
        for weight, kv_scale in zip(linear.weights, linear.scales, strict=True):
            outputs, _ = weight.shape
            if linear.weights.count(weight) > 1:  # keys that are values too: not adapted
                first += outputs
                continue
            own = None if order is None else order[first : first + outputs] - first
            shape, scale = (weight.whole_shape, weight.cut), factory.scale(kv_scale)
            target = ModuleTarget(site, first, outputs, *shape, factor, own, scale)
            self.modules[weight.name.removesuffix(WEIGHT)] = target
            first += outputs
        parts = tuple(weight.shape[0] for weight in linear.weights)
        self.sites[site] = SiteShape(linear.inputs, parts)


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
        """The factor of the linear of an adapter with A and B."""
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


def patterns(path: Path, raw: Mapping[str, Any], name: str) -> str | list[str]:
    value = raw.get(name)
    if not value or not isinstance(value, str | list):
        raise RequestError(
            f"{path}: {name} is {value!r}; it must be a list of modules, a regular expression or "
            f"{ALL_LINEAR!r}"
        )
    return cast("str | list[str]", value)


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
