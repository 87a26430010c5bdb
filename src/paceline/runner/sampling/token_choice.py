"""Chooses a token, the likeliest or a random one, with the same result on every device.

Random bits come from a counter: SplitMix64's output function of `key + position * GAMMA`, where the
key is its output for the seed. There is no state, so other rows, preemption and chunking cannot
change a draw, and integer arithmetic gives the same bits on every device.

A token is drawn where the cumulative distribution passes a random number. This needs 64 bits per
row; Gumbel noise needs as many for every token of the vocabulary. The masses that are summed are
integers, so the order of additions cannot change the result.
"""

from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

RANGE = 1 << 64
HALF = (1 << 32) - 1
CELL = 64  # tokens whose weights are summed before the first choice
UNIT = 2.0**44  # the mass of weight 1; those of 2**18 tokens fit into 64 bits
CELL_UNIT = 2.0**56  # its mass inside a cell: no token that gives the cell a mass has zero
WEIGHTLESS = -60.0  # its exp has no mass; exp of much less is 100 times slower on a CPU
FEW = 1024  # tokens that are enough for nearly every top_p


def signed(word: int) -> int:
    """The lowest 64 bits of an integer, as torch holds them."""
    return (word + RANGE // 2) % RANGE - RANGE // 2


GAMMA = signed(0x9E3779B97F4A7C15)
FIRST = signed(0xBF58476D1CE4E5B9)
SECOND = signed(0x94D049BB133111EB)


def shifted(words: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros; torch's fills with the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every bit depends on all others."""
    words = (words ^ shifted(words, 30)) * FIRST
    words = (words ^ shifted(words, 27)) * SECOND
    return words ^ shifted(words, 31)


def key_of(seed: int) -> int:
    """The key of a seed. Only the lowest 64 bits of a seed count."""
    return int(mix(torch.tensor(signed(seed + GAMMA))))


def random_words(keys: Tensor, positions: Tensor) -> Tensor:
    """64 random bits for each row, a function of its key and position."""
    return mix(torch.add(keys, positions, alpha=GAMMA))  # [rows]


def by_cells(values: Tensor) -> Tensor:
    """View [rows, vocab] as [rows, cells, cell]; with an odd vocabulary, cells have one token."""
    return values.unflatten(-1, (-1, gcd(values.shape[-1], CELL)))


def relative_weights(logits: Tensor) -> Tensor:
    """Replace logits, which are at most 0, by their exponentials."""
    return logits.clamp_(min=WEIGHTLESS).exp_()


def pick(weights: Tensor, unit: float, at: Tensor) -> Tensor:
    """The choice at which the cumulative weight passes `at` of the total, in [0, 1).

    Weights [rows, choices] lie in [0, 1] or are sums of such. A row without weights gets
    any choice.
    """
    upto = (weights * unit).long().cumsum(-1)  # [rows, choices]
    target = (at * upto[:, -1]).long()  # below the total: 2**-32 is far from a rounding error
    chosen = torch.searchsorted(upto, target[:, None], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)[:, 0]  # [rows]


def draw(weights: Tensor, words: Tensor) -> Tensor:
    """Draw a token id for each row of weights [rows, vocab]: first a cell, then an id in it.

    Each of the two choices uses one half of the row's random word.
    """
    cells = by_cells(weights)  # [rows, cells, cell]
    first = pick(cells.sum(-1), UNIT, shifted(words, 32).double() * 2.0**-32)
    rows = torch.arange(len(words), device=words.device)
    within = pick(cells[rows, first], CELL_UNIT, (words & HALF).double() * 2.0**-32)
    return first * cells.shape[-1] + within  # [rows]


class DraftedDraw(Protocol):
    """Drafts that were drawn at random, one for each row."""

    def draw(self, weights: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Draw a token id for each row by its weights [rows, vocab], and accept its draft by it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Greedy:
    """The most likely token; among equals, the smallest id."""

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
    """Keeps the largest weights. Equal weights are kept or dropped together."""

    def smallest(self, weights: Tensor) -> Tensor:
        """The smallest weight that is kept, [rows, 1]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RandomDraw:
    """A random token among those that the filters keep. The likeliest has weight 1."""

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
    """Keeps the k likeliest, and of these the likeliest that make up `share` of their mass."""

    counts: Tensor  # [rows, 1]
    most: int  # the largest count
    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        falling = largest(weights, self.most)
        upto = masses(falling).cumsum(-1)  # [rows, most]
        return reached(falling, upto, portion(self.share, upto.gather(-1, self.counts - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class TopP:
    """Keeps the likeliest that make up `share` of all mass."""

    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        whole = masses(by_cells(weights).sum(-1)).sum(-1, keepdim=True)
        target = portion(self.share, whole)
        # On a CPU, try the largest few first: sorting all of them is slow.
        if weights.device.type == "cpu" and weights.shape[-1] > FEW:
            falling = largest(weights, FEW)
            upto = masses(falling).cumsum(-1)  # [rows, few]
            if bool((upto[:, -1:] >= target).all()):
                return reached(falling, upto, target)
        falling = largest(weights, weights.shape[-1])
        return reached(falling, masses(falling).cumsum(-1), target)


def largest(weights: Tensor, count: int) -> Tensor:
    """The `count` largest of each row, in descending order.

    numpy sorts values in vector registers; torch also sorts indices, which is up to thirty times
    slower on a CPU.
    """
    if weights.device.type != "cpu":
        return weights.topk(count).values
    values = weights.numpy()
    if (others := values.shape[-1] - count) > 0:
        values = np.partition(values, others)[:, others:]
    return torch.from_numpy(np.sort(values)).flip(-1)


def masses(weights: Tensor) -> Tensor:
    return (weights * UNIT).long()


def portion(share: Tensor, whole: Tensor) -> Tensor:
    """The smallest mass that makes up `share` of the whole, all [rows, 1]."""
    return torch.minimum((share * whole).ceil().long(), whole)  # a product may be rounded up


def reached(falling: Tensor, upto: Tensor, target: Tensor) -> Tensor:
    """The weight with which the cumulative mass reaches the target."""
    last = torch.searchsorted(upto, target).clamp_(max=falling.shape[-1] - 1)
    return falling.gather(-1, last)  # [rows, 1]
