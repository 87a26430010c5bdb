"""Choose a token, the likeliest or a random one, with the same result on every device.

Random bits are counter-based: SplitMix64's output function of `key + position * GAMMA`, where the
key is its output for the seed. There is no state, so other rows, preemption and chunking do not
affect a draw, and integer arithmetic gives the same bits on every device.

A token is drawn by inverting the cumulative distribution. This needs 64 random bits per row; Gumbel
noise needs as many for every token of the vocabulary. The masses are integers, so the order of
additions does not affect the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32, Index
from paceline.core.sampling import Sampling
from paceline.runner.tensors import from_numpy

RANGE = 1 << 64
HALF = (1 << 32) - 1
CELL = 64  # tokens per cell; a draw first chooses a cell
UNIT = 2.0**44  # mass of weight 1; the sum over 2**18 tokens fits into 64 bits
CELL_UNIT = 2.0**56  # the same inside a cell, so that a cell with mass has a token with mass
WEIGHTLESS = -60.0  # its exp has no mass; exp of smaller numbers is 100 times slower on a CPU
FEW = 1024  # tokens that suffice for nearly every top_p


def signed(word: int) -> int:
    """The lowest 64 bits of an integer as a signed one."""
    return (word + RANGE // 2) % RANGE - RANGE // 2


GAMMA = signed(0x9E3779B97F4A7C15)
FIRST = signed(0xBF58476D1CE4E5B9)
SECOND = signed(0x94D049BB133111EB)


def shifted(words: Tensor, bits: int) -> Tensor:
    """A logical right shift; torch's is arithmetic."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every bit depends on all others."""
    words = (words ^ shifted(words, 30)) * FIRST
    words = (words ^ shifted(words, 27)) * SECOND
    return words ^ shifted(words, 31)


def key_of(seed: int) -> int:
    """The key of a seed, of which only the lowest 64 bits are used."""
    return int(mix(torch.tensor(signed(seed + GAMMA))))


def random_words(keys: Tensor, positions: Tensor) -> Tensor:
    """64 random bits for each row, a function of its key and position."""
    return mix(torch.add(keys, positions, alpha=GAMMA))  # [rows]


def by_cells(values: Tensor) -> Tensor:
    """View [rows, vocab] as [rows, cells, cell]; cells have one token if CELL does not divide."""
    return torch.unflatten(values, -1, (-1, gcd(values.shape[-1], CELL)))


def relative_weights(logits: Tensor) -> Tensor:
    """Replace logits of at most 0 by their exponentials."""
    return logits.clamp_(min=WEIGHTLESS).exp_()


def pick(weights: Tensor, unit: float, at: Tensor) -> Tensor:
    """The choice at which the cumulative weight exceeds the fraction `at`, in [0, 1), of the total.

    Weights [rows, choices] are in [0, 1] or sums of such. A row without weights gets any choice.
    """
    upto = (weights * unit).long().cumsum(-1)  # [rows, choices]
    target = (at * upto[:, -1]).long()  # below the total: `at` is at most 1 - 2**-32
    chosen = torch.searchsorted(upto, target[:, None], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)[:, 0]  # [rows]


def draw(weights: Tensor, words: Tensor) -> Tensor:
    """Draw a token id for each row of weights [rows, vocab]: first a cell, then an id in it.

    The two choices use one half of the row's random word each.
    """
    cells = by_cells(weights)  # [rows, cells, cell]
    first = pick(cells.sum(-1), UNIT, shifted(words, 32).double() * 2.0**-32)
    rows = torch.arange(len(words), device=words.device)
    within = pick(cells[rows, first], CELL_UNIT, (words & HALF).double() * 2.0**-32)
    return first * cells.shape[-1] + within  # [rows]


class DraftedDraw(Protocol):
    """Drafts that were drawn at random, one for each row."""

    def draw(self, weights: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Draw a token id for each row from weights [rows, vocab], verifying its draft."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Greedy:
    """The likeliest token; the smallest id among equals."""

    rows: Tensor | slice  # of the batch

    def choose(
        self, logits: Tensor, positions: Tensor, drafts: DraftedDraw | None = None
    ) -> tuple[Tensor, Tensor]:
        """Find the cell first: torch's max is ten times faster than its argmax."""
        cells = by_cells(logits)  # [rows, cells, cell]
        peaks = cells.amax(-1)
        first = peaks.argmax(-1)
        rows = torch.arange(len(logits), device=logits.device)
        within = cells[rows, first].argmax(-1)
        return first * cells.shape[-1] + within, peaks[rows, first]


class Filter(Protocol):
    """Keeps the largest weights; equal weights are kept or dropped together."""

    def smallest(self, weights: Tensor) -> Tensor:
        """The smallest weight to keep, [rows, 1]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RandomDraw:
    """A random token among those that the filters keep; the likeliest has weight 1."""

    rows: Tensor | slice  # of the batch
    keys: Tensor  # [rows]
    temperature: Tensor  # [rows, 1]
    filters: tuple[Filter, ...]

    def choose(
        self, logits: Tensor, positions: Tensor, drafts: DraftedDraw | None = None
    ) -> tuple[Tensor, Tensor]:
        peak = logits.amax(-1, keepdim=True)
        weights = relative_weights((logits - peak).div_(self.temperature))  # [rows, vocab]
        for each in self.filters:
            # On a CPU, multiplying by 0 or 1 is several times faster than a mask.
            weights *= torch.ge(weights, each.smallest(weights), out=torch.empty_like(weights))
        if drafts is not None:
            return drafts.draw(weights, self.keys, positions), peak[:, 0]
        return draw(weights, random_words(self.keys, positions)), peak[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class MinP:
    """Keeps tokens that are at least `part` times as likely as the likeliest."""

    part: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        return self.part


@dataclass(frozen=True, slots=True, eq=False)
class TopK:
    """Keeps the k likeliest tokens, and of these the top `share` of their mass."""

    counts: Tensor  # [rows, 1]
    most: int  # the largest count
    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        falling = largest(weights, self.most)
        upto = masses(falling).cumsum(-1)  # [rows, most]
        return reached(falling, upto, portion(self.share, upto.gather(-1, self.counts - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class TopP:
    """Keeps the likeliest tokens that make up `share` of the mass."""

    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        whole = masses(by_cells(weights).sum(-1)).sum(-1, keepdim=True)
        target = portion(self.share, whole)
        # On a CPU, try the largest few first, since sorting all is slow.
        if weights.device.type == "cpu" and weights.shape[-1] > FEW:
            falling = largest(weights, FEW)
            upto = masses(falling).cumsum(-1)  # [rows, few]
            if bool((upto[:, -1:] >= target).all()):
                return reached(falling, upto, target)
        falling = largest(weights, weights.shape[-1])
        return reached(falling, masses(falling).cumsum(-1), target)


def largest(weights: Tensor, count: int) -> Tensor:
    """The `count` largest values of each row, in descending order.

    On a CPU, numpy's vectorised sort is up to thirty times faster than torch's, which also sorts
    indices.
    """
    if weights.device.type != "cpu":
        return weights.topk(count).values
    values = weights.numpy()
    if (others := values.shape[-1] - count) > 0:
        values = np.partition(values, others)[:, others:]
    return from_numpy(np.sort(values)).flip(-1)


def masses(weights: Tensor) -> Tensor:
    return (weights * UNIT).long()


def portion(share: Tensor, whole: Tensor) -> Tensor:
    """The smallest mass that makes up `share` of the whole, all [rows, 1]."""
    return torch.minimum((share * whole).ceil().long(), whole)  # the product may be rounded up


def reached(falling: Tensor, upto: Tensor, target: Tensor) -> Tensor:
    """The weight at which the cumulative mass reaches the target."""
    last = torch.searchsorted(upto, target).clamp_(max=falling.shape[-1] - 1)
    return falling.gather(-1, last)  # [rows, 1]


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
        self.uses[line] = from_numpy(uses)
        self.tokens[line, : len(known)] = from_numpy(known).clamp_(min=0)
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
        values = logits[rows, named]
        values = torch.where(values > 0.0, values / factor, values * factor)
        values -= self.frequency * outputs
        values -= self.presence * outputs.clamp(max=1.0)
        logits[rows, named] = values  # a repeated token gets the same value twice

    def observe(self, ids: Tensor, positions: Tensor) -> None:
        """Count ids [rows, width] from the positions [rows] on, except -1."""
        tally, width = self.tally, ids.shape[1]
        tokens = ids.index_select(0, self.rows)  # [penalised, width]
        steps = torch.arange(width, device=ids.device)
        columns = positions.index_select(0, self.rows)[:, None] + steps
        real = tokens >= 0
        tokens = tokens.clamp(min=0)
        tally.tokens[self.lines, torch.where(real, columns, tally.tokens.shape[1] - 1)] = tokens
        tally.uses.index_put_((self.lines, tokens), real.float(), accumulate=True)
        tally.reach[self._lines] += width
