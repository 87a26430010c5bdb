"""A runner on two ranks, under the real scheduler: the same tokens as one process, in every way."""

from dataclasses import replace
from typing import Any

import pytest

from paceline import Request, Scheduler
from paceline.core.constraint import Constraint
from paceline.core.sampling import Sampling
from paceline.runner.models.model import Model
from paceline.runner.parallel.group import RankGroup
from paceline.runner.runner import TorchRunner
from paceline.runner.weights.dummy import Dummy
from tests.property.grammars import END, constrained_requests
from tests.runner.driving import SETTINGS, WAYS, drive, requests
from tests.runner.parallel.ranks import tokens_of_two_ranks
from tests.runner.support import tiny
from tests.runner.test_runner import DRAFTED, runner_for

CHECKPOINT = Dummy(tiny(vocab_size=62), seed=3)
MIXED = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.9),
    Sampling(temperature=0.8, top_p=0.9, presence_penalty=0.5, logprobs=2),
    Sampling(temperature=0.0, prompt_logprobs=1),
    Sampling(temperature=1.1, top_k=5),
]


def asked() -> list[Request]:
    pairs = zip(requests(seed=11), MIXED, strict=True)
    return [replace(one, max_tokens=12, sampling=sampling) for one, sampling in pairs]


def rank(group: RankGroup, scheduler: Scheduler) -> TorchRunner:
    return runner_for(Model.load(CHECKPOINT, group=group), scheduler)


@pytest.fixture(scope="module")
def plainly() -> dict[str, Any]:
    scheduler = Scheduler.create(**SETTINGS)
    return drive(scheduler, runner_for(Model.load(CHECKPOINT), scheduler), asked())


@pytest.mark.parametrize("way", WAYS | DRAFTED)
def test_two_ranks_have_the_tokens_of_one_process(way: str, plainly: dict[str, Any]) -> None:
    settings = SETTINGS | (WAYS | DRAFTED)[way]
    depth = settings.pop("depth", 1)
    got, scheduler = tokens_of_two_ranks(rank, asked(), settings, depth)
    assert got == plainly
    assert bool(scheduler.stats.swapped_in_blocks) == ("swapped" in way)


@pytest.mark.parametrize("drafts", [0, 2])
def test_rank_0_alone_has_masks(drafts: int) -> None:
    """A step with masks samples late, and drafts that are not allowed are left out."""
    held = {"constraint": Constraint.regex("[0-4]{4}(5|67)*"), "eos_token_ids": (END,)}
    first, *others = asked()[:3]
    constrained = [replace(first, **held), replace(others[0], **held), others[1]]
    settings = SETTINGS | {"num_speculative_tokens": drafts, "speculation": "fixed"}
    vocab = CHECKPOINT.config.vocab
    masks = constrained_requests(vocab)
    scheduler = Scheduler.create(**SETTINGS)
    whole = runner_for(Model.load(CHECKPOINT), scheduler, masks=masks)
    due = drive(scheduler, whole, constrained, constrained=masks)
    masks = constrained_requests(vocab)

    def masked(group: RankGroup, scheduler: Scheduler) -> TorchRunner:
        own = masks if group.is_first else None
        return runner_for(Model.load(CHECKPOINT, group=group), scheduler, masks=own)

    got, _ = tokens_of_two_ranks(masked, constrained, settings, 2, masks)
    assert got == due
