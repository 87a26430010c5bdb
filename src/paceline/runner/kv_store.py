"""The KV store: keys and values in blocks, and copies of blocks."""

import mmap
from collections.abc import Iterable, Sequence
from math import prod
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.runner.models.config import HeadShape, ModelConfig
from paceline.runner.models.layer_groups import LayerGroups, one_group
from paceline.runner.tensors import from_numpy, indices

WORD = torch.int32  # blocks are copied as these


def lazy_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeros on the CPU, whose pages are allocated at the first write; `torch.zeros` writes all."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return torch.zeros(*shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(*shape)


class KVStore:
    """Paged KV memory. All layers of a block are contiguous.

        content     | block 0                               | block 1                …
        run         | layer 0           | layer 1         … |
        cell        | 0 | 1 | … | size-1 | 0 | 1 | …         |
                      └ k of every head, then v of every head; or one vector that is both

    A block has the positions of all layers of one group, each layer at an index: see
    `LayerGroups`. With one group, the index of a layer is its number.

    A block is contiguous, so swapping or sending it is one copy. A run, the part of a block for one
    layer, is contiguous, so a context is gathered run by run. A cell has k and v, so a position is
    written at once.

    Layers may have different heads. A cell has room for those that need most; the others leave the
    rest of theirs empty.

    The store starts with zeros. An attention backend that reads unused cells with weight 0 must
    clear cells that an earlier owner wrote, since they may contain NaN.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        groups: LayerGroups | None = None,
        heads: Sequence[HeadShape] | None = None,
    ) -> None:
        """Without `groups`, all layers are in one. Without `heads`, they are those of the model."""
        self.heads = tuple(heads or map(config.heads_of, range(config.layers)))  # by layer
        self.cell = max((one.cell for one in self.heads), key=lambda cell: cell.values)
        self.blocks, self.block_size = blocks, block_size
        self.kv_heads, self.head_dim = config.kv_heads, self.cell.width
        self.groups = groups or one_group(config.windows)
        layers = self.groups.layers_per_block
        shape = (blocks, layers, block_size, self.cell.vectors, self.cell.width)
        on_cpu = torch.device(device).type == "cpu"
        self.content = (
            lazy_zeros(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
        )
        self._cells = self.content.view(-1, self.cell.values)
        self._runs = self.content.view(blocks * layers, -1)
        self.group = torch.tensor(self.groups.group, device=device)  # [layers]
        self.layer_index = torch.tensor(self.groups.index, device=device)  # [layers]

    @property
    def dtype(self) -> torch.dtype:
        return self.content.dtype

    @property
    def block_bytes(self) -> int:
        return self.content[0].nbytes

    # -- a step -------------------------------------------------------------

    def cells(self, write_cell: Tensor) -> Tensor:
        """Indices of cells in each layer, for `put`, from cells [groups, positions]."""
        size = self.block_size
        first = write_cell // size * (self.groups.layers_per_block * size) + write_cell % size
        if len(self.groups) > 1:
            first = first[self.group]
        return first + self.layer_index.unsqueeze(1) * size  # [layers, positions]

    def put(self, cells: Tensor, new: Tensor) -> None:
        """Write the cells of positions: `new` is [positions, vectors, width] of the layer."""
        found = new.flatten(1).to(self.dtype)
        self._cells[:, : found.shape[1]].index_copy_(0, cells, found)

    def keys_and_values(self, layer: int, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Views of the cells of a layer [..., vectors, width], each [..., kv_heads, head_dim]."""
        cell, kv_heads = self.heads[layer].cell, self.heads[layer].kv_heads
        own = cells.flatten(-2)[..., : cell.values]
        heads = torch.unflatten(own, -1, (cell.vectors, cell.width))
        return heads[..., :kv_heads, :], heads[..., -kv_heads:, :]

    def runs(self, blocks: Tensor) -> Tensor:
        """Indices of the runs of blocks in each layer, for `gather`."""
        first = blocks.flatten() * self.groups.layers_per_block
        return first + self.layer_index.unsqueeze(1)  # [layers, blocks]

    def gather(self, runs: Tensor, out: Tensor) -> None:
        """Copy runs into `out`, [runs, block_size, vectors, width]."""
        torch.index_select(self._runs, 0, runs, out=out.view(len(runs), -1))

    def clear(self, block: int, first: int) -> None:
        """Set the cells of a block to zero, from `first` on."""
        self.content[block, :, first:] = 0

    # -- whole blocks -------------------------------------------------------

    @property
    def words(self) -> Tensor:
        """The content as numbers of 32 bits, [blocks, words]; writing to it changes the blocks."""
        return self.content.flatten(1).view(WORD)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy source to destination for each pair; all are read before any is written."""
        if pairs:
            sources, destinations = zip(*pairs, strict=True)
            self.write(destinations, self.read(sources))

    def read(self, blocks: Sequence[int]) -> Tensor:
        """Return the content of blocks, [blocks, layers_per_block, block_size, vectors, width]."""
        return self.content.index_select(0, indices(blocks, self.content.device))

    def write(self, blocks: Sequence[int], content: Tensor) -> None:
        device = self.content.device
        self.content.index_copy_(0, indices(blocks, device), content.to(device))


class BlockMoves:
    """Copies blocks on the device, then to the host, then from it, as plans list them."""

    def __init__(self, kv: KVStore) -> None:
        self._kv = kv
        self.reserve(0)

    def reserve(self, blocks: int) -> None:
        """Allocate host memory for swapping."""
        self._host = lazy_zeros((blocks, self._kv.words.shape[1]), WORD)

    def carry_out(self, plan: Plan) -> None:
        self._kv.copy(plan.copies)
        self.out(plan.swap_out)
        self.back(plan.swap_in)

    def out(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        """Copy blocks, or rows of other memory [rows, words], to the host."""
        if pairs:
            device, host = ends(pairs)
            store = self._kv.words if memory is None else memory
            self._host[host] = store[device].to(self._host.device)

    def back(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        """Copy blocks of the host to blocks, or to rows of other memory."""
        if pairs:
            host, device = ends(pairs)
            store = self._kv.words if memory is None else memory
            store[device] = self._host[host].to(store.device)


def ends(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The sources and the targets of copies."""
    return [source for source, _ in pairs], [target for _, target in pairs]


STAGED_BYTES = 64 << 20  # page-locked buffer for copies to and from other memory


class BlockBytes:
    """Reads and writes whole blocks. On a GPU it has a separate stream, so that copies overlap with
    steps; the caller must order the two."""

    def __init__(self, kv: KVStore) -> None:
        self.block_bytes = kv.block_bytes
        self.content = kv.content.flatten(1).view(torch.uint8)  # [blocks, block_bytes]
        self._on_gpu = self.content.device.type == "cuda"
        self._lock = Lock()  # of the stream and its page-locked memory
        if self._on_gpu:
            self._stream = torch.cuda.Stream(self.content.device)
            rows = max(STAGED_BYTES // self.block_bytes, 1)
            self._staged = torch.empty((rows, self.block_bytes), dtype=torch.uint8, pin_memory=True)

    def host_memory(self, rows: int) -> np.ndarray:
        """Host memory, [rows, block_bytes], page-locked for a GPU."""
        shape = rows, self.block_bytes
        if self._on_gpu:
            return torch.empty(shape, dtype=torch.uint8, pin_memory=True).numpy()
        return lazy_zeros(shape, torch.uint8).numpy()

    def follow_steps(self) -> None:
        """Make later copies wait for the steps that this thread has launched. On a CPU these have
        ended."""
        if self._on_gpu:
            self._stream.wait_stream(torch.cuda.current_stream(self.content.device))

    def read(self, blocks: Sequence[int]) -> np.ndarray:
        """The content of blocks, [blocks, block_bytes]."""
        rows = np.empty((len(blocks), self.block_bytes), np.uint8)
        self.read_into(blocks, rows)
        return rows

    def read_into(self, blocks: Sequence[int], rows: Iterable[np.ndarray]) -> None:
        """Copy blocks to rows of bytes."""
        if self._on_gpu:
            self._copy(blocks, list(rows), to_host=True)
            return
        for block, row in zip(blocks, rows, strict=True):
            row[:] = self.content[block].numpy()

    def write(self, blocks: Sequence[int], rows: Iterable[np.ndarray]) -> None:
        """Copy rows of bytes to blocks."""
        if self._on_gpu:
            self._copy(blocks, list(rows), to_host=False)
            return
        for block, row in zip(blocks, rows, strict=True):
            self.content[block].numpy()[:] = row

    def _copy(self, blocks: Sequence[int], rows: list[np.ndarray], to_host: bool) -> None:
        """Copy between a GPU and the host, through page-locked memory unless `rows` are."""
        is_pinned = len(rows) > 0 and from_numpy(rows[0]).is_pinned()
        step = len(blocks) if is_pinned else len(self._staged)
        with self._lock, torch.cuda.stream(self._stream):
            for first in range(0, len(blocks), max(step, 1)):
                part = slice(first, first + step)
                tensors = [from_numpy(row) for row in rows[part]]
                via = tensors if is_pinned else list(self._staged[: len(tensors)])
                if not (to_host or is_pinned):
                    for staged, row in zip(via, tensors, strict=True):
                        staged.copy_(row)
                for block, row in zip(blocks[part], via, strict=True):
                    ends = (row, self.content[block]) if to_host else (self.content[block], row)
                    ends[0].copy_(ends[1], non_blocking=True)
                self._stream.synchronize()
                if to_host and not is_pinned:
                    for staged, row in zip(via, tensors, strict=True):
                        row.copy_(staged)
