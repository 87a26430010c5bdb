"""Hidden states of prompts, added up for requests that want an embedding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.plan import Plan
from paceline.core.pooling import CLS, LAST, PooledSpan
from paceline.core.request import Request


@dataclass(frozen=True, slots=True)
class PoolSpan:
    """Positions of a row that its request pools."""

    row: int
    begin: int  # the first of these positions, among those of the step
    first: int  # its place in the prompt
    count: int


def pool_spans(plan: Plan, start: Sequence[int], pooling: Mapping[int, Request]) -> list[PoolSpan]:
    """The spans of a step whose rows begin at positions `start`, for the requests in `pooling`, by
    slot."""
    rows, found = plan.rows, list[PoolSpan]()
    ends = np.cumsum(rows.count).tolist()
    for row, slot in enumerate(rows.slot.tolist()):
        if (request := pooling.get(slot)) is None:
            continue
        first, count = int(start[row]), int(rows.count[row])
        wanted = wanted_positions(request, first, min(first + count, len(request.prompt)))
        if len(wanted):
            begin = ends[row] - count + wanted.start - first
            found.append(PoolSpan(row, begin, wanted.start, len(wanted)))
    return found


def wanted_positions(request: Request, first: int, end: int) -> range:
    """Which of the positions first..end a request pools."""
    if request.pooling == LAST:
        return range(max(first, len(request.prompt) - 1), end)
    return range(first, min(end, 1) if request.pooling == CLS else end)


def summed(hidden: Tensor, spans: Sequence[PoolSpan], normed: Callable[[Tensor], Tensor]) -> Tensor:
    """The sums of spans [spans, width], from the hidden states of all positions of a step."""
    return torch.stack(
        [normed(hidden[span.begin : span.begin + span.count]).float().sum(0) for span in spans]
    )


def pooled_spans(plan: Plan, spans: Sequence[PoolSpan], totals: Tensor) -> tuple[PooledSpan, ...]:
    """Assign sums on the host to requests."""
    rows, values = plan.rows, totals.numpy()
    return tuple(
        PooledSpan(
            str(rows.request_id[span.row]),
            int(rows.serial[span.row]),
            span.first,
            span.count,
            values[place].copy(),
        )
        for place, span in enumerate(spans)
    )
