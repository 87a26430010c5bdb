"""Drafts on ranks that do not make them: rank 0 drafts for all."""

import torch

from paceline.core.speculation_config import SpeculationConfig
from paceline.runner.proposer import Drafter, DraftInput, Drafts


class AwaitedDrafts(Drafter):
    """Stands for the drafter of rank 0 on another rank, which has neither its weights nor its KV.

    It has the traits of that drafter, so that both ranks take the same way through a step, and
    leaves as much memory for each block.
    """

    def __init__(self, config: SpeculationConfig, kind: type[Drafter], cell_bytes: int = 0) -> None:
        super().__init__(config)
        self.on_device, self.draws, self.reads_tokens = (
            kind.on_device,
            kind.draws,
            kind.reads_tokens,
        )
        self.cell_bytes = cell_bytes

    def draft(self, rows: DraftInput) -> Drafts:
        """Room for the drafts. The runner gets those of rank 0 into it."""
        shape = len(rows.slot), rows.most
        return Drafts(torch.empty(shape, dtype=torch.int64, device=rows.slot.device))
