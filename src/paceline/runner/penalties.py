"""Which tokens sequences have used, and the penalties that they pay for it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.sampling import Sampling

SHORTEST = 64  # columns of tokens that are looked at in any case


class TokenCounts:
    """What sequences have used: a line for each sequence that pays for it.

    uses[line, id]           how often the output has the token, and a half if the prompt has it
    tokens[line, position]   the tokens by position; the last column takes what has no place
    reach[line]              how long a line may be at most, which the host knows

    Lines are kept on the device from admission to release, since the host does not know the
    tokens of steps in flight. A token that was used is named in `tokens`, so that penalties need
    not look at the whole vocabulary; one that is named but was not used, perhaps by a sequence
    that had the line before, is none the worse for it.
    """

    def __init__(self, vocab: int, max_model_len: int, device: torch.device) -> None:
        self.vocab, self.device = vocab, device
        self.uses = torch.zeros(0, vocab, device=device)
        self.tokens = torch.zeros(0, max_model_len + 1, dtype=torch.long, device=device)
        self.reach = np.zeros(0, np.intp)
        self._free: list[int] = []

    def open(self, tokens: I32, prompt: int) -> int:
        """A line for a sequence of these tokens, the first of which are its prompt."""
        if not self._free:
            self._grow()
        line = self._free.pop()
        known = np.where(tokens < self.vocab, tokens, -1)  # others stand for no word
        uses = np.bincount(known[prompt:] + 1, minlength=self.vocab + 1)[1:].astype(np.float32)
        uses[known[:prompt][known[:prompt] >= 0]] += 0.5
        self.uses[line] = torch.from_numpy(uses)
        self.tokens[line, : len(known)] = torch.from_numpy(known).clamp_(min=0)
        self.reach[line] = len(known)
        return line

    def close(self, line: int) -> None:
        self._free.append(line)

    def span(self, lines: Index) -> int:
        """Columns of `tokens` that cover these lines; it doubles, so that it seldom changes."""
        longest = max(int(self.reach[lines].max()), SHORTEST)
        return min(1 << (longest - 1).bit_length(), self.tokens.shape[1] - 1)

    def _grow(self) -> None:
        before = len(self.reach)
        more = max(before, 4)
        self.uses = torch.cat([self.uses, self.uses.new_zeros(more, self.uses.shape[1])])
        self.tokens = torch.cat([self.tokens, self.tokens.new_zeros(more, self.tokens.shape[1])])
        self.reach = np.concatenate([self.reach, np.zeros(more, np.intp)])
        self._free += range(before + more - 1, before - 1, -1)


class Penalties:
    """Makes used tokens less likely, or more. Row `rows[i]` of a batch has line `lines[i]`."""

    def __init__(
        self,
        tally: TokenCounts,
        rows: Sequence[int],
        lines: Sequence[int],
        asked: Sequence[Sampling],
    ) -> None:
        settings = [
            [each.repetition_penalty, each.presence_penalty, each.frequency_penalty]
            for each in asked
        ]
        columns = torch.tensor(settings, device=tally.device)[:, :, None]
        self.repetition, self.presence, self.frequency = columns.unbind(1)  # [penalised, 1] each
        self.tally = tally
        self.rows = torch.tensor(rows, device=tally.device)
        self.lines = torch.tensor(lines, device=tally.device)[:, None]  # [penalised, 1]
        self._lines = np.array(lines, np.intp)

    def apply(self, logits: Tensor, positions: Tensor, ahead: Tensor) -> None:
        tally, rows = self.tally, self.rows[:, None]
        ahead = ahead.index_select(0, self.rows)  # [penalised, ahead]
        named = tally.tokens[:, : tally.span(self._lines)].index_select(0, self.lines[:, 0])
        named = torch.cat([named, ahead.clamp(min=0)], 1)  # [penalised, named]
        uses = tally.uses[self.lines, named]
        uses += (named[:, :, None] == ahead[:, None, :]).sum(-1)
        outputs = uses.floor()
        factor = torch.where(uses > 0.0, self.repetition, 1.0)
        own = logits[rows, named]
        own = torch.where(own > 0.0, own / factor, own * factor)
        own -= self.frequency * outputs
        own -= self.presence * outputs.clamp(max=1.0)
        logits[rows, named] = own  # a token named twice gets the same value twice

    def observe(self, ids: Tensor, positions: Tensor) -> None:
        """Count ids [rows, width] that have come at the positions [rows] and after; -1 is none."""
        tally, width = self.tally, ids.shape[1]
        own = ids.index_select(0, self.rows)  # [penalised, width]
        steps = torch.arange(width, device=ids.device)
        places = positions.index_select(0, self.rows)[:, None] + steps
        real = own >= 0
        own = own.clamp(min=0)
        tally.tokens[self.lines, torch.where(real, places, tally.tokens.shape[1] - 1)] = own
        tally.uses.index_put_((self.lines, own), real.float(), accumulate=True)
        tally.reach[self._lines] += width
