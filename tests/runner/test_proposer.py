"""How proposers are found, and what is computed where they found nothing."""

import pytest
import torch
from torch import Tensor

from paceline import ConfigError
from paceline.core.config import SpeculationConfig
from paceline.runner.proposer import Proposer, load
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
        ("eagle", "no proposer 'eagle': there are ngram, and dotted paths"),
        (f"{__name__}.Nope", "no proposer"),
        (f"{__name__}.Tensor", "is not a subclass of Proposer"),
        (f"{__name__}.Silent", "propose"),
    ],
)
def test_a_proposer_that_cannot_be_used_is_refused_by_name(name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(SpeculationConfig(proposer=name))
