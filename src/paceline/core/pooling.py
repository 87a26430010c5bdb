"""Embeddings: how a request turns the hidden states of its prompt into one vector."""

from dataclasses import dataclass

import numpy as np

from paceline.core.arrays import F32

LAST, MEAN, CLS = "last", "mean", "cls"
POOLING_KINDS = (LAST, MEAN, CLS)  # of the last position, of all, of the first


@dataclass(frozen=True, slots=True, eq=False)
class PooledSpan:
    """The sum of the hidden states of positions that follow each other in a prompt.

    A step reports one for each row that computes positions which the request pools. The serial is
    that of the sequence which computed them. The same ones may be reported again.
    """

    request_id: str
    serial: int
    first: int  # place of the first position in the prompt
    count: int  # number of positions
    total: F32  # [width]


class PooledMean:
    """The mean of the spans of one request, as they arrive.

    A sequence that is preempted resumes at the beginning, or where a span began. The spans from
    there on come again and replace the ones before.
    """

    def __init__(self) -> None:
        self._spans: list[PooledSpan] = []

    def add(self, span: PooledSpan) -> None:
        while self._spans and self._spans[-1].first >= span.first:
            self._spans.pop()
        self._spans.append(span)

    def value(self) -> F32 | None:
        """None before the first span."""
        if not self._spans:
            return None
        total = sum((span.total for span in self._spans[1:]), start=self._spans[0].total)
        return total / np.float32(sum(span.count for span in self._spans))
