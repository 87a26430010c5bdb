"""Drafts of models change no output, whatever else goes on."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from paceline.runner.native.library import is_available
from paceline.runner.proposer import Proposer
from tests.property.model_schedules import ModelDrive

if not is_available():
    pytest.skip("needs a C compiler, for results that are the same bits", allow_module_level=True)

# Of schedules, these have all kinds of trouble; the first one has a host tier.
SEEDS = {2: True, 5: False}
TROUBLE = ("drafts", "preempted", "cached", "stale", "copies", "swap_in", "silent", "retried")


class AnyTokens(Proposer):
    """Proposes none, some or all drafts of a row, nearly all of them wrong."""

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        latest = tokens.gather(1, known[:, None] - 1)
        places = torch.arange(most)
        guess = (latest * 7 + known[:, None] + places) % 3  # the smallest vocabulary
        return torch.where(places < torch.minimum(number, known % (most + 1))[:, None], guess, -1)


@pytest.mark.parametrize("proposer", ["draft_model", "eagle3", "suffix", f"{__name__}.AnyTokens"])
def test_greedy_outputs_are_those_without_drafts(proposer: str) -> None:
    seen: Counter[str] = Counter()
    for seed, loading in SEEDS.items():
        try:
            seen += ModelDrive(seed, loading=loading, proposer=proposer).run().seen
        except AssertionError as error:
            error.add_note(f"schedule with seed {seed}")
            raise
    for trouble in TROUBLE:
        assert seen[trouble], f"no schedule had {trouble}"
