"""Attention in torch for CPUs: short rows in groups, long rows one by one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paceline.runner.attention.sdpa import ScoreRule, attention
from paceline.runner.attention_backend import Attention, AttentionSupport, Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.tensors import to_ints

SHORT = 8  # most positions of a row that is grouped with others: decodes with their drafts
SCRATCH_BYTES = 2 << 20  # size of gathered pieces that stay in the processor's cache


class Paged(Attention):
    """Copies contexts into contiguous memory, as torch's GEMMs need."""

    support = AttentionSupport(latents=True, mixed_heads=True, whole_images=True)

    def prepare(self, batch: Batch, kv: KVStore) -> "PagedStep":
        return PagedStep(batch, kv)


@dataclass(frozen=True, slots=True)
class Row:
    """A row: positions `first` to `first + count` of the batch, the last ones of `context`."""

    index: int
    first: int
    count: int
    context: int
    skipped: int  # leading blocks outside the window of all positions
    blocks: int  # from there to the end of its context


class PagedStep(Prepared):
    """Attention of one step, in pieces for each group and window. Layers with the same group and
    window gather the same blocks."""

    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._batch, self._kv = batch, kv
        self._starts = to_ints(batch.row_start)
        self._contexts = to_ints(batch.context)
        self._pieces: dict[tuple[int, int | None], list[ShortRows | LongRow]] = {}
        self._clear_begun()

    def _clear_begun(self) -> None:
        """Clear the rest of each block that a row begins: an earlier owner may have left NaN, and
        0 * NaN is NaN."""
        size = self._kv.block_size
        for row, context in enumerate(self._contexts):
            last, rest = divmod(context, size)
            if rest and context - (self._starts[row + 1] - self._starts[row]) <= last * size:
                for block in to_ints(self._batch.block_table[:, row, last]):
                    self._kv.clear(block, rest)

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        positions, heads, head_dim = query.shape
        kv_heads = self._kv.heads[layer].kv_heads
        shared = query.view(positions, kv_heads, -1, head_dim)
        group = self._kv.groups.group[layer]
        pieces = self._pieces.get((group, window))
        if pieces is None:
            pieces = self._pieces[group, window] = list(self._cut(layer, window, shared))
        out = torch.empty(shared.shape, dtype=query.dtype, device=query.device)
        if sinks is not None:
            sinks = sinks.view(kv_heads, -1)  # [kv_heads, group]
        rule = ScoreRule(scale, cap, sinks)
        for piece in pieces:
            piece.attend(shared, layer, rule, out)
        return out.view(positions, heads, head_dim)

    def _cut(
        self, layer: int, window: int | None, query: Tensor
    ) -> Iterator["ShortRows | LongRow"]:
        rows = [self._row(index, window) for index in range(self._batch.rows)]
        run_bytes = self._kv.block_bytes // self._kv.groups.layers_per_block
        groups = list(grouped(rows, SCRATCH_BYTES // run_bytes))
        most = max(len(piece) * piece[0].blocks for piece in groups)
        scratch = Scratch(self._kv, layer, most, query.dtype)
        table = self._batch.block_table[self._kv.groups.group[layer]]
        is_causal = self._batch.ends_for(window) is None
        positions = QueryPositions(self._batch.position, self._batch.read_to(window), is_causal)
        for piece in groups:
            kind = ShortRows if piece[0].count <= SHORT else LongRow
            yield kind(piece, table, positions, scratch, window, query)

    def _row(self, index: int, window: int | None) -> Row:
        first, end = self._starts[index], self._starts[index + 1]
        count, context, size = end - first, self._contexts[index], self._kv.block_size
        skipped = 0 if window is None else max(context - count - window + 1, 0) // size
        return Row(index, first, count, context, skipped, -(-context // size) - skipped)


def grouped(rows: list[Row], most_blocks: int) -> Iterator[list[Row]]:
    """Group rows of equal length and similar context.

    Contexts are padded to the longest of the group, which is less than twice as long. A group is
    closed when its padded blocks fill the scratch memory. Long rows are not grouped.
    """
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.count, row.blocks), reverse=True):
        joins = (
            bool(group)
            and row.count == group[0].count <= SHORT
            and 2 * row.blocks > group[0].blocks
            and (len(group) + 1) * group[0].blocks <= most_blocks
        )
        if group and not joins:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


@dataclass(frozen=True, slots=True, eq=False)
class QueryPositions:
    """Positions of queries, and the end of what each reads, [..., queries]."""

    at: Tensor
    end: Tensor
    is_causal: bool  # is that itself, for all of them?

    def of(self, index: Tensor | slice) -> "QueryPositions":
        return QueryPositions(self.at[index], self.end[index], self.is_causal)

    def unseen(self, key_at: Tensor, window: int | None) -> Tensor:
        """Which keys a query must not see, [..., queries, keys], from their positions
        [..., keys]."""
        keys = key_at.unsqueeze(-2)
        found = keys >= self.end.unsqueeze(-1)
        if window is not None:
            found |= self.at.unsqueeze(-1) - keys >= window
        return found


def mask_of(unseen: Tensor, like: Tensor) -> Tensor:
    """The mask to add to scores, 0 or -inf. A bool mask would be converted in every layer."""
    mask = torch.zeros(unseen.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(unseen, float("-inf"))


class Scratch:
    """Memory for the contexts of one piece, reused by all pieces of a step, of layers with heads
    like those of one of them."""

    def __init__(self, kv: KVStore, layer: int, blocks: int, dtype: torch.dtype) -> None:
        self.kv, self.layer = kv, layer
        shape = (blocks, kv.block_size, kv.cell.vectors, kv.cell.width)
        self.gathered = torch.empty(shape, dtype=kv.dtype, device=kv.content.device)
        is_same = dtype == kv.dtype
        self.converted = self.gathered if is_same else torch.empty_like(self.gathered, dtype=dtype)


class GatheredContext:
    """Contexts of one layer at a time, in contiguous memory.

    Keys and values are the same views for all layers; only their content changes.
    """

    def __init__(self, scratch: Scratch, blocks: Tensor) -> None:
        kv, rows, width = scratch.kv, len(blocks), blocks.shape[1]  # [rows, blocks of a row]
        self._kv = kv
        self._runs = kv.runs(blocks).unbind()
        self._gathered = scratch.gathered[: rows * width]
        self._converted = scratch.converted[: rows * width]
        shape = (rows, width * kv.block_size, kv.cell.vectors, kv.cell.width)
        keys, values = kv.keys_and_values(scratch.layer, self._converted.view(shape))
        # [rows, kv_heads, cells, head_dim] each
        self.keys, self.values = keys.transpose(1, 2), values.transpose(1, 2)

    def fill(self, layer: int) -> None:
        self._kv.gather(self._runs[layer], self._gathered)
        if self._converted.dtype != self._gathered.dtype:
            self._converted.copy_(self._gathered)


class ShortRows:
    """Rows of the same few positions. Heads that share keys are additional queries.

    query   [rows, kv_heads, count * group, head_dim]
    keys    [rows, kv_heads, cells, head_dim]
    mask    [rows, 1, count * group, cells], or one query for the whole group
    """

    def __init__(
        self,
        rows: list[Row],
        table: Tensor,
        positions: QueryPositions,
        scratch: Scratch,
        window: int | None,
        query: Tensor,
    ) -> None:
        device, blocks, count = query.device, rows[0].blocks, rows[0].count
        size = scratch.kv.block_size
        columns = torch.tensor(
            [(row.index, row.first, row.skipped, row.skipped + row.blocks - 1) for row in rows],
            device=device,
        )
        index, first, skipped, last = columns.T.unsqueeze(-1).unbind()  # [rows, 1] each
        # After its context, a row reads its last block again, which the mask hides.
        entry = torch.minimum(skipped + torch.arange(blocks, device=device), last)
        self._context = GatheredContext(scratch, table[index, entry])
        asked = positions.of(first + torch.arange(count, device=device))  # [rows, count]
        key_at = skipped * size + torch.arange(blocks * size, device=device)  # [rows, cells]
        mask = mask_of(asked.unseen(key_at, window), query)  # [rows, count, cells]
        if count > 1:
            mask = mask.repeat_interleave(query.shape[2], dim=1)
        self._mask = mask.unsqueeze(1)
        self._count, self._at = count, _positions([row.first for row in rows], count, device)

    def attend(self, query: Tensor, layer: int, rule: ScoreRule, out: Tensor) -> None:
        """The rule has sinks [kv_heads, group]."""
        self._context.fill(layer)
        asked = torch.unflatten(query[self._at], 0, (-1, self._count))
        asked = asked.transpose(1, 2).flatten(2, 3)
        if rule.sinks is not None:
            rule = replace(rule, sinks=rule.sinks.repeat(1, self._count).unsqueeze(-1))
        found = attention(asked, self._context.keys, self._context.values, self._mask, rule)
        out[self._at] = torch.unflatten(found, 2, (self._count, -1)).transpose(1, 2).flatten(0, 1)


def _positions(first: list[int], count: int, device: torch.device) -> Tensor | slice:
    """Indices of the rows' positions in the batch; a slice if they are adjacent."""
    if first == list(range(first[0], first[0] + len(first) * count, count)):
        return slice(first[0], first[-1] + count)
    starts = torch.tensor(first, device=device).unsqueeze(1)
    return (starts + torch.arange(count, device=device)).flatten()


class LongRow:
    """One row. Heads share keys by a stride of 0, without a copy.

    query   [kv_heads, group, count, head_dim]
    keys    [kv_heads, group, cells, head_dim]
    mask    [count, cells]; none for a row that begins its sequence and sees all of it
    """

    def __init__(
        self,
        rows: list[Row],
        table: Tensor,
        positions: QueryPositions,
        scratch: Scratch,
        window: int | None,
        query: Tensor,
    ) -> None:
        (row,) = rows
        self._span = slice(row.first, row.first + row.count)
        end = row.skipped + row.blocks
        self._context = GatheredContext(scratch, table[row.index, None, row.skipped : end])
        first_key = row.skipped * scratch.kv.block_size
        self._cells = row.context - first_key
        self._mask = None
        is_cut = row.count < row.context or (window is not None and window < row.context)
        if is_cut or not positions.is_causal:
            key_at = torch.arange(first_key, row.context, device=query.device)
            self._mask = mask_of(positions.of(self._span).unseen(key_at, window), query)

    def attend(self, query: Tensor, layer: int, rule: ScoreRule, out: Tensor) -> None:
        """The rule has sinks [kv_heads, group]."""
        self._context.fill(layer)
        asked = query[self._span].permute(1, 2, 0, 3)
        if rule.sinks is not None:
            rule = replace(rule, sinks=rule.sinks[..., None, None])
        found = attention(
            asked,
            self._shared(self._context.keys, asked),
            self._shared(self._context.values, asked),
            self._mask,
            rule,
        )
        out[self._span] = found.permute(2, 0, 1, 3)

    def _shared(self, heads: Tensor, asked: Tensor) -> Tensor:
        return heads[0, :, None, : self._cells].expand(-1, asked.shape[1], -1, -1)
