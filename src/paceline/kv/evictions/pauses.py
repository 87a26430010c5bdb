"""How likely content is used again, by the time since its latest use."""

from math import log2

import numpy as np

from paceline.core.arrays import F64, Index

LEAST_S, MOST_S = 0.05, 6 * 3600.0
PER_OCTAVE = 2
BINS = int(log2(MOST_S / LEAST_S) * PER_OCTAVE) + 2
EDGES: F64 = np.concatenate([[0.0], LEAST_S * 2.0 ** (np.arange(BINS) / PER_OCTAVE)])  # [BINS + 1]
WIDTHS: F64 = np.diff(EDGES)
PRIOR: F64 = 0.5 / (EDGES[:-1] + WIDTHS / 2 + 1.0)  # falls with age, which is the order of lru
PRIOR_RETURNS = 4.0  # how many returns the prior weighs, in each bin
SHARED_RETURNS = 2.0  # likewise, what all kinds have in common against what one kind has
HALF_LIFE = 4000.0  # returns after which an observation counts half
REFRESH_RETURNS, REFRESH_S = 16, 1.0


class Pauses:
    """Returns and time at risk by kind of content and age, and what follows from them.

        age       0   50 ms   70 ms   0.1 s   ...   6 h
        returns   |   0   |   2   |   5   |   ...         content that was used again at this age
        at risk   |  9 s  |  8 s  |  8 s  |   ...         seconds that content spent at this age

    Returns divided by time at risk are the rate at which content of this age is used again. Content
    that was evicted before it could return counts until then, so that what is observed does not
    depend on what is kept. Rates are drawn towards those of all kinds together, and these towards
    ones that fall with age. Old observations lose weight.

    `worth` of an age is the largest share of returns for the seconds until then, over all times at
    which one could give up waiting: a Gittins index. It is high where a return is near.
    """

    def __init__(self, kinds: int) -> None:
        self.returns: F64 = np.zeros((kinds, BINS))
        self.at_risk: F64 = np.zeros((kinds, BINS))
        self._worth: F64 = np.tile(best_rates(PRIOR[None])[0], (kinds, 1))
        self._new = 0
        self._refreshed_at = -np.inf

    def returned(self, kind: int, age_s: float) -> None:
        self.returns[kind, bin_of(age_s)] += 1.0
        self._new += 1

    def waited(self, kind: Index, since_s: F64, until_s: F64) -> None:
        """Content of these kinds grew older without being used, from one age to another."""
        spent = np.clip(until_s[:, None], EDGES[:-1], EDGES[1:])
        spent -= np.clip(since_s[:, None], EDGES[:-1], EDGES[1:])
        np.add.at(self.at_risk, kind, spent)

    def is_due(self, now: float) -> bool:
        """Is there enough news for `refresh`?"""
        return self._new >= REFRESH_RETURNS and now - self._refreshed_at >= REFRESH_S

    def refresh(self, now: float) -> None:
        """Compute `worth` from all observations, and let them age."""
        returns, at_risk = self.returns.sum(axis=0), self.at_risk.sum(axis=0)
        shared = (returns + PRIOR_RETURNS) / (at_risk + PRIOR_RETURNS / PRIOR)
        rates = (self.returns + SHARED_RETURNS) / (self.at_risk + SHARED_RETURNS / shared)
        self._worth = best_rates(rates)
        fading = 0.5 ** (self._new / HALF_LIFE)
        self.returns *= fading
        self.at_risk *= fading
        self._new, self._refreshed_at = 0, now

    def worth(self, kind: Index, age_s: F64) -> F64:
        """Returns per second of keeping content of these kinds and ages."""
        bins: Index = np.searchsorted(EDGES, age_s, side="right") - 1
        found: F64 = self._worth[kind, np.clip(bins, 0, BINS - 1)]
        return found


def bin_of(age_s: float) -> int:
    if age_s < LEAST_S:
        return 0
    return min(int(log2(age_s / LEAST_S) * PER_OCTAVE) + 1, BINS - 1)


def best_rates(rates: F64) -> F64:  # [kinds, BINS]
    """The largest probability of a return per expected second, from the start of each bin on."""
    stays = np.exp(-rates * WIDTHS)
    best = np.empty_like(rates)
    for first in range(BINS):
        rate, left = rates[:, first:], stays[:, first:]
        alive = np.cumprod(left, axis=1)
        before = np.concatenate([np.ones((len(rates), 1)), alive[:, :-1]], axis=1)
        time = np.cumsum(before * (1.0 - left) / rate, axis=1)
        best[:, first] = ((1.0 - alive) / time).max(axis=1)
    return best
