"""Which positions of a step belong to prompts that are pooled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import F32
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


def pooled_span(plan: Plan, span: PoolSpan, total: F32) -> PooledSpan:
    """What a step reports of a span."""
    rows, row = plan.rows, span.row
    return PooledSpan(
        str(rows.request_id[row]), int(rows.serial[row]), span.first, span.count, total
    )
