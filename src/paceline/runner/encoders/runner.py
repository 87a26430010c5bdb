"""Runs plans of an encoder: every row is a whole text, and its result is a vector."""

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from paceline.core.capabilities import Capabilities
from paceline.core.plan import Plan, StepResult
from paceline.core.pool_spans import PoolSpan, pool_spans, pooled_span
from paceline.core.pooling import PooledSpan
from paceline.core.request import Request
from paceline.runner.encoders.model import TextEncoder

ALIKE = 1.25  # texts are padded to the same length if the longest is at most this much longer


class EncoderRunner:
    """A text is computed by one row, so nothing is kept between steps and there is no KV memory.

    Each text gets one token that has no meaning, which ends its request.
    """

    capabilities = Capabilities(pooling=True, generation=False)

    def __init__(self, model: TextEncoder, separator: int | None = None) -> None:
        self._model, self._separator = model, separator
        self._requests: dict[int, Request] = {}  # by slot
        self._results: deque[StepResult] = deque()

    def launch(self, plan: Plan) -> None:
        for slot in plan.released:
            self._requests.pop(slot, None)
        for new in plan.admitted:
            self._requests[new.slot] = new.request
        if not plan.empty:
            self._results.append(self._run(plan))

    def wait(self) -> StepResult:
        return self._results.popleft()

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        self._results.clear()

    def _run(self, plan: Plan) -> StepResult:
        rows = len(plan.rows)
        spans = pool_spans(plan, plan.start.tolist(), self._requests)
        found: list[PooledSpan] = []
        for group in alike(spans, plan.rows.count.tolist()):
            found += self._pooled(plan, group)
        ids, count = np.zeros((rows, 1), np.int32), np.ones(rows, np.int32)
        return StepResult(ids, count, pooled=tuple(found))

    def _pooled(self, plan: Plan, spans: Sequence[PoolSpan]) -> list[PooledSpan]:
        asked = [self._requests[int(plan.rows.slot[span.row])] for span in spans]
        ids = [torch.from_numpy(one.prompt.astype(np.int64)) for one in asked]
        hidden = self._model.forward(ids, self._separator)
        wanted = zip(hidden, spans, strict=True)
        totals = torch.stack(
            [one[span.first : span.first + span.count].float().sum(0) for one, span in wanted]
        )
        if self._model.config.classes:
            totals = self._model.classified(hidden).float()
        values = totals.cpu().numpy()
        return [pooled_span(plan, span, values[place]) for place, span in enumerate(spans)]


def alike(spans: Sequence[PoolSpan], count: Sequence[int]) -> list[list[PoolSpan]]:
    """Texts of similar length together, so that little is computed for padding."""
    groups: list[list[PoolSpan]] = []
    for span in sorted(spans, key=lambda span: count[span.row]):
        if groups and count[span.row] <= ALIKE * count[groups[-1][0].row]:
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups
