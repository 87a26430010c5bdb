"""How proposers are found, and what is computed where they found nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import ConfigError
from paceline.core.errors import PluginError
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.proposer import Drafts, Proposer, check_drafts, check_shape, load
from paceline.runner.proposers.ngram import Ngram


class Repeat(Proposer):
    """Proposes the latest token again."""

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        places = torch.arange(most)
        return torch.where(places < number[:, None], tokens.gather(1, known[:, None] - 1), -1)


class Silent(Proposer):
    """Says nothing of `propose`."""


def test_a_proposer_is_found_by_the_name_of_its_module() -> None:
    assert isinstance(load(SpeculationConfig()), Ngram)


def test_a_proposer_is_found_by_its_path_and_reads_the_settings() -> None:
    config = SpeculationConfig(proposer=f"{__name__}.Repeat", num_speculative_tokens=3)
    found = load(config)
    assert isinstance(found, Repeat)
    assert found.config is config


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("eagle", "no proposer 'eagle': there are draft_model, eagle3, "),
        (f"{__name__}.Nope", "no proposer"),
        (f"{__name__}.Tensor", "is not a subclass of Drafter"),
        (f"{__name__}.Silent", "propose"),
    ],
)
def test_a_proposer_that_cannot_be_used_is_refused_by_name(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(SpeculationConfig(proposer=name))


@pytest.mark.parametrize(
    ("drafts", "problem"),
    [
        ([[1, 2]], r"returns \[\[1, 2\]\]; it must be a tensor"),
        (torch.tensor([[1, 2, 3]]), r"the shape \(1, 3\); .* the shape \(1, 2\)"),
        (torch.tensor([[1.0, 2.0]]), r"a tensor of torch.float32 .*; it must have whole numbers"),
    ],
)
def test_drafts_are_whole_numbers_for_each_row(drafts: Any, problem: str) -> None:
    with pytest.raises(PluginError, match=problem):
        check_shape(load(SpeculationConfig()), Drafts(drafts), rows=1, most=2)


def test_probabilities_are_those_of_the_drafts() -> None:
    ids = torch.zeros((1, 2), dtype=torch.int64)
    with pytest.raises(PluginError, match=r"probabilities with the shape \(1, 3, 9\)"):
        check_shape(load(SpeculationConfig()), Drafts(ids, torch.zeros(1, 3, 9)), rows=1, most=2)
    with pytest.raises(PluginError, match=r"returns tensor\(.* must be of type Drafts"):
        check_shape(load(SpeculationConfig()), ids, rows=1, most=2)


@pytest.mark.parametrize(
    ("drafts", "number"), [([3, 11], 2), ([-1, 3], 2), ([3, 4], 1), ([-2, -1], 2)]
)
def test_drafts_are_token_ids_from_the_beginning(drafts: list[int], number: int) -> None:
    given, fine = torch.tensor([[1, -1], drafts]), torch.tensor([[-1, -1], [3, 10]])
    most = torch.tensor([2, number])
    check_drafts(load(SpeculationConfig()), fine, torch.tensor([0, 2]), vocab=11)
    with pytest.raises(PluginError, match=rf"returns \[{drafts[0]}, {drafts[1]}\] for a row of"):
        check_drafts(load(SpeculationConfig()), given, most, vocab=11)
