"""The products of a model that adapters may change, by the names of their modules."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline.runner.layers.factory import LayerFactory, paired_order
from paceline.runner.models.architecture import (
    AttentionSpec,
    DecoderSpec,
    MLPSpec,
    ProductSpec,
)
from paceline.runner.models.tensor_spec import Cut, Shape
from paceline.runner.weights.checkpoint import part_of

Product = Literal["qkv", "output", "gate_up", "down"]
WEIGHT = ".weight"


@dataclass(frozen=True, slots=True)
class Site:
    """One product of one layer."""

    layer: int
    product: Product


@dataclass(frozen=True, slots=True, eq=False)
class ModuleTarget:
    """A module: some outputs of a product.

    A model may keep the factor of the norm before a product in its weights, and the outputs of
    attention in another order. A rank may have some inputs or some outputs of the module. The
    weights of an adapter follow all that.
    """

    site: Site
    first: int  # of the outputs of the product
    outputs: int  # of this rank
    shape: Shape  # of the whole module, [outputs, inputs]
    cut: Cut | None  # the part of this rank; None: all of it
    factor: Tensor | None  # [inputs], of the norm before the product
    order: Tensor | None  # [outputs] of this rank, where they come from

    def own_part(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The part of this rank of the factors [rank, inputs] and [outputs, rank]. The products of
        ranks that have some inputs each are summed."""
        if self.cut is None:
            return a, b
        return (a, part_of(b, self.cut)) if self.cut.dim == 0 else (part_of(a, self.cut), b)


@dataclass(frozen=True, slots=True)
class SiteShape:
    """The sizes of a product: outputs of each of its modules, in order."""

    inputs: int
    parts: tuple[int, ...]


class AdapterTargets:
    """All modules of a model that can be adapted: attention, and MLPs that are no mixtures."""

    def __init__(self, factory: LayerFactory, spec: DecoderSpec) -> None:
        self.dtype = factory.dtype
        self.modules: dict[str, ModuleTarget] = {}
        self.sites: dict[Site, SiteShape] = {}
        for layer, one in enumerate(spec.layers):
            attention, mlp = one.attention, one.mlp
            order = attention_order(attention)
            before = factory.factor(attention.norm).cpu()
            self._add(Site(layer, "qkv"), attention.qkv, before, order)
            self._add(Site(layer, "output"), attention.output)
            if isinstance(mlp, MLPSpec):
                self._add(Site(layer, "gate_up"), mlp.gate_up, factory.factor(mlp.norm).cpu())
                self._add(Site(layer, "down"), mlp.down)

    def _add(
        self,
        site: Site,
        product: ProductSpec,
        factor: Tensor | None = None,
        order: Tensor | None = None,
    ) -> None:
        first = 0
        for weight in product.weights:
            outputs, _ = weight.shape
            own = None if order is None else order[first : first + outputs] - first
            shape = weight.whole_shape, weight.cut
            target = ModuleTarget(site, first, outputs, *shape, factor, own)
            self.modules[weight.name.removesuffix(WEIGHT)] = target
            first += outputs
        parts = tuple(weight.shape[0] for weight in product.weights)
        self.sites[site] = SiteShape(product.inputs, parts)


def attention_order(attention: AttentionSpec) -> Tensor | None:
    """Where the outputs of queries, keys and values come from, [outputs]; None: as they are."""
    if attention.rotary_dim == attention.head_dim:
        return None
    heads = torch.arange(attention.qkv.outputs).view(-1, attention.head_dim)
    turned = heads[: attention.heads + attention.kv_heads]
    turned.copy_(turned[:, paired_order(attention)])
    return heads.flatten()
