"""The rows of a step by adapter, and products that add what the adapter of each row adds."""

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.runner.adapters.targets import Site
from paceline.runner.adapters.weights import AdapterWeights
from paceline.runner.layers.linear import Linear
from paceline.runner.parallel.products import SummedLinear


class AdaptedRows:
    """Positions grouped by adapter, so that each adapter has one product for all of its rows.

    It is set before the products of a step, and again when a step goes on with some positions.
    """

    def __init__(self, adapters: Mapping[int, AdapterWeights]) -> None:
        """`adapters` has the weights by place."""
        self._adapters = adapters
        self._groups: list[tuple[AdapterWeights, Tensor]] = []

    def set(self, places: Tensor) -> None:
        """The place of the adapter of each position, [positions]."""
        own = [
            (weights, (places == place).nonzero()[:, 0])
            for place, weights in self._adapters.items()
        ]
        self._groups = [(weights, index) for weights, index in own if len(index)]

    def add(self, out: Tensor, x: Tensor, site: Site) -> None:
        """out += what the adapters add to a product of x."""
        for weights, index in self._groups:
            parts = weights.sites.get(site)
            if parts is None:
                continue
            own = x[index]
            for part in parts:
                found = torch.mm(torch.mm(own, part.a), part.b)
                out[:, part.first : part.end].index_add_(0, index, found)


def adapted(product: Linear, rows: AdaptedRows, site: Site) -> Linear:
    """A product with adapters. Ranks that sum their products sum those of adapters with them."""
    if isinstance(product, SummedLinear):
        return product.around(AdaptedLinear(product.part, rows, site))
    return AdaptedLinear(product, rows, site)


class AdaptedLinear:
    """A product of the model, and what the adapters of its rows add."""

    def __init__(self, product: Linear, rows: AdaptedRows, site: Site) -> None:
        self._product, self._rows, self._site = product, rows, site

    def __call__(self, x: Tensor) -> Tensor:
        out = self._product(x)
        self._rows.add(out, x, self._site)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._product.add_to(total, x)
        self._rows.add(total, x, self._site)
