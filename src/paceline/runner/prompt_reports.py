"""Prompt logprobs and pooled hidden states."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.plan import Plan, StepResult
from paceline.core.pool_spans import PoolSpan, pool_spans, pooled_span
from paceline.core.pooling import PooledSpan, PromptScores
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.sampling.sampler import TokenScores, score
from paceline.runner.tensors import from_numpy, to_ints

MOST_LOGITS = 1 << 22  # in memory at once; long prompts are scored in slices


@dataclass(frozen=True, slots=True, eq=False)
class PromptSpan:
    """Positions of a row that predict prompt tokens; each predicts the next token.

    The last position of a prompt predicts the output, and is never part of a span.
    """

    row: int
    begin: int  # the first of these positions, among those of the step
    first: int  # position of the first predicted token in the prompt
    tokens: I32
    alternatives: int


def prompt_scores(
    plan: Plan, spans: Sequence[PromptSpan], hidden: Tensor, model: Model
) -> tuple[PromptScores, ...]:
    """Score spans from the hidden states of all positions of a step, [positions, width]."""
    size = slice_size(model.config.vocab)
    ids = [from_numpy(span.tokens.astype(np.int64)) for span in spans]
    return by_request(plan, spans, scored(hidden, spans, ids, model.logits, size))


def slice_size(vocab: int) -> int:
    """Number of positions scored at once."""
    return max(1, MOST_LOGITS // vocab)


def slices_of(hidden: Tensor, span: PromptSpan, size: int) -> tuple[Tensor, ...]:
    """The hidden states of a span, `size` positions at a time."""
    return torch.split(hidden[span.begin : span.begin + len(span.tokens)], size)


def spans(plan: Plan, start: Sequence[int], asking: Mapping[int, Request]) -> list[PromptSpan]:
    """The spans of a step whose rows begin at positions `start`; `asking` has requests by slot."""
    rows, found = plan.rows, list[PromptSpan]()
    ends = np.cumsum(rows.count).tolist()
    for row, slot in enumerate(rows.slot.tolist()):
        request = asking.get(slot)
        wanted = None if request is None else request.sampling.prompt_logprobs
        if request is None or wanted is None:
            continue
        count, first = int(rows.count[row]), int(start[row]) + 1
        tokens = request.prompt[first : first + count]
        if len(tokens):
            found.append(PromptSpan(row, ends[row] - count, first, tokens, wanted))
    return found


def scored(
    hidden: Tensor,
    spans: Sequence[PromptSpan],
    ids: Iterable[Tensor],
    logits: Callable[[Tensor], Tensor],
    size: int,
) -> list[TokenScores]:
    """Score each span, `size` positions at a time; `ids` are on the device of `hidden`."""
    found: list[TokenScores] = []
    for span, tokens in zip(spans, ids, strict=True):
        slices = zip(slices_of(hidden, span, size), torch.split(tokens, size), strict=True)
        parts = [score(logits(part), given, span.alternatives) for part, given in slices]
        found.append(
            TokenScores(
                given=torch.cat([part.given for part in parts]),
                rank=torch.cat([part.rank for part in parts]),
                ids=torch.cat([part.ids for part in parts]),
                values=torch.cat([part.values for part in parts]),
            )
        )
    return found


def by_request(
    plan: Plan, spans: Sequence[PromptSpan], scores: Sequence[TokenScores]
) -> tuple[PromptScores, ...]:
    """Assign scores on the host to requests."""
    rows = plan.rows
    return tuple(
        PromptScores(
            request_id=str(rows.request_id[span.row]),
            serial=int(rows.serial[span.row]),
            first=span.first,
            logprob=found.given.numpy(),
            rank=found.rank.int().numpy(),
            ids=found.ids.int().numpy(),
            values=found.values.numpy(),
        )
        for span, found in zip(spans, scores, strict=True)
    )


def span_positions(spans: Sequence[PoolSpan]) -> tuple[I32, I32]:
    """The positions of all spans among those of the step, and the length of each span."""
    count = np.array([span.count for span in spans], np.int32)
    begin = np.array([span.begin for span in spans], np.int32)
    first = np.cumsum(count, dtype=np.int32) - count
    at = np.arange(int(count.sum()), dtype=np.int32) + np.repeat(begin - first, count)
    return at, count


def summed(hidden: Tensor, at: Tensor, count: Tensor, normed: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum the hidden states of each span, [spans, width] in float32."""
    states = normed(hidden.index_select(0, at)).float()
    return torch.segment_reduce(states, "sum", lengths=count, axis=0, unsafe=True)


def pooled_spans(plan: Plan, spans: Sequence[PoolSpan], totals: Tensor) -> tuple[PooledSpan, ...]:
    """Assign sums on the host to requests."""
    values = totals.numpy()
    return tuple(pooled_span(plan, span, values[index].copy()) for index, span in enumerate(spans))


@dataclass(frozen=True, slots=True, eq=False)
class PromptReport:
    """The spans of a step to score or to pool."""

    plan: Plan
    asked: list[PromptSpan]
    pools: list[PoolSpan]

    def added(self, result: StepResult, hidden: Tensor, model: Model) -> StepResult:
        """Add scores and sums, from the hidden states of all positions, to a result."""
        prompt = prompt_scores(self.plan, self.asked, hidden, model) if self.asked else ()
        pooled = self._pooled(hidden, model) if self.pools else ()
        return replace(result, prompt=prompt, pooled=pooled)

    def take_part(self, hidden: Tensor, model: Model) -> None:
        """Compute the columns of this rank of the logits that `added` computes on rank 0."""
        for span in self.asked:
            for part in slices_of(hidden, span, slice_size(model.config.vocab)):
                model.logits(part)

    def _pooled(self, hidden: Tensor, model: Model) -> tuple[PooledSpan, ...]:
        at, count = (from_numpy(one.astype(np.int64)) for one in span_positions(self.pools))
        return pooled_spans(self.plan, self.pools, summed(hidden, at, count, model.normed))


class PromptReports:
    """Residents that want prompt logprobs or pooled hidden states, by slot."""

    def __init__(self) -> None:
        self._asking: dict[int, Request] = {}  # by slot: requests for logprobs
        self._pooling: dict[int, Request] = {}  # by slot: requests for pooling

    def apply(self, plan: Plan) -> None:
        """Follow the changes of a plan."""
        for slot in plan.released:
            self._asking.pop(slot, None)
            self._pooling.pop(slot, None)
        for new in plan.admitted:
            if new.request.sampling.prompt_logprobs is not None:
                self._asking[new.slot] = new.request
            if new.request.pooling:
                self._pooling[new.slot] = new.request

    def of_step(self, plan: Plan, batch: Batch) -> PromptReport | None:
        """The prompt report of a step; None if no request wants one."""
        if not (self._asking or self._pooling):
            return None
        start = to_ints(batch.position[batch.row_start[:-1]])
        asked = spans(plan, start, self._asking) if self._asking else []
        pools = pool_spans(plan, start, self._pooling) if self._pooling else []
        return PromptReport(plan, asked, pools) if asked or pools else None
