"""Keys and values of every position, in blocks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from paceline.runner.lazy_memory import lazy_zeros
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.layer_groups import LayerGroups


class KVStore:
    """Paged memory. All layers of a block are contiguous.

        content     | block 0                               | block 1                …
        run         | place 0           | place 1         … |
        cell        | 0 | 1 | … | size-1 | 0 | 1 | …         |
                      └ k of every head, then v of every head

    A block holds positions of the layers of one group, which have a place each: see `LayerGroups`.
    If there is one group, the place of a layer is its number.

    A block is contiguous, so that swapping or sending it is one copy. A run, the part of a block
    that one layer reads, is contiguous too, so that a context is gathered run by run. A cell
    holds k beside v, so that a position is written at once.
    The store starts with zeros. An attention backend that reads unused cells with a weight of zero
    must clear cells that an earlier owner wrote, since they may hold NaN.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        block_size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        groups: LayerGroups | None = None,
    ) -> None:
        """Without `groups`, all layers are in one."""
        self.blocks, self.block_size = blocks, block_size
        self.kv_heads, self.head_dim = config.kv_heads, config.head_dim
        self.groups = groups or LayerGroups.one(config.layers)
        shape = (blocks, self.groups.places, block_size, 2 * self.kv_heads, self.head_dim)
        on_cpu = torch.device(device).type == "cpu"
        self.content = (
            lazy_zeros(shape, dtype) if on_cpu else torch.zeros(shape, dtype=dtype, device=device)
        )
        self._cells = self.content.view(-1, 2 * self.kv_heads, self.head_dim)
        self._runs = self.content.view(blocks * self.groups.places, -1)
        self.group = torch.tensor(self.groups.group, device=device)  # [layers]
        self.place = torch.tensor(self.groups.place, device=device)  # [layers]

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
        first = write_cell // size * (self.groups.places * size) + write_cell % size
        if len(self.groups) > 1:
            first = first[self.group]
        return first + self.place.unsqueeze(1) * size  # [layers, positions]

    def put(self, cells: Tensor, new: Tensor) -> None:
        """Write k and v of positions: `new` is [positions, 2 * kv_heads, head_dim]."""
        self._cells.index_copy_(0, cells, new.to(self.dtype))

    def runs(self, blocks: Tensor) -> Tensor:
        """Indices of the runs of blocks in each layer, for `gather`."""
        return blocks.flatten() * self.groups.places + self.place.unsqueeze(1)  # [layers, blocks]

    def gather(self, runs: Tensor, out: Tensor) -> None:
        """Copy runs into `out`, [runs, block_size, 2 * kv_heads, head_dim]."""
        torch.index_select(self._runs, 0, runs, out=out.view(len(runs), -1))

    def clear(self, block: int, first: int) -> None:
        """Set the cells of a block to zero, from `first` on."""
        self.content[block, :, first:] = 0

    # -- whole blocks -------------------------------------------------------

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy source to destination for each pair; all are read before any is written."""
        if pairs:
            sources, destinations = zip(*pairs, strict=True)
            self.write(destinations, self.read(sources))

    def read(self, blocks: Sequence[int]) -> Tensor:
        """Return the content of blocks, [blocks, places, block_size, 2 * kv_heads, head_dim]."""
        return self.content.index_select(0, self._index(blocks))

    def write(self, blocks: Sequence[int], content: Tensor) -> None:
        self.content.index_copy_(0, self._index(blocks), content.to(self.content.device))

    def _index(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self.content.device)
