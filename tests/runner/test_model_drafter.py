"""What drafters with models have in common."""

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.runner.model_drafter import check_vocab, choose_drafts
from tests.runner.support import tiny


def test_random_drafts_follow_their_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0, -torch.inf, 2.0]]).expand(4000, 4)
    heat, keys = torch.full((4000,), 1.5), torch.arange(4000)
    ids, shares = choose_drafts(logits, heat, keys, torch.full((4000,), 7))
    assert shares is not None
    torch.testing.assert_close(shares, (logits / 1.5).softmax(-1))
    drawn = torch.bincount(ids, minlength=4) / 4000
    torch.testing.assert_close(drawn, shares[0], rtol=0, atol=0.04)
    ids, shares = choose_drafts(logits[:2], torch.zeros(2), keys[:2], torch.arange(2))
    assert (ids.tolist(), shares) == ([3, 3], None)


def test_vocabularies_must_have_the_same_size() -> None:
    check_vocab(tiny(), tiny(num_hidden_layers=1))
    with pytest.raises(ConfigError, match="use a draft model with the same tokenizer"):
        check_vocab(tiny(vocab_size=70), tiny())
