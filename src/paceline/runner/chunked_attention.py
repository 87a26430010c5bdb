"""Attention in chunks: a position reads those of its chunk, up to itself."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from paceline.runner.attention_backend import Attention, Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.tensors import to_ints


class ChunkedStep(Prepared):
    """Attention of a step by any backend, where windows are chunks."""

    def __init__(self, attention: Attention, batch: Batch, kv: KVStore, chunk: int) -> None:
        self._whole = attention.prepare(batch, kv)
        self._chunks = attention.prepare(cut(batch, chunk, kv.block_size), kv)

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        step = self._whole if window is None else self._chunks
        return step.attend(query, layer, None, scale, cap, sinks)


class InChunks(Prepared):
    """Attention on a GPU, whose kernels know chunks."""

    def __init__(self, attention: Prepared) -> None:
        self._attention, self.rotates = attention, attention.rotates

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        chunk = None if window is None else -window
        return self._attention.attend(query, layer, chunk, scale, cap, sinks)

    def attend_new(
        self,
        qkv: Tensor,
        rotation: Any,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        chunk = None if window is None else -window
        return self._attention.attend_new(qkv, rotation, layer, chunk, scale, cap, sinks)


def cut(batch: Batch, chunk: int, block_size: int) -> Batch:
    """The batch with a row for each chunk that a row has positions of. A row sees its own chunk as
    a whole sequence, so positions and block tables begin there.

        chunks of 4     0  1  2  3 | 4  5  6  7 | 8  9
        before                        5  6  7     8  9     a row of 5 positions, context 10
        after                         1  2  3              a row of 3 positions, context 4
                                                  0  1     a row of 2 positions, context 2
    """
    assert chunk % block_size == 0, "a chunk begins within a block"
    starts, contexts = to_ints(batch.row_start), to_ints(batch.context)
    owners: list[int] = []
    begins: list[int] = []  # of chunks, in their sequences
    counts: list[int] = []
    found: list[int] = []  # contexts
    for row, context in enumerate(contexts):
        at = context - (starts[row + 1] - starts[row])
        while at < context:
            begin = at // chunk * chunk
            end = min(begin + chunk, context)
            owners.append(row)
            begins.append(begin)
            counts.append(end - at)
            found.append(end - begin)
            at = end
    device, groups = batch.context.device, batch.block_table
    owner, begin, count, context = torch.tensor((owners, begins, counts, found), device=device)
    blocks = torch.arange(-(-max(found) // block_size), device=device)
    entry = (begin.unsqueeze(1) // block_size + blocks).clamp_(max=groups.shape[2] - 1)
    return replace(
        batch,
        position=batch.position % chunk,
        row_start=torch.cat((count.new_zeros(1), count.cumsum(0))).to(batch.row_start.dtype),
        context=context.to(batch.context.dtype),
        block_table=groups[:, owner.unsqueeze(1), entry],
    )
