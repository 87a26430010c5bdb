"""Log-probabilities of prompt tokens, computed together with the prompt."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.plan import Plan, PromptScores
from paceline.core.request import Request
from paceline.runner.models.model import Model
from paceline.runner.sampler import TokenScores, score

MOST_LOGITS = 1 << 22  # in memory at once; a long prompt is scored in slices


@dataclass(frozen=True, slots=True, eq=False)
class PromptSpan:
    """Positions of a row that predict tokens of its prompt: each predicts the next token.

    The last position of a prompt predicts the output, and is never part of a span.
    """

    row: int
    begin: int  # the first of these positions, among those of the step
    first: int  # place of the first predicted token in the prompt
    tokens: I32
    alternatives: int


def prompt_scores(
    plan: Plan, spans: Sequence[PromptSpan], hidden: Tensor, model: Model
) -> tuple[PromptScores, ...]:
    """Score spans, from the hidden states of all positions of a step, [positions, width]."""
    size = slice_size(model.config.vocab)
    ids = [torch.from_numpy(span.tokens.astype(np.int64)) for span in spans]
    return by_request(plan, spans, scored(hidden, spans, ids, model.logits, size))


def slice_size(vocab: int) -> int:
    """Positions that are scored at once."""
    return max(1, MOST_LOGITS // vocab)


def slices_of(hidden: Tensor, span: PromptSpan, size: int) -> tuple[Tensor, ...]:
    """The hidden states of a span, `size` positions at a time."""
    return hidden[span.begin : span.begin + len(span.tokens)].split(size)


def spans(plan: Plan, start: Sequence[int], asking: Mapping[int, Request]) -> list[PromptSpan]:
    """The spans of a step whose rows begin at positions `start`, for the requests in `asking`, by
    slot."""
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
        slices = zip(slices_of(hidden, span, size), tokens.split(size), strict=True)
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
            logprob=own.given.numpy(),
            rank=own.rank.int().numpy(),
            ids=own.ids.int().numpy(),
            values=own.values.numpy(),
        )
        for span, own in zip(spans, scores, strict=True)
    )
