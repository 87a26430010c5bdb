"""Attention row by row in float32: slow, and the reference for the other backends."""

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore


class Sdpa:
    """Reads each row through its block table and leaves the rest to torch."""

    def prepare(self, batch: Batch, kv: KVStore) -> "SdpaStep":
        return SdpaStep(batch, kv)


class SdpaStep:
    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._batch, self._kv = batch, kv
        starts = batch.row_start.tolist()
        self._rows = list(zip(starts[:-1], starts[1:], batch.context.tolist(), strict=True))

    def attend(self, query: Tensor, layer: int, window: int | None, scale: float) -> Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for row, (first, end, context) in enumerate(self._rows):
            keys, values = self._context(row, layer, context)
            distance = self._batch.position[first:end, None] - torch.arange(
                context, device=query.device
            )  # [positions of the row, context]
            seen = (distance >= 0) & (distance < (window or context))
            found = F.scaled_dot_product_attention(
                query[first:end].float().transpose(0, 1).unsqueeze(0),
                keys.transpose(0, 1).unsqueeze(0),
                values.transpose(0, 1).unsqueeze(0),
                attn_mask=seen,
                scale=scale,
                enable_gqa=True,
            )  # [1, heads, positions of the row, head_dim]
            out[first:end] = found[0].transpose(0, 1)
        return out

    def _context(self, row: int, layer: int, context: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row, [context, kv_heads, head_dim] each."""
        kv = self._kv
        blocks = self._batch.block_table[row, : -(-context // kv.block_size)]
        cells = kv.content[blocks, layer].flatten(0, 1)[:context].float()
        return cells[:, : kv.kv_heads], cells[:, kv.kv_heads :]
