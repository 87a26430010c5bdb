"""The state of slots on the device: tokens, positions, block tables."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.runner.batch import Batch, batch_of_slots
from paceline.runner.sampling.sampler import seed_of
from paceline.runner.sampling.token_choice import key_of
from paceline.runner.tensors import from_numpy


class DeviceState:
    """The state of every slot as of the latest plan.

    The KV of `tokens[s, :position[s]]` is in the blocks of `table[:, s]`; the token at
    `position[s]` is the next to compute. Sampled tokens are written here at once, so the next
    step can be launched before the host has seen them.
    """

    def __init__(
        self,
        slots: int,
        max_model_len: int,
        block_size: int,
        device: torch.device | str = "cpu",
        groups: int = 1,
    ) -> None:
        blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.device = torch.device(device)
        self.tokens = torch.zeros((slots, max_model_len + 1), dtype=torch.int64, device=device)
        self.table = torch.zeros((groups, slots, blocks), dtype=torch.int64, device=device)
        self.position = torch.zeros(slots, dtype=torch.int64, device=device)
        self.temperature = torch.zeros(slots, device=device)
        self.key = torch.zeros(slots, dtype=torch.int64, device=device)

    def apply(self, plan: Plan) -> None:
        """Apply the changes of a plan."""
        for new in plan.admitted:
            self.tokens[new.slot, : len(new.tokens)] = from_numpy(new.tokens.astype("int64"))
            for table, blocks in zip(self.table, (new.blocks, *new.more), strict=True):
                # NO_BLOCK becomes any valid block, which is not read.
                table[new.slot, : len(blocks)] = self._index(blocks).clamp_(min=0)
            self.position[new.slot] = new.computed
            sampling = new.request.sampling
            self.temperature[new.slot] = 0.0 if sampling.greedy else sampling.temperature
            self.key[new.slot] = key_of(seed_of(new.request))
        for group, grown in enumerate((plan.grown, *plan.grown.more)):
            if len(grown.block):
                slot, index = self._index(grown.slot.tolist()), self._index(grown.index.tolist())
                self.table[group, slot, index] = self._index(grown.block.tolist())
        for slot, tokens in plan.chosen:
            first = int(self.position[slot])
            self.tokens[slot, first : first + len(tokens)] = self._index(tokens)

    def batch(self, plan: Plan, slot: Tensor, count: Tensor) -> Batch:
        """The tensors of a step. Rows that sample need logits from their last known token on."""
        start = self.position[slot]  # plan.start is only an upper bound after drafts
        if plan.total == len(plan.rows):
            return self._singles(plan, slot, start)
        batch = batch_of_slots(self, self.block_size, slot, start, count)
        return replace(batch, sample_at=self._sampled(plan, batch.row_start))

    def _singles(self, plan: Plan, slot: Tensor, start: Tensor) -> Batch:
        """The batch of a step whose rows have one position each."""
        samples = plan.rows.samples
        row, context = torch.arange(len(slot) + 1, device=self.device), start + 1
        block = self.table[:, slot, start // self.block_size]  # [groups, rows]
        return Batch(
            tokens=self.tokens[slot, start],
            position=start,
            row_start=row,
            context=context,
            block_table=self.table[:, slot, : -(-int(context.max()) // self.block_size)],
            write_cell=block * self.block_size + start % self.block_size,
            sample_at=row[:-1][from_numpy(samples)] if not samples.all() else row[:-1],
        )

    def _sampled(self, plan: Plan, row_start: Tensor) -> Tensor:
        """Positions whose logits are needed, [samples + drafts]: the last one before a row's
        drafts, and the drafts."""
        rows = plan.rows
        wanted = self._index(rows.samples.nonzero()[0].tolist())
        lines = self._index(rows.drafts.tolist())[wanted] + 1
        end = lines.cumsum(0)
        row = torch.repeat_interleave(torch.arange(len(wanted), device=self.device), lines)
        behind = end[row] - torch.arange(len(row), device=self.device)
        return row_start[wanted + 1][row] - behind

    def advance(self, slot: Tensor, count: Tensor) -> None:
        self.position[slot] += count

    def append(self, slot: Tensor, first: Tensor, ids: Tensor) -> None:
        """Write ids [rows, width] from `first` on, except negative ones."""
        for offset in range(ids.shape[1]):
            given = ids[:, offset] >= 0
            self.tokens[slot[given], first[given] + offset] = ids[given, offset]

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)
