"""Drafts from the sequence itself: what followed the last time its latest tokens occurred."""

import torch
from torch import Tensor


def filled(drafts: Tensor, number: Tensor) -> Tensor:
    """What stands in the places of a row, of which row i has `number[i]`: 0 where nothing was
    proposed, and -1 behind them, where no place is."""
    places = torch.arange(drafts.shape[1], device=drafts.device)
    return torch.where(places < number[:, None], drafts.clamp(min=0), -1)


class Ngram:
    """Looks for the latest earlier occurrence of the last `length` tokens."""

    def __init__(self, length: int = 2) -> None:
        self._length = length

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor) -> Tensor:
        """Up to `number[i]` drafts for row i, whose first `known[i]` tokens are in `tokens[i]`.

        Returns [rows, most drafts]; -1 is none.
        """
        drafts = torch.full((len(tokens), int(number.max())), -1, dtype=torch.int64)
        for row, (end, wanted) in enumerate(zip(known.tolist(), number.tolist(), strict=True)):
            found = self._after(tokens[row, :end])[:wanted]
            drafts[row, : len(found)] = found
        return drafts

    def _after(self, tokens: Tensor) -> Tensor:
        """What followed the last tokens when they occurred before."""
        size = self._length
        if len(tokens) <= size:
            return tokens[:0]
        windows = tokens[:-1].unfold(0, size, 1)  # [places, size]
        places = torch.nonzero((windows == tokens[-size:]).all(1))
        return tokens[int(places[-1]) + size :] if len(places) else tokens[:0]
