"""Token counts of sequences, and the penalties that depend on them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.sampling import Sampling

SHORTEST = 64  # fewest columns of tokens that are read


class TokenCounts:
    """Token counts: a line for each sequence with penalties.

    uses[line, id]           occurrences in the output, plus 0.5 if the prompt has the token
    tokens[line, position]   tokens by position; the last column takes writes without a position
    reach[line]              the largest possible length of a line, known to the host

    Lines are kept on the device from admission to release, since the host does not know the
    tokens of steps in flight. Every used token is in `tokens`, so that penalties do not read the
    whole vocabulary. A token there that an earlier owner of the line used has a count of zero and
    no penalty.
    """

    def __init__(self, vocab: int, max_model_len: int, device: torch.device) -> None:
        self.vocab, self.device = vocab, device
        self.uses = torch.zeros(0, vocab, device=device)
        self.tokens = torch.zeros(0, max_model_len + 1, dtype=torch.long, device=device)
        self.reach = np.zeros(0, np.intp)
        self._free: list[int] = []

    def open(self, tokens: I32, prompt: int) -> int:
        """Assign a line to a sequence of `tokens`; the first `prompt` of them are its prompt."""
        if not self._free:
            self._grow()
        line = self._free.pop()
        known = np.where(tokens < self.vocab, tokens, -1)  # other ids are not in the vocabulary
        uses = np.bincount(known[prompt:] + 1, minlength=self.vocab + 1)[1:].astype(np.float32)
        uses[known[:prompt][known[:prompt] >= 0]] += 0.5
        self.uses[line] = torch.from_numpy(uses)
        self.tokens[line, : len(known)] = torch.from_numpy(known).clamp_(min=0)
        self.reach[line] = len(known)
        return line

    def close(self, line: int) -> None:
        self._free.append(line)

    def span(self, lines: Index) -> int:
        """Columns of `tokens` that cover these lines, a power of two, so that it seldom changes."""
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
    """Applies penalties to used tokens. Row `rows[i]` of a batch has line `lines[i]`."""

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
        logits[rows, named] = own  # a repeated token gets the same value twice

    def observe(self, ids: Tensor, positions: Tensor) -> None:
        """Count ids [rows, width] from the positions [rows] on, except -1."""
        tally, width = self.tally, ids.shape[1]
        own = ids.index_select(0, self.rows)  # [penalised, width]
        steps = torch.arange(width, device=ids.device)
        places = positions.index_select(0, self.rows)[:, None] + steps
        real = own >= 0
        own = own.clamp(min=0)
        tally.tokens[self.lines, torch.where(real, places, tally.tokens.shape[1] - 1)] = own
        tally.uses.index_put_((self.lines, own), real.float(), accumulate=True)
        tally.reach[self._lines] += width
