"""How many draft tokens each sequence verifies in a step."""

from importlib import import_module
from typing import Protocol

import numpy as np

from paceline.core.arrays import F32, I32
from paceline.core.config import SpeculationConfig
from paceline.core.errors import ConfigError

MOST = 2**31 - 1


class Speculation(Protocol):
    """One decision for all residents at once."""

    def drafts(self, most: I32, acceptance: F32) -> I32:
        """Drafts for each resident, at most `most[i]`, given the share accepted so far."""
        ...


class Fixed:
    """Always as many as allowed."""

    def __init__(self, config: SpeculationConfig) -> None:
        pass

    def drafts(self, most: I32, acceptance: F32) -> I32:
        return most


class Adaptive:
    """As many as are likely to be accepted and cost nothing.

    A step is free up to `speculation_max_batch_tokens` tokens, because it waits for
    memory and not for arithmetic: drafts share what the rows leave of that, so a large
    batch drafts nothing. Within it, the k-th draft is worth verifying while all k are
    accepted with at least even odds, acceptance ** k >= 1/2; the first one always is.
    """

    WORTH = 0.5

    def __init__(self, config: SpeculationConfig) -> None:
        self._free_tokens = config.speculation_max_batch_tokens

    def drafts(self, most: I32, acceptance: F32) -> I32:
        spare = max(self._free_tokens // len(most) - 1, 0) if len(most) else 0
        allowed = np.minimum(most, np.int32(min(spare, MOST)))
        worth = np.minimum(allowed, 1)  # one is always tried, lest a bad spell last forever
        odds = acceptance.copy()
        for count in range(2, int(allowed.max(initial=0)) + 1):
            odds *= acceptance  # by multiplication, which is the same to the bit everywhere
            worth[(odds >= self.WORTH) & (allowed >= count)] = count
        return worth


def load(config: SpeculationConfig) -> Speculation:
    """By name of a class here, or by dotted path."""
    known = {"fixed": Fixed, "adaptive": Adaptive}
    if config.speculation in known:
        return known[config.speculation](config)
    module, _, name = config.speculation.rpartition(".")
    if not module:
        there = ", ".join(known)
        raise ConfigError(
            f"no speculation {config.speculation!r}: there are {there}, and dotted paths"
        )
    try:
        found: Speculation = getattr(import_module(module), name)(config)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"no speculation {config.speculation!r}: {error}") from None
    return found
