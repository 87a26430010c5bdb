"""The states of sequences on the device, and copies of them."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.plan import Pairs, Plan, SlotBlocks
from paceline.runner.kv_store import WORD, KVStore, lazy_zeros
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.tensors import indices, to_ints


class DraftInputs:
    """What rows with drafts add to the states of their slots, kept until it is known how many
    drafts are accepted: by layer with a state, slot, and position of the row.

    tails    [layers, slots, positions, channels]; inputs of the convolution
    decay    [layers, slots, positions, decays]; logarithms; see `StateUpdate`
    key      [layers, slots, positions, keys]
    value    [layers, slots, positions, values]
    """

    def __init__(self, layout: StateLayout, positions: int, tails: Sequence[Tensor]) -> None:
        """`tails` are those of each layer, [slots, taps - 1, channels]."""
        first, update = tails[0], layout.update
        shape = len(tails), len(first), positions
        self.positions = positions
        self.tails = first.new_zeros((*shape, first.shape[-1]))
        sizes = (0, 0, 0) if update is None else (update.decays, update.keys, update.values)
        self.decay, self.key, self.value = (
            first.new_zeros((*shape, size), dtype=torch.float32) for size in sizes
        )


class StateStore:
    """One state of each slot. All layers of a slot are contiguous, so a state is copied at once.

        content   | slot 0                                             | slot 1      …
                  | layer 0: tensor, tensor | layer 2: tensor … |      |
        pieces    | piece 0        | piece 1        | piece 2          | piece 3     …

    A piece is as large as a KV block, so states move to and from blocks as blocks do.
    """

    def __init__(
        self,
        layout: StateLayout,
        slots: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_bytes: int = WORD.itemsize,
    ) -> None:
        """`dtype` is that of tensors that are not recurrent."""
        assert dtype.itemsize == layout.value_bytes
        self.layout = layout
        self.drafts: DraftInputs | None = None  # None: rows have no drafts
        self._pieces = -(-layout.bytes // block_bytes)  # of a state
        shape = slots, self._pieces * block_bytes
        on_cpu = torch.device(device).type == "cpu"
        self.content = (
            lazy_zeros(shape, torch.uint8)
            if on_cpu
            else torch.zeros(shape, dtype=torch.uint8, device=device)
        )
        self._layers: list[tuple[Tensor, ...]] = []
        first = 0
        for layer in layout.tensors:
            found: list[Tensor] = []
            for one in layer:
                its = torch.float32 if one.is_recurrent else dtype
                content = self.content[:, first : first + prod(one.shape) * its.itemsize]
                found.append(content.view(its).view(-1, *one.shape))
                first += layout.bytes_of(one)
            self._layers.append(tuple(found))

    def of(self, layer: int) -> tuple[Tensor, ...]:
        """The tensors of a layer, [slots, …] each; writing to them changes the states."""
        return self._layers[layer]

    @property
    def layers(self) -> list[int]:
        """The layers that have states."""
        return [layer for layer, found in enumerate(self._layers) if found]

    def keep_drafts(self, drafts: int) -> None:
        """Make room for the inputs of rows with so many drafts."""
        tails = [self.of(layer)[-1] for layer in self.layers]
        self.drafts = DraftInputs(self.layout, 1 + drafts, tails)

    def clear(self, slots: Tensor) -> None:
        """Set states to zero, with which sequences begin."""
        self.content.index_fill_(0, slots, 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy source to destination for each pair; all are read before any is written."""
        if pairs:
            device = self.content.device
            sources, destinations = (indices(ends, device) for ends in zip(*pairs, strict=True))
            self.content.index_copy_(0, destinations, self.content.index_select(0, sources))

    def read(self, slots: Tensor) -> Tensor:
        """A copy of the states of slots."""
        return self.content.index_select(0, slots)

    def write(self, slots: Tensor, content: Tensor) -> None:
        """Put copies back."""
        self.content.index_copy_(0, slots, content)

    @property
    def pieces(self) -> Tensor:
        """The states in pieces as large as a KV block, [slots * pieces, words]."""
        return self.content.view(WORD).view(len(self.content) * self._pieces, -1)

    def placed(self, moves: SlotBlocks) -> Pairs:
        """Pieces of the states of slots, each with the block where it is or will be."""
        each = self._pieces
        return tuple(
            pair
            for slot, blocks in moves
            for pair in zip(range(slot * each, (slot + 1) * each), blocks, strict=True)
        )

    def save(self, saves: SlotBlocks, kv: KVStore) -> None:
        """Copy states of slots to KV blocks."""
        for slot, blocks in saves:
            kv.words.index_copy_(0, indices(blocks, kv.content.device), self._of_slot(slot))

    def load(self, loads: SlotBlocks, kv: KVStore) -> None:
        """Copy states from KV blocks to slots."""
        for slot, blocks in loads:
            found = kv.words.index_select(0, indices(blocks, kv.content.device))
            self._of_slot(slot).copy_(found)

    def _of_slot(self, slot: int) -> Tensor:
        """The pieces of a slot."""
        return self.pieces[slot * self._pieces : (slot + 1) * self._pieces]


class BlockCopier(Protocol):
    """Copies blocks, and rows of other memory that are as large, to the host and back."""

    def carry_out(self, plan: Plan) -> None: ...

    def out(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None: ...

    def back(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None: ...


@contextmanager
def moved(plan: Plan, states: StateStore | None, kv: KVStore, moves: BlockCopier) -> Generator[None]:
    """Make the copies of a plan around its rows. `moves` makes those that are not of states."""
    if states is None:
        moves.carry_out(plan)
        yield
        return
    listed = plan.states
    states.save(listed.saves_before, kv)
    moves.out(states.placed(listed.swap_out), states.pieces)
    moves.carry_out(plan)
    states.copy(listed.copies)
    states.load(listed.loads, kv)
    moves.back([(host, at) for at, host in states.placed(listed.swap_in)], states.pieces)
    yield
    states.save(listed.saves, kv)
    kv.copy(listed.block_copies)


@dataclass(frozen=True, slots=True, eq=False)
class RowStates:
    """The states of a step's rows, of which each advances the state of its slot."""

    store: StateStore
    slot: Tensor  # [rows]
    longer: int | None = None  # at most so many rows have several positions; None: not known
    drafts: Tensor | None = None  # [rows]; drafts at the end of each row; None: no row has some


class StateRows:
    """The rows of a step, as layers with states compute them: those of one position together, and
    each of the others by itself."""

    def __init__(self, states: RowStates, row_start: Tensor, position: Tensor) -> None:
        """Rows that begin at position 0 begin with a state of zeros."""
        self._store, self.slot, self.row_start = states.store, states.slot, row_start
        starts = to_ints(row_start)
        spans = list(zip(starts, starts[1:], to_ints(states.slot), strict=False))
        single = [row for row, (first, end, _) in enumerate(spans) if end == first + 1]
        self.longer = [(slice(first, end), slot) for first, end, slot in spans if end > first + 1]
        self.single = self.slot[single]  # slots of rows with one position
        self.single_at = row_start[single]  # and these positions
        begins = position[row_start[:-1]] == 0
        if begins.any():
            self._store.clear(self.slot[begins])

    def of(self, layer: int) -> tuple[Tensor, ...]:
        """The states of a layer, [slots, …] each."""
        return self._store.of(layer)
