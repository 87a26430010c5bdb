"""Rejection sampling of drafts that were drawn at random.

A draft d was drawn from q, and the model's distribution is p. It is accepted with probability
min(1, p(d) / q(d)); otherwise a token is drawn from max(p - q, 0), normalised. The resulting token
has the distribution p, whatever q is: a bad q is only accepted less often.

A draft that is determined by the tokens before it has q(d) = 1. It is accepted with probability
p(d), and the rest is p without d: sampling a token from p and comparing it with the draft is
equivalent, and needs no q.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.runner.sampling.token_choice import (
    Greedy,
    by_cells,
    draw,
    random_words,
    relative_weights,
    shifted,
    signed,
)

# Random words for drawing and accepting drafts, distinct from those for sampling tokens.
DRAWING, ACCEPTING = signed(0xD1B54A32D192ED03), signed(0x8CB92BA72F3D8DD7)


@dataclass(frozen=True, slots=True, eq=False)
class DrawnDrafts:
    """One draft for each row, or -1, and the probabilities with which it was drawn."""

    ids: Tensor  # [rows]
    probabilities: Tensor  # [rows, vocab]

    def of(self, rows: Tensor | slice) -> "DrawnDrafts":
        return DrawnDrafts(self.ids[rows], self.probabilities[rows])

    def draw(self, weights: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
        """Draw a token id for each row from weights [rows, vocab]: the draft if it is accepted."""
        likely = weights / total(weights)
        drafted = self.ids.clamp(min=0)[:, None]
        p, q = likely.gather(1, drafted)[:, 0], self.probabilities.gather(1, drafted)[:, 0]
        at = shifted(random_words(keys ^ ACCEPTING, positions), 11).double() * 2.0**-53
        is_drafted = self.ids >= 0
        rest = (likely - self.probabilities).clamp_(min=0.0)
        most = rest.amax(-1, keepdim=True)
        # Without a draft, or with a rest of zero after rounding, draw from the model's weights.
        is_rest = is_drafted[:, None] & (most > 0.0)
        drawn = draw(torch.where(is_rest, rest / most, weights), random_words(keys, positions))
        return torch.where(is_drafted & (at * q < p), self.ids, drawn)


def draw_drafts(
    logits: Tensor, temperature: Tensor, keys: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw a draft for each row at its position, from logits [rows, vocab] in float32. Returns ids
    [rows] and the probabilities used. At temperature 0, the draft is the likeliest token."""
    is_greedy = temperature <= 0.0
    heat = torch.where(is_greedy, 1.0, temperature)[:, None]
    best, peak = Greedy(slice(None)).choose(logits, positions)
    weights = relative_weights((logits - peak[:, None]).div_(heat))
    drawn = draw(weights, random_words(keys ^ DRAWING, positions))
    return torch.where(is_greedy, best, drawn), weights / total(weights)


def total(weights: Tensor) -> Tensor:
    return by_cells(weights).sum(-1).sum(-1, keepdim=True)  # [rows, 1]
