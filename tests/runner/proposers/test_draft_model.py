"""A draft model has right KV wherever the model has: all drafts of a model for itself are right."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import Request, Scheduler
from paceline.core.errors import ConfigError
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.proposer import DraftInput
from paceline.runner.proposers.draft_model import DraftModel
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.support import tiny

DRAFTS = {"proposer": "draft_model", "num_speculative_tokens": 3, "speculation": "fixed"}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(Dummy(tiny(), seed=3))


class Checked(DraftModel):
    """One that cannot draft before all tokens but the last are in its store."""

    def next_logits(self, offset: int, slot: Tensor, known: Tensor, latest: Tensor) -> Tensor:
        assert offset or (self._computed[slot] == known - 1).all()
        return super().next_logits(offset, slot, known, latest)


def run(model: Model, asked: list[Request], depth: int, **changes: Any) -> Scheduler:
    scheduler = Scheduler.create(**{**SETTINGS, **DRAFTS, **changes})
    config = scheduler.config
    drafter = Checked(config.speculation)
    drafter.use(model, load_attention("paged"))
    kv = KVStore(model.config, config.cache.num_blocks, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    runner = TorchRunner(model, kv, load_attention("paged"), drafter, *sizes)
    runner.reserve_host(config.preemption.swap_space)
    drive(scheduler, runner, asked, depth)
    return scheduler


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ahead": {"depth": 3},
    "in small pieces": {"max_num_batched_tokens": 8},
    "recomputed": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32},
    "in samples": {"n": 3, "max_num_seqs": 16},
}


@pytest.mark.parametrize("way", WAYS)
def test_all_drafts_of_a_model_for_itself_are_right(model: Model, way: str) -> None:
    changes = {"depth": 1, **WAYS[way]}
    asked = requests(n=changes.pop("n", 1))
    asked.append(Request(id="hit", prompt=[*asked[1].prompt, 3, 4], max_tokens=20))
    scheduler = run(model, asked, **changes)
    stats = scheduler.stats
    assert stats.drafted
    assert stats.accepted == stats.drafted
    if "num_blocks" in changes:
        assert stats.preemptions, "the pool was not tight"


def test_drawn_drafts_of_a_model_for_itself_are_right_too(model: Model) -> None:
    """They are drawn by the probabilities of the model, and so are never rejected."""
    asked = requests(sampling=Sampling(temperature=0.8), seed=4)
    stats = run(model, asked, 2).stats
    assert stats.drafted > 50
    assert stats.accepted == stats.drafted
    filtered = requests(sampling=Sampling(temperature=0.8, top_k=3), seed=4)
    stats = run(model, filtered, 2).stats
    assert 0 < stats.accepted < stats.drafted


def test_a_draft_model_needs_weights_and_the_same_vocabulary(model: Model) -> None:
    drafter = DraftModel(SpeculationConfig(proposer="draft_model"))
    with pytest.raises(ConfigError, match="needs a model: name it in speculative_config"):
        _ = drafter.cell_bytes
    drafter.use(Model.load(Dummy(tiny(vocab_size=64))), load_attention("paged"))
    assert drafter.cell_bytes == 2 * 2 * 2 * 8 * 4
    with pytest.raises(ConfigError, match="a vocabulary of 64 tokens and the model one of 61"):
        TorchRunner(model, KVStore(model.config, 4, 4), load_attention("paged"), drafter, 2, 16)


def test_rows_of_any_number_of_drafts(model: Model) -> None:
    """Each row has what it would have alone, and one with a temperature has what it drew."""
    drafter = DraftModel(SpeculationConfig(proposer="draft_model"))
    drafter.use(model, load_attention("paged"))
    kv = KVStore(model.config, 16, 4)
    runner = TorchRunner(model, kv, load_attention("paged"), drafter, 4, 16)
    columns = drafter.runner.columns
    columns.table.copy_(torch.arange(16).view(1, 4, 4))
    columns.tokens[:, :8] = torch.arange(32).view(4, 8)
    columns.temperature[2] = 0.7
    known, number = torch.tensor([5, 3, 8, 1]), torch.tensor([3, 0, 2, 1])
    slot = torch.arange(4)
    got = drafter.draft(DraftInput(slot, columns.tokens, known, number, 4))
    assert (got.ids >= 0).sum(1).tolist() == number.tolist()
    assert got.probabilities is not None
    torch.testing.assert_close(got.probabilities[2, :2].sum(-1), torch.ones(2))
    for row in (0, 3):
        drafter.attach(drafter.runner)
        one = slice(row, row + 1)
        alone = drafter.draft(
            DraftInput(slot[one], columns.tokens[one], known[one], number[one], 4)
        )
        assert torch.equal(alone.ids, got.ids[one])
        assert alone.probabilities is None
    runner.close()
