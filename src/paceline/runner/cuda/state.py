"""The slot columns on a GPU: tokens, positions, block tables, and sampling of each slot."""

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.plan import Admitted, Grown, Plan, TokensBySlot
from paceline.runner.batch import Batch
from paceline.runner.cuda.adapters import AdapterRoom, CudaAdapters
from paceline.runner.cuda.coordinates import CudaCoordinates
from paceline.runner.cuda.kernels.columns import locate, settle
from paceline.runner.cuda.kernels.drafts import accept
from paceline.runner.cuda.kernels.sampling import choose
from paceline.runner.cuda.staging import ALIGNED, BatchWithLengths, Staging
from paceline.runner.cuda.states.drafted import advance_accepted
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.factory import whole
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.parallel.group import RankGroup, decides
from paceline.runner.sampling.sampler import seed_of
from paceline.runner.sampling.token_choice import key_of
from paceline.runner.state_store import RowStates, StateStore
from paceline.runner.tensors import from_numpy


class CudaState:
    """The state of every slot as of the latest plan, and one more slot for padding.

    `tokens[s, :position[s]]` have their KV in the blocks of `table[:, s]`, and the token at
    `position[s]` is the next to compute. Rows that fill up a batch belong to slot
    `padding_slot`, which stays at position 0 and writes to the last block of the store. No plan
    uses that block.
    """

    def __init__(
        self,
        slots: int,
        max_model_len: int,
        kv: KVStore,
        room: AdapterRoom | None = None,
        square: int = 0,
        group: RankGroup | None = None,
    ) -> None:
        """With `room`, sequences may have adapters. With `square`, positions have coordinates:
        each embedding of an image stands for so many pixels along each side. With a group, rank 0
        samples for all ranks."""
        device = kv.content.device
        # Tables of all groups begin at multiples of 16 bytes, for which kernels are compiled.
        width = -(-max_model_len // (kv.block_size * ALIGNED)) * ALIGNED
        self.padding_slot, self._kv = slots, kv
        self._staging = Staging(device)
        self.tokens = torch.zeros((slots + 1, max_model_len + 1), dtype=torch.int32, device=device)
        shape = (len(kv.groups), slots + 1, width)
        self.table = torch.full(shape, kv.blocks - 1, dtype=torch.int32, device=device)
        self.position = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self.temperature = torch.zeros(slots + 1, dtype=torch.float32, device=device)
        self.key = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.adapters = None if room is None else CudaAdapters(room, slots, device)
        self.states: StateStore | None = None  # None: the model has no states
        self._coordinates = None
        if square:
            self._coordinates = CudaCoordinates(slots, max_model_len + 1, square, device)
        self.samples = decides(group)
        self.shared = whole if group is None else group.share  # gives all ranks what rank 0 has

    # -- states of layers ----------------------------------------------------

    def keep_states(
        self, model: ModelConfig, dtype: torch.dtype, block_bytes: int, drafts: int
    ) -> None:
        """Allocate a state of each slot, if layers of the model keep some. `dtype` is that of
        activations; rows have so many drafts at most."""
        layout, device = StateLayout.of(model, dtype.itemsize), self.position.device
        if layout is not None:
            slots = self.padding_slot + 1
            self.states = StateStore(layout, slots, dtype, device, block_bytes)
            if drafts:
                self.states.keep_drafts(drafts)

    def states_of(
        self, slot: Tensor, longer: int | None = None, drafts: Tensor | None = None
    ) -> RowStates | None:
        """The states of rows in these slots; see `RowStates`."""
        return None if self.states is None else RowStates(self.states, slot, longer, drafts)

    # -- tokens --------------------------------------------------------------

    def choose(self, logits: Tensor, slot: Tensor, context: Tensor, ids: Tensor) -> None:
        """Sample by temperature from logits [n, vocab] into `ids` [n], and settle them."""
        if self.samples:
            choose(logits, self.temperature, self.key, slot, context, ids)
        self.settle(slot, context, ids)

    def drawn(self, logits: Tensor, slot: Tensor, context: Tensor) -> Tensor:
        """Token ids [n] that are sampled by temperature from logits [n, vocab]."""
        ids = torch.empty_like(slot)
        choose(logits, self.temperature, self.key, slot, context, ids)
        return ids

    def settle(self, slot: Tensor, context: Tensor, ids: Tensor) -> None:
        """Let slots have tokens at positions `context`, all [n]. On every rank `ids` are those of
        rank 0 afterwards."""
        settle(self.tokens, self.position, slot, context, self.shared(ids))

    def accept(
        self, slot: Tensor, known: Tensor, ids: Tensor, drafts: Tensor, number: Tensor
    ) -> None:
        """Append ids [n, 1 + most] to slots with `known` [n] tokens: those that drafts [n, most]
        agree with, and one more. `number` [n] positions were set aside for drafts."""
        accept((self.tokens, self.position), slot, known, self.shared(ids), drafts)
        if self.states is not None:
            advance_accepted(self.states, slot, known, number, self.position)

    # -- changes that come with a plan --------------------------------------

    def apply(self, plan: Plan) -> None:
        if self.adapters is not None:
            self.adapters.apply(plan)
        if self._coordinates is not None:
            self._coordinates.apply(plan)
        if plan.admitted:
            self._admit(plan.admitted)
        for group, grown in enumerate((plan.grown, *plan.grown.more)):
            if len(grown.block):
                self._grow(self.table[group], grown)
        if plan.chosen:
            self._choose(plan.chosen)

    def _admit(self, admitted: tuple[Admitted, ...]) -> None:
        keys = np.array([key_of(seed_of(new.request)) for new in admitted], np.int64)
        heat = [new.request.sampling for new in admitted]
        numbers = [(new.slot, new.computed) for new in admitted]
        slot, computed = np.array(numbers, np.int32).T.copy()
        temperature = np.array([0.0 if s.greedy else s.temperature for s in heat], np.float32)
        rows = [new.tokens.astype(np.int32) for new in admitted]
        # NO_BLOCK becomes any block: what stands there is not read.
        tables = [
            np.maximum(np.array(blocks, np.int32), 0)
            for new in admitted
            for blocks in (new.blocks, *new.more)
        ]
        sent = self._staging.send(keys.view(np.int32), slot, computed, temperature, *rows, *tables)
        self.key[sent[1]] = sent[0].view(torch.int64)
        self.position[sent[1]] = sent[2]
        self.temperature[sent[1]] = sent[3]
        of_groups = iter(sent[4 + len(rows) :])
        for new, tokens in zip(admitted, sent[4 : 4 + len(rows)], strict=True):
            self.tokens[new.slot, : len(tokens)] = tokens
            for group, table in zip(self.table, of_groups, strict=False):
                group[new.slot, : len(table)] = table

    def _grow(self, table: Tensor, grown: Grown) -> None:
        columns = (grown.slot.astype(np.int32), grown.index.astype(np.int32), grown.block)
        slot, index, block = self._staging.send(*columns)
        table[slot, index] = block

    def _choose(self, chosen: TokensBySlot) -> None:
        lengths = [len(tokens) for _, tokens in chosen]
        slots = np.repeat(np.array([slot for slot, _ in chosen], np.int32), lengths)
        behind = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        tokens = np.array([token for _, tokens in chosen for token in tokens], np.int32)
        slot, offset, token = self._staging.send(slots, behind, tokens)
        self.tokens[slot, self.position[slot] + offset] = token

    def send_into(self, target: Tensor, content: np.ndarray) -> None:
        """Overwrite the numbers of the previous step."""
        self._staging.send_into(target, content)

    def send(self, *columns: np.ndarray) -> list[Tensor]:
        """Columns of 32 bits each, on the GPU."""
        return self._staging.send(*columns)

    def slots(self, slot: I32, rows: int) -> Tensor:
        """Return a column of slots, padded to `rows`."""
        filled = np.full(rows, self.padding_slot, np.int32)
        filled[: len(slot)] = slot
        return self._staging.send(filled)[0]

    # -- a step of any rows -------------------------------------------------

    def batch(self, plan: Plan, is_moving: bool = False) -> tuple[Batch, Tensor, Tensor]:
        """The tensors of a step, where in the store its positions go, and the slot of each row.

        If rows are moving, because drafts are in flight, they begin where their slots stand on
        the GPU, and not behind what the plan says. Otherwise the host knows all lengths.
        """
        rows = plan.rows
        count, slot = rows.count, rows.slot.astype(np.int32)
        start = np.zeros_like(plan.start) if is_moving else plan.start
        starts = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
        each = np.arange(int(starts[-1]))
        position = np.repeat(start - starts[:-1], count) + each
        contexts = (start + count).astype(np.int32)
        columns = (
            np.repeat(slot, count),
            position.astype(np.int32),
            starts,
            contexts,
            slot,
            starts[1:][rows.samples] - 1,
        )
        own = [rows.drafts] if self.states is not None and rows.drafts.any() else []
        sent = self._staging.send(*columns, *own)
        owner, at, row_start, context, row_slot, sample_at, *own = sent
        if is_moving:
            at += self.position.index_select(0, owner)
            context += self.position.index_select(0, row_slot)
        tokens, cells = locate(self.tokens, self.table, owner, at, self._kv)
        table = self.table.index_select(1, row_slot)
        columns = tokens, at, row_start, context, table, cells, sample_at
        adapters = self.adapters_of(owner) if self.is_adapted(rows.slot) else None
        # No images: their positions have ids.
        states = self.states_of(row_slot, drafts=own[0] if own else None)
        more = None, adapters, self.coordinates(owner, at), states
        if is_moving:
            return Batch(*columns, *more), cells, row_slot
        return BatchWithLengths(*columns, *more, starts=starts, contexts=contexts), cells, row_slot

    def advance(self, slot: Tensor, context: Tensor) -> None:
        self.position[slot] = context

    # -- adapters -----------------------------------------------------------

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether a step has adapters: there are graphs for steps of each kind."""
        return (False,) if self.adapters is None else (False, True)

    def is_adapted(self, slot: Index) -> bool:
        """Whether one of these slots has an adapter."""
        return self.adapters is not None and self.adapters.concern(slot)

    def adapters_of(self, slot: Tensor) -> Tensor:
        """The index of the adapter of each slot, -1 where there is none."""
        assert self.adapters is not None
        return self.adapters.column.index_select(0, slot)

    # -- coordinates --------------------------------------------------------

    @property
    def has_coordinates(self) -> bool:
        """Whether a position is more than one number."""
        return self._coordinates is not None

    def coordinates(self, slot: Tensor, position: Tensor) -> Tensor | None:
        """The coordinates of positions in slots, [n] each: [n, axes]; None: each is its index."""
        return None if self._coordinates is None else self._coordinates.of(slot, position)

    # -- steps with drafts --------------------------------------------------

    def stands(self, slot: Index) -> I32:
        """Return the positions of slots, after all launched steps have ended."""
        return self.position[from_numpy(slot).to(self.position.device)].cpu().numpy()
