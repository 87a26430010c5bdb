"""Attention with kernels compiled for this processor, which read the store in place."""

from ctypes import byref
from itertools import pairwise

import torch
from torch import Tensor

from paceline.runner.attention.paged import Paged
from paceline.runner.attention_backend import Attention, AttentionSupport, Prepared
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.native.library import StepStruct, is_available, library
from paceline.runner.tensors import to_ints


class Native(Attention):
    """Results of a position are bit-identical alone, beside other rows, and in any chunk.

    Falls back to `Paged` without a compiler, if the store is not float32 on a CPU, or if layers
    have different heads.
    """

    support = AttentionSupport(latents=True, mixed_heads=True, whole_images=True, is_invariant=True)

    def __init__(self) -> None:
        # Checked once, since every step would try again after a failure.
        self._has_kernels = is_available()

    def prepare(self, batch: Batch, kv: KVStore) -> Prepared:
        is_plain = kv.dtype == torch.float32 and kv.content.device.type == "cpu"
        is_plain = is_plain and len(set(kv.heads)) == 1
        kind = NativeStep if is_plain and self._has_kernels else Paged().prepare
        return kind(batch, kv)


class NativeStep(Prepared):
    """Attention of one step; it holds the tensors that the kernels read."""

    def __init__(self, batch: Batch, kv: KVStore) -> None:
        self._kernels = library()
        tiles = tiles_of(to_ints(batch.row_start), self._kernels.attention_tile())
        window, everything = (batch.read_to(one).long().contiguous() for one in (1, None))
        self._read = (
            torch.tensor(tiles),  # [tiles, 3]
            batch.position.long().contiguous(),
            batch.write_cell.long().contiguous(),
            batch.block_table.long().contiguous(),
            kv.group,
            kv.layer_index,
            kv.content,
        )
        self._read_to = window, everything
        at, position, *rest = (tensor.data_ptr() for tensor in self._read)
        sizes = (
            batch.positions,
            len(tiles),
            batch.rows,
            batch.block_table.shape[2],
            kv.groups.layers_per_block,
            kv.block_size,
            kv.cell.vectors,
            kv.kv_heads,
            kv.head_dim,
        )
        # In layers with a window, and in those without.
        self.step, self._everything = (
            byref(StepStruct(at, position, one.data_ptr(), *rest, *sizes)) for one in self._read_to
        )

    def attend(
        self,
        query: Tensor,
        layer: int,
        window: int | None,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        plain = query.float()
        if not plain[0].is_contiguous():
            plain = plain.contiguous()
        out = torch.empty(query.shape)
        plain_sinks = None if sinks is None else sinks.float().contiguous()
        self._kernels.attend(
            self._everything if window is None else self.step,
            layer,
            window or 0,
            scale,
            cap or 0.0,
            None if plain_sinks is None else plain_sinks.data_ptr(),
            plain.data_ptr(),
            plain.stride(0),
            query.shape[1],
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out.to(query.dtype)


def tiles_of(starts: list[int], most: int) -> list[tuple[int, int, int]]:
    """Cut rows into tiles of at most `most` positions: (row, first position, positions)."""
    return [
        (row, first, min(most, end - first))
        for row, (start, end) in enumerate(pairwise(starts))
        for first in range(start, end, most)
    ]
