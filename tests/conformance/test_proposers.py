"""What holds for every proposer: shape and place of its drafts, the same drafts every time, nothing
from behind what is known, and the same output with it and without. A new file in
`paceline.runner.proposers` is found and judged without being named here;
`PACELINE_PROPOSERS="package.module.Class …"` adds proposers from elsewhere.
"""

import os
import pkgutil
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import paceline.runner.proposers
from paceline import Request, Scheduler
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load as load_attention
from paceline.runner.kv_store import KVStore
from paceline.runner.model_drafter import ModelDrafter
from paceline.runner.models.model import Model
from paceline.runner.proposer import Drafter, Proposer, load
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.runner.drafters import drafter_for
from tests.runner.driving import SETTINGS, TIGHT, drive, requests
from tests.runner.support import tiny

VOCAB = 11


def found() -> list[str]:
    modules = pkgutil.iter_modules(paceline.runner.proposers.__path__)
    elsewhere = os.environ.get("PACELINE_PROPOSERS", "").split()
    return [*(module.name for module in modules), *elsewhere]


every_proposer = pytest.mark.parametrize("name", found())


def test_the_proposers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ngram" in found()
    monkeypatch.setenv("PACELINE_PROPOSERS", "some.module.One other.Two")
    assert found()[-2:] == ["some.module.One", "other.Two"]


def loaded(name: str) -> Drafter:
    return load(SpeculationConfig(proposer=name, num_speculative_tokens=4))


def made(name: str) -> Proposer:
    proposer = loaded(name)
    assert isinstance(proposer, Proposer)
    return proposer


# Those that go by the tokens of a row alone.
every_function = pytest.mark.parametrize(
    "name", [name for name in found() if isinstance(loaded(name), Proposer)]
)


def sequences(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, how many of them are known, and how many drafts are wanted, of rows that repeat
    themselves a little, much and not at all, from one token to forty."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (24, 40), generator=random)
    tokens[8:16] %= 2
    tokens[16] = 3
    known = torch.randint(1, 41, (24,), generator=random)
    known[0], known[1], known[16] = 1, 2, 30
    return tokens, known, torch.randint(0, 5, (24,), generator=random)


# -- one call ---------------------------------------------------------------


@every_function
def test_drafts_stand_at_the_beginning_of_their_row_and_are_no_more_than_wanted(name: str) -> None:
    tokens, known, number = sequences()
    for most in (4, 6):
        drafts = made(name).propose(tokens, known, number, most)
        assert drafts.shape == (len(tokens), most)
        assert not drafts.is_floating_point()
        given = drafts >= 0
        assert (given[:, 1:] <= given[:, :-1]).all(), "there is a draft behind a -1"
        assert (given.sum(1) <= number).all()
        assert (drafts < VOCAB).all()
        assert (drafts >= -1).all()


@every_function
def test_no_draft_comes_from_behind_what_is_known(name: str) -> None:
    tokens, known, number = sequences()
    drafts = made(name).propose(tokens, known, number, 4)
    hidden = torch.arange(tokens.shape[1]) >= known[:, None]
    for beyond in (tokens.masked_fill(hidden, 7), tokens.masked_fill(hidden, 0)):
        assert torch.equal(made(name).propose(beyond, known, number, 4), drafts)


@every_function
def test_the_same_rows_give_the_same_drafts_in_any_company(name: str) -> None:
    tokens, known, number = sequences()
    proposer = made(name)
    drafts = proposer.propose(tokens, known, number, 4)
    assert torch.equal(proposer.propose(tokens, known, number, 4), drafts)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(2))
    mixed = proposer.propose(tokens[order], known[order], number[order], 4)
    assert torch.equal(mixed, drafts[order])
    for row in range(len(tokens)):
        one = slice(row, row + 1)
        assert torch.equal(proposer.propose(tokens[one], known[one], number[one], 4), drafts[one])


@every_function
def test_nothing_that_it_is_given_changes(name: str) -> None:
    given = sequences()
    made(name).propose(*given, 4)
    assert all(torch.equal(*pair) for pair in zip(given, sequences(), strict=True))


@every_function
def test_numbers_may_have_32_bits(name: str) -> None:
    given = sequences()
    drafts = made(name).propose(*given, 4)
    assert torch.equal(made(name).propose(*(one.int() for one in given), 4).long(), drafts)


# -- under a scheduler ------------------------------------------------------


@cache
def model() -> Model:
    return Model.load(Dummy(tiny(), seed=3))


def outputs(name: str, depth: int = 1, **changes: Any) -> tuple[dict[str, Any], Scheduler]:
    asked = [*requests(), Request(id="copies", prompt=[8, 3, 5] * 6, max_tokens=20)]  # pyright: ignore[reportArgumentType]
    if changes.pop("warm", False):
        asked = requests(sampling=Sampling(temperature=0.9), seed=4)
    scheduler = Scheduler.create(**{**SETTINGS, "proposer": name, **changes})
    config = scheduler.config
    kv = KVStore(model().config, config.cache.num_blocks, config.cache.block_size)
    sizes = config.step.max_num_seqs, config.step.max_model_len
    drafter = drafter_for(model(), config.speculation)
    runner = TorchRunner(model(), kv, load_attention("paged"), drafter, *sizes)
    runner.reserve_host(config.preemption.swap_space)
    return drive(scheduler, runner, asked, depth), scheduler


WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ahead": {"depth": 3},
    "preempted, ahead": {**TIGHT, "depth": 2},
    "swapped": {**TIGHT, "preemption_mode": "swap", "swap_space": 32},
    "in small pieces": {"max_num_batched_tokens": 8},
    "drawn": {"warm": True},
}


# Drafts of a model are drawn too: the output has the same distribution, not the same tokens.
PAIRS = [
    (name, way)
    for name in found()
    for way in WAYS
    if way != "drawn" or not isinstance(loaded(name), ModelDrafter)
]


@cache
def without(way: str) -> dict[str, Any]:
    return outputs("ngram", **WAYS[way])[0]


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_output_is_the_same_with_it_and_without(name: str, way: str) -> None:
    drafting = {"num_speculative_tokens": 4, "speculation": "fixed"}
    got, scheduler = outputs(name, **WAYS[way], **drafting)
    assert got == without(way)
    assert scheduler.stats.drafted
    if "num_blocks" in WAYS[way]:
        assert scheduler.stats.preemptions, "the pool was not tight"
