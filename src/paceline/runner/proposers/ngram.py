"""Prompt lookup: draft the tokens that followed the latest ones at an earlier occurrence."""

import torch
from torch import Tensor

from paceline.core.settings.features import SpeculationConfig
from paceline.runner.proposer import Proposer

PIECE = 1 << 22  # tokens compared at once, which bounds the memory of a call


class Ngram(Proposer):
    """Finds the longest run of latest tokens that occurred before, of `prompt_lookup_max` down to
    `prompt_lookup_min` tokens; among equally long ones, the latest.

        tokens   a b c d  x y  a b c        the last three occurred before
        drafts   d x y a ...                the tokens that followed

    If fewer tokens followed than drafts are wanted, they repeat, as a looping sequence does.
    """

    on_device = True

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self._least, self._most = config.prompt_lookup_min, config.prompt_lookup_max

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        rows = max(PIECE // tokens.shape[1], 1)
        parts = zip(torch.split(tokens, rows), torch.split(known, rows), strict=True)
        found = torch.cat([self._after(*part, most) for part in parts])
        offsets = torch.arange(most, device=tokens.device)
        return torch.where(offsets < number[:, None], found, -1)

    def _after(self, tokens: Tensor, known: Tensor, most: int) -> Tensor:
        """Tokens that followed the best earlier occurrence, [rows, most]."""
        end = self._occurrence(tokens, known)
        last = (known - 1)[:, None]
        circle = (last - end).clamp(min=1)
        ahead = torch.arange(most, device=tokens.device) % circle
        followed = tokens.gather(1, (end + 1 + ahead).clamp(min=0, max=tokens.shape[1] - 1))
        return torch.where(end >= 0, followed.long(), -1)

    def _occurrence(self, tokens: Tensor, known: Tensor) -> Tensor:
        """End of the best earlier occurrence of the latest tokens, [rows, 1]; -1: none.

        Compare all positions with the latest token, then the positions before them with the one
        before it, and so on; `length` counts consecutive matches.
        """
        width = tokens.shape[1]
        position = torch.arange(width, device=tokens.device, dtype=torch.int32)
        last = (known - 1)[:, None]
        back = torch.arange(self._most, device=tokens.device)
        latest = tokens.gather(1, (last - back).clamp(min=0))  # [rows, most], latest first
        agrees = (tokens == latest[:, :1]) & (position < last)
        length = agrees.int()
        for step in range(1, min(self._most, width)):
            agrees[:, step:] &= tokens[:, :-step] == latest[:, step : step + 1]
            agrees[:, :step] = False
            length += agrees
        order = torch.where(length >= self._least, length * width + position, -1)
        best = order.amax(1, keepdim=True)
        return torch.where(best >= 0, best % width, -1).long()
