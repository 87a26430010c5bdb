"""Hidden states of prompts, added up for requests that want an embedding."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.core.pool_spans import PoolSpan, pooled_span
from paceline.core.pooling import PooledSpan


def summed(hidden: Tensor, spans: Sequence[PoolSpan], normed: Callable[[Tensor], Tensor]) -> Tensor:
    """The sums of spans [spans, width], from the hidden states of all positions of a step."""
    return torch.stack(
        [normed(hidden[span.begin : span.begin + span.count]).float().sum(0) for span in spans]
    )


def pooled_spans(plan: Plan, spans: Sequence[PoolSpan], totals: Tensor) -> tuple[PooledSpan, ...]:
    """Assign sums on the host to requests."""
    values = totals.numpy()
    return tuple(pooled_span(plan, span, values[place].copy()) for place, span in enumerate(spans))
