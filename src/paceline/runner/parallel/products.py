"""Products and embeddings of which each rank has a part."""

import torch.nn.functional as F
from torch import Tensor

from paceline.runner.layers.linear import Linear
from paceline.runner.parallel.group import RankGroup


class SummedLinear:
    """A product over the inputs of all ranks."""

    def __init__(self, part: Linear, group: RankGroup) -> None:
        self.part, self._group = part, group

    def around(self, part: Linear) -> "SummedLinear":
        """The sum of other parts."""
        return SummedLinear(part, self._group)

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.sum(self.part(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class GatheredLinear:
    """A product whose outputs rank 0 gathers; on other ranks it has none."""

    def __init__(self, part: Linear, group: RankGroup) -> None:
        self._part, self._group = part, group

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.gather(self._part(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class SplitEmbedding:
    """Embeddings of the token ids of one rank; the sum over all ranks has each of them once."""

    def __init__(self, table: Tensor, group: RankGroup) -> None:
        self.table, self._group = table, group  # [own ids, width]
        self._first = group.shard.rank * len(table)

    def __call__(self, tokens: Tensor) -> Tensor:
        own = tokens - self._first
        is_other = (own < 0) | (own >= len(self.table))
        found = F.embedding(own.masked_fill_(is_other, 0), self.table)
        return self._group.sum(found.masked_fill_(is_other.unsqueeze(1), 0))
