"""Attention row by row in float32: the slow reference for other backends."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.runner.attention_backend import Attention, AttentionSupport, Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.tensors import to_ints


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRule:
    """Scale, soft cap and sinks of attention scores.

    scale   factor of every score
    cap     a score s becomes cap * tanh(s / cap); None: no cap
    sinks   an additional softmax score of each query [..., queries or 1, 1], without a value
    """

    scale: float
    cap: float | None = None
    sinks: Tensor | None = None


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    rule: ScoreRule,
) -> Tensor:
    """Queries [..., queries, head_dim] over keys and values [..., keys, head_dim].

    The mask is added to the scores; without one, attention is causal. Torch's attention has
    neither caps nor sinks.
    """
    if rule.cap is not None or rule.sinks is not None:
        return explicit_attention(query, keys, values, mask, rule)
    return F.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=rule.scale
    )


def explicit_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    rule: ScoreRule,
) -> Tensor:
    """Attention by the formula in float32, with caps and sinks."""
    scores = (query.float() @ keys.float().transpose(-1, -2)).mul_(rule.scale)
    if rule.cap is not None:
        scores = scores.div_(rule.cap).tanh_().mul_(rule.cap)
    if mask is None:
        hidden = torch.full(scores.shape[-2:], float("-inf"), device=scores.device)
        mask = hidden.triu_(1)
    scores.add_(mask)
    if rule.sinks is not None:
        scores = torch.cat((scores, rule.sinks.expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[-2]]
    return (weights @ values.float()).to(query.dtype)


class Sdpa(Attention):
    """Gathers each row through its block table, and computes the formula."""

    support = AttentionSupport(latents=True, mixed_heads=True, whole_images=True)

    def prepare(self, batch: Batch, kv: KVStore) -> "SdpaStep":
        return SdpaStep(batch, kv)


class SdpaStep(Prepared):
    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._batch, self._kv = batch, kv
        starts = to_ints(batch.row_start)
        self._rows = list(zip(starts[:-1], starts[1:], to_ints(batch.context), strict=True))

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        kv_heads = self._kv.heads[layer].kv_heads
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if sinks is not None:
            sinks = sinks.view(kv_heads, -1, 1, 1)  # [kv_heads, group, 1, 1]
        rule = ScoreRule(scale, cap, sinks)
        for row, (first, end, context) in enumerate(self._rows):
            size, count = self._kv.block_size, end - first
            passed = 0 if window is None else max(context - count - window + 1, 0) // size * size
            keys, values = self._context(row, layer, passed, context)
            key_at = torch.arange(passed, context, device=query.device)
            distance = self._batch.position[first:end, None] - key_at
            unseen = key_at >= self._batch.read_to(window)[first:end, None]
            unseen |= distance >= (window or context)  # [positions of the row, context]
            mask = torch.zeros(unseen.shape, device=query.device).masked_fill_(unseen, -torch.inf)
            asked = torch.unflatten(query[first:end].float(), 1, (kv_heads, -1))
            # Torch's GPU kernels misread masks of odd lengths.
            found = explicit_attention(
                asked.permute(1, 2, 0, 3),  # [kv_heads, group, positions of the row, head_dim]
                keys.transpose(0, 1).unsqueeze(1).expand(-1, asked.shape[2], -1, -1),
                values.transpose(0, 1).unsqueeze(1).expand(-1, asked.shape[2], -1, -1),
                mask,
                rule,
            )
            out[first:end] = found.permute(2, 0, 1, 3).flatten(1, 2)
        return out

    def _context(self, row: int, layer: int, first: int, end: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a row from the start of a block on, [cells, kv_heads, head_dim]."""
        kv, size = self._kv, self._kv.block_size
        group, index = kv.groups.group[layer], kv.groups.index[layer]
        blocks = self._batch.block_table[group, row, first // size : -(-end // size)]
        cells = kv.content[blocks, index].flatten(0, 1)[: end - first].float()
        return kv.keys_and_values(layer, cells)
