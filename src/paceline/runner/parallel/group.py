"""The ranks of a model and their collectives."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from paceline.runner.layers.linear import Linear
from paceline.runner.parallel.divide import Shard

dist: Any = distributed  # the stubs lack the API below torch's global groups
HOST = "127.0.0.1"  # all ranks are on one machine
TIMEOUT = timedelta(minutes=10)  # of one collective; a rank may compile kernels meanwhile


class ExchangeFailed(RuntimeError):
    """Another rank ended or does not answer; its own log has the reason."""


class RankGroup:
    """One rank and its connections to the others. All ranks call the same methods in the same
    order, with tensors of the same shapes.

    The group is not one of torch's global groups, so a process can have several.
    """

    def __init__(self, shard: Shard, store: Any, backend: str = "gloo") -> None:
        """Connect to the other ranks through a store of torch.distributed."""
        self.shard, self.backend = shard, backend
        self._group = _connected(shard, store, backend)

    @staticmethod
    def through_file(shard: Shard, path: str, backend: str) -> "RankGroup":
        """Connect to the other ranks through a common file."""
        return RankGroup(shard, dist.FileStore(path, shard.size), backend)

    @property
    def is_first(self) -> bool:
        """Is this rank 0?"""
        return self.shard.rank == 0

    def sum(self, part: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        self._exchange(self._group.allreduce, [part])
        return part

    def sum_in_order(self, part: Tensor) -> Tensor:
        """Sum over all ranks in their order, in float32 and in place. The order of `sum` depends on
        the size of the tensor."""
        parts = [torch.empty_like(part) for _ in range(self.shard.size)]
        self._exchange(self._group.allgather, [parts], [part])
        total = parts[0].float()
        for one in parts[1:]:
            total += one
        return part.copy_(total)

    def least(self, number: int) -> int:
        """The minimum over all ranks."""
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        found = torch.tensor([number], device=self._device)
        self._exchange(self._group.allreduce, [found], options)
        return int(found)

    def gather(self, columns: Tensor) -> Tensor:
        """Gather the columns of all ranks on rank 0; other ranks get none, [rows, 0]."""
        options = dist.GatherOptions()
        options.rootRank = 0
        part = columns.contiguous()
        if not self.is_first:
            self._exchange(self._group.gather, [], [part], options)
            return columns[:, :0]
        parts = [torch.empty_like(part) for _ in range(self.shard.size)]
        self._exchange(self._group.gather, [parts], [part], options)
        return torch.cat(parts, dim=1)

    def share(self, tensor: Tensor) -> Tensor:
        """Broadcast from rank 0, in place."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._exchange(self._group.broadcast, [tensor], options)
        return tensor

    def abort(self) -> None:
        """Abort collectives that wait for an ended rank; gloo detects these by itself."""
        if self.backend == "nccl":
            self._group.abort()

    def _exchange(self, begin: Callable[..., Any], *arguments: Any) -> None:
        try:
            begin(*arguments).wait()
        except RuntimeError as error:
            raise ExchangeFailed(str(error)) from error

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda" if self.backend == "nccl" else "cpu")


def decides(group: RankGroup | None) -> bool:
    """Does this rank draft, sample and encode images? Rank 0 does so for all ranks."""
    return group is None or group.is_first


def _connected(shard: Shard, store: Any, backend: str) -> Any:
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, shard.rank, shard.size, options)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = TIMEOUT
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=HOST)]
    return dist.ProcessGroupGloo(store, shard.rank, shard.size, options)


class SummedLinear:
    """A row-parallel linear: the sum of all ranks' results."""

    def __init__(self, part: Linear, group: RankGroup) -> None:
        self.part, self._group = part, group

    def around(self, part: Linear) -> "SummedLinear":
        """A linear that sums the results of `part` over all ranks."""
        return SummedLinear(part, self._group)

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.sum(self.part(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class GatheredLinear:
    """A column-parallel linear whose outputs rank 0 gathers; other ranks get none."""

    def __init__(self, part: Linear, group: RankGroup) -> None:
        self._part, self._group = part, group

    def __call__(self, x: Tensor) -> Tensor:
        return self._group.gather(self._part(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class SplitEmbedding:
    """Embeddings of the token ids of one rank; the sum over all ranks is complete.

    After these, the table of rank 0 may have embeddings of images. Their ids follow those of all
    tokens, and the sum distributes them to the other ranks.

        rank 0    | token ids | images |         ids  | rank 0 | rank 1 | images |
        rank 1    | token ids |
    """

    def __init__(self, table: Tensor, group: RankGroup, ids: int) -> None:
        """The first `ids` rows of the table are for token ids."""
        self.table, self._group = table, group  # [ids + images, width]
        self._ids, self._first, self._images = ids, group.shard.rank * ids, group.shard.size * ids

    def __call__(self, tokens: Tensor) -> Tensor:
        ids = tokens - self._first
        is_other = (ids < 0) | (ids >= self._ids)
        if len(self.table) > self._ids:
            is_image = tokens >= self._images
            ids = torch.where(is_image, tokens - self._images + self._ids, ids)
            is_other &= ~is_image
        found = F.embedding(ids.masked_fill_(is_other, 0), self.table)
        return self._group.sum(found.masked_fill_(is_other.unsqueeze(1), 0))
