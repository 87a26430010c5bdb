"""Products and embeddings of which each rank has a part."""

import torch
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
    """Embeddings of the token ids of one rank; the sum over all ranks has each of them once.

    The table of rank 0 may go on with embeddings of images. Their ids are behind those of all
    tokens, and the sum gives them to the other ranks.

        rank 0    | token ids | images |         ids  | rank 0 | rank 1 | images |
        rank 1    | token ids |
    """

    def __init__(self, table: Tensor, group: RankGroup, ids: int) -> None:
        """The first `ids` rows of the table are for token ids."""
        self.table, self._group = table, group  # [ids + images, width]
        self._ids, self._first, self._images = ids, group.shard.rank * ids, group.shard.size * ids

    def __call__(self, tokens: Tensor) -> Tensor:
        own = tokens - self._first
        is_other = (own < 0) | (own >= self._ids)
        if len(self.table) > self._ids:
            is_image = tokens >= self._images
            own = torch.where(is_image, tokens - self._images + self._ids, own)
            is_other &= ~is_image
        found = F.embedding(own.masked_fill_(is_other, 0), self.table)
        return self._group.sum(found.masked_fill_(is_other.unsqueeze(1), 0))
