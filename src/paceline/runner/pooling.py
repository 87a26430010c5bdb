"""Hidden states of prompts, added up for requests that want an embedding."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.plan import Plan
from paceline.core.pool_spans import PoolSpan, pooled_span
from paceline.core.pooling import PooledSpan


def places(spans: Sequence[PoolSpan]) -> tuple[I32, I32]:
    """The positions of all spans among those of the step, and the length of each span."""
    count = np.array([span.count for span in spans], np.int32)
    begin = np.array([span.begin for span in spans], np.int32)
    first = np.cumsum(count, dtype=np.int32) - count
    at = np.arange(int(count.sum()), dtype=np.int32) + np.repeat(begin - first, count)
    return at, count


def summed(hidden: Tensor, at: Tensor, count: Tensor, normed: Callable[[Tensor], Tensor]) -> Tensor:
    """The sums of spans [spans, width] in float32, from the hidden states of all positions."""
    own = normed(hidden.index_select(0, at)).float()
    return torch.segment_reduce(own, "sum", lengths=count, axis=0, unsafe=True)


def pooled_spans(plan: Plan, spans: Sequence[PoolSpan], totals: Tensor) -> tuple[PooledSpan, ...]:
    """Assign sums on the host to requests."""
    values = totals.numpy()
    return tuple(pooled_span(plan, span, values[place].copy()) for place, span in enumerate(spans))
