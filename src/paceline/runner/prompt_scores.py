"""How likely the tokens of a prompt are, for requests that ask while it is computed."""

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.core.arrays import I32
from paceline.core.plan import Plan, PromptScores
from paceline.core.request import Request
from paceline.runner.batch import Batch
from paceline.runner.models.model import Model
from paceline.runner.sampler import Scores, score

MOST_LOGITS = 1 << 22  # held at once; a long prompt is scored in slices


def prompt_scores(
    plan: Plan, batch: Batch, hidden: Tensor, asking: Mapping[int, Request], model: Model
) -> tuple[PromptScores, ...]:
    """Of the rows of a step, those whose requests ask, where they compute a part of a prompt.

    A position tells of the token behind it, so the last one of a prompt tells of the output and
    is left out. `asking` has requests by slot, `hidden` is [positions, width].
    """
    rows, found = plan.rows, list[PromptScores]()
    for row, slot in enumerate(rows.slot.tolist()):
        request = asking.get(slot)
        wanted = None if request is None else request.sampling.prompt_logprobs
        if request is None or wanted is None:
            continue
        begin, end = batch.row_start[row : row + 2].tolist()
        first = int(batch.position[begin]) + 1
        tokens = request.prompt[first : first + end - begin]
        if len(tokens):
            own = scored(hidden[begin : begin + len(tokens)], tokens, wanted, model)
            found.append(
                PromptScores(
                    request_id=str(rows.request_id[row]),
                    serial=int(rows.serial[row]),
                    first=first,
                    logprob=own.given.numpy(),
                    rank=own.rank.int().numpy(),
                    ids=own.ids.int().numpy(),
                    values=own.values.numpy(),
                )
            )
    return tuple(found)


def scored(hidden: Tensor, tokens: I32, alternatives: int, model: Model) -> Scores:
    """Scores of the token behind each position, a slice of them at a time."""
    size = max(1, MOST_LOGITS // model.config.vocab)
    ids = torch.from_numpy(tokens.astype("int64"))
    slices = zip(hidden.split(size), ids.split(size), strict=True)
    parts = [score(model.logits(part), own, alternatives) for part, own in slices]
    return Scores(
        given=torch.cat([part.given for part in parts]),
        rank=torch.cat([part.rank for part in parts]),
        ids=torch.cat([part.ids for part in parts]),
        values=torch.cat([part.values for part in parts]),
    )
