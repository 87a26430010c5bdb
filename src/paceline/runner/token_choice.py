"""The choice of a token: the likeliest, or one by chance, the same wherever it is made.

Random bits come from a counter: they are SplitMix64's output function of `key + position * GAMMA`,
where the key is its output for the seed. There is no state, so neighbours, preemption and
chunking cannot reach a draw, and integers give the same bits on every device.

A token is found where the cumulative distribution passes a random number. That takes 64 bits per
row, where Gumbel noise takes as many for every token of the vocabulary. The masses that are added
up are integers, so that no device has a say in the result by the order of its additions.
"""

from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

RANGE = 1 << 64
HALF = (1 << 32) - 1
CELL = 64  # tokens whose weights are added up before the first look
UNIT = 2.0**44  # the mass of weight 1; those of 2**18 tokens fit into 64 bits
CELL_UNIT = 2.0**56  # its mass inside a cell: whatever gave the cell a mass has one there too
WEIGHTLESS = -60.0  # exp of it has no mass; for much less a CPU takes 100 times as long
FEW = 1024  # tokens that hold nearly every share that is asked for


def signed(word: int) -> int:
    """The lowest 64 bits of an integer, as torch holds them."""
    return (word + RANGE // 2) % RANGE - RANGE // 2


GAMMA = signed(0x9E3779B97F4A7C15)
FIRST = signed(0xBF58476D1CE4E5B9)
SECOND = signed(0x94D049BB133111EB)


def shifted(words: Tensor, bits: int) -> Tensor:
    """A right shift that moves in zeros, where torch's moves in the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every bit sways all others."""
    words = (words ^ shifted(words, 30)) * FIRST
    words = (words ^ shifted(words, 27)) * SECOND
    return words ^ shifted(words, 31)


def key_of(seed: int) -> int:
    """Where the bits of a seed begin. Seeds that agree in their lowest 64 bits are the same."""
    return int(mix(torch.tensor(signed(seed + GAMMA))))


def random_words(keys: Tensor, positions: Tensor) -> Tensor:
    """64 random bits for each row, a function of its key and its position."""
    return mix(torch.add(keys, positions, alpha=GAMMA))  # [rows]


def by_cells(values: Tensor) -> Tensor:
    """The same [rows, vocab] as [rows, cells, cell]; in a vocabulary of odd size, cells of one."""
    return values.unflatten(-1, (-1, gcd(values.shape[-1], CELL)))


def relative_weights(logits: Tensor) -> Tensor:
    """The exponentials of logits that are at most 0, in their place."""
    return logits.clamp_(min=WEIGHTLESS).exp_()


def pick(weights: Tensor, unit: float, at: Tensor) -> Tensor:
    """The choice at which the cumulative weight passes `at`, a part of the whole in [0, 1).

    Weights [rows, choices] lie in [0, 1] or are sums of such. A row that has none to choose gets
    any choice.
    """
    upto = (weights * unit).long().cumsum(-1)  # [rows, choices]
    target = (at * upto[:, -1]).long()  # below the total: 2**-32 is far from a rounding error
    chosen = torch.searchsorted(upto, target[:, None], right=True)
    return chosen.clamp_(max=weights.shape[-1] - 1)[:, 0]  # [rows]


def draw(weights: Tensor, words: Tensor) -> Tensor:
    """A token id for each row of weights [rows, vocab]: first a cell of ids, then one in it.

    Each step is decided by its own half of the row's random word.
    """
    cells = by_cells(weights)  # [rows, cells, cell]
    first = pick(cells.sum(-1), UNIT, shifted(words, 32).double() * 2.0**-32)
    rows = torch.arange(len(words), device=words.device)
    within = pick(cells[rows, first], CELL_UNIT, (words & HALF).double() * 2.0**-32)
    return first * cells.shape[-1] + within  # [rows]


@dataclass(frozen=True, slots=True, eq=False)
class Greedy:
    """The most likely token; among equals the one with the smallest id."""

    rows: Tensor | slice  # of the batch

    def choose(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """By cells first, since torch finds a maximum ten times faster than its place."""
        cells = by_cells(logits)  # [rows, cells, cell]
        peaks = cells.amax(-1)
        first = peaks.argmax(-1)
        rows = torch.arange(len(logits), device=logits.device)
        within = cells[rows, first].argmax(-1)
        return first * cells.shape[-1] + within, peaks[rows, first]


class Filter(Protocol):
    """Keeps the larger ones of relative weights. Equal weights stay or go together."""

    def smallest(self, weights: Tensor) -> Tensor:
        """The smallest weight that stays, [rows, 1]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RandomDraw:
    """A token by chance, from those that the filters leave. The likeliest has weight 1."""

    rows: Tensor | slice  # of the batch
    keys: Tensor  # [rows]
    temperature: Tensor  # [rows, 1]
    filters: tuple[Filter, ...]

    def choose(self, logits: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        peak = logits.amax(-1, keepdim=True)
        weights = relative_weights((logits - peak).div_(self.temperature))  # [rows, vocab]
        for each in self.filters:
            # A comparison written as numbers is several times faster on a CPU than a mask.
            weights *= torch.ge(weights, each.smallest(weights), out=torch.empty_like(weights))
        return draw(weights, random_words(self.keys, positions)), peak[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class MinP:
    """Keeps what is at least this likely, as a part of the likeliest."""

    part: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        return self.part


@dataclass(frozen=True, slots=True, eq=False)
class TopK:
    """Keeps the k likeliest, and of these the likeliest that make up a share of them."""

    counts: Tensor  # [rows, 1]
    most: int  # the largest count
    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        falling = largest(weights, self.most)
        upto = masses(falling).cumsum(-1)  # [rows, most]
        return reached(falling, upto, portion(self.share, upto.gather(-1, self.counts - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class TopP:
    """Keeps the likeliest that make up a share of all."""

    share: Tensor  # [rows, 1]

    def smallest(self, weights: Tensor) -> Tensor:
        whole = masses(by_cells(weights).sum(-1)).sum(-1, keepdim=True)
        target = portion(self.share, whole)
        # A CPU looks at a few first: it can wait for the answer, and sorting all takes it long.
        if weights.device.type == "cpu" and weights.shape[-1] > FEW:
            falling = largest(weights, FEW)
            upto = masses(falling).cumsum(-1)  # [rows, few]
            if bool((upto[:, -1:] >= target).all()):
                return reached(falling, upto, target)
        falling = largest(weights, weights.shape[-1])
        return reached(falling, masses(falling).cumsum(-1), target)


def largest(weights: Tensor, count: int) -> Tensor:
    """The `count` largest of each row, in falling order.

    numpy sorts bare values, and does it in vector registers; torch moves their places with them,
    which takes a CPU up to thirty times as long.
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
    """The least mass that makes up a share of the whole, all [rows, 1]."""
    return torch.minimum((share * whole).ceil().long(), whole)  # a product may be rounded up


def reached(falling: Tensor, upto: Tensor, target: Tensor) -> Tensor:
    """The weight with which the cumulative mass reaches the target."""
    last = torch.searchsorted(upto, target).clamp_(max=falling.shape[-1] - 1)
    return falling.gather(-1, last)  # [rows, 1]
