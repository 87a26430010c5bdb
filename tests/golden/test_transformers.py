"""Our numbers against transformers' on the same small random weights, for every architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.test_attention import found
from tests.golden.support import (
    CASES,
    Run,
    same,
    saved,
    their_greedy,
    their_logits,
    tokens_of,
)

Pair = tuple[Any, Model]
every_backend = pytest.mark.parametrize("attention", found())


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Theirs, and ours as read from what they saved."""
    folder: Path = tmp_path_factory.mktemp("model")
    theirs = saved(request.param, folder)
    return theirs, Model.load(open_checkpoint(folder))


@every_backend
def test_a_whole_prompt(pair: Pair, attention: str) -> None:
    theirs, ours = pair
    tokens = tokens_of(50, seed=1)
    run = Run(ours, attention)
    run.add("a", tokens)
    same(run.step(a=50)["a"], their_logits(theirs, tokens))


@every_backend
def test_chunks_and_single_tokens_are_the_same_as_the_whole(pair: Pair, attention: str) -> None:
    theirs, ours = pair
    tokens = tokens_of(45, seed=2)
    expected = their_logits(theirs, tokens)
    for counts in ([20, 1, 2, 17, 5], [1] * 45):
        run = Run(ours, attention)
        run.add("a", tokens)
        got = torch.cat([run.step(a=count)["a"] for count in counts])
        same(got, expected)


@every_backend
def test_rows_of_every_kind_beside_each_other(pair: Pair, attention: str) -> None:
    theirs, ours = pair
    prompts = {"a": tokens_of(40, seed=3), "b": tokens_of(31, seed=4), "c": tokens_of(12, seed=5)}
    run = Run(ours, attention)
    for name, tokens in prompts.items():
        run.add(name, tokens)
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in prompts}
    for counts in (
        {"b": 10},
        {"a": 15, "b": 1},
        {"c": 11, "b": 1, "a": 1},
        {"a": 20, "c": 1, "b": 5},
        {"b": 14, "a": 4},
    ):
        for name, logits in run.step(**counts).items():
            seen[name].append(logits)
    for name, tokens in prompts.items():
        same(torch.cat(seen[name]), their_logits(theirs, tokens))


@every_backend
def test_greedy_tokens(pair: Pair, attention: str) -> None:
    theirs, ours = pair
    prompts = {"a": tokens_of(19, seed=6), "b": tokens_of(8, seed=7), "c": tokens_of(1, seed=8)}
    run = Run(ours, attention)
    for name, tokens in prompts.items():
        run.add(name, tokens, room=20)
    run.step(a=18, b=7)
    run.greedy(["b", "c", "a"], steps=20)
    for name, tokens in prompts.items():
        assert run.tokens[name][len(tokens) :] == their_greedy(theirs, tokens, 20)


def test_many_files_hold_the_same_model(tmp_path: Path) -> None:
    theirs = saved("llama", tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = tokens_of(20, seed=9)
    run = Run(Model.load(open_checkpoint(tmp_path)), "paged")
    run.add("a", tokens)
    same(run.step(a=20)["a"], their_logits(theirs, tokens))


def test_bfloat16_is_near(tmp_path: Path) -> None:
    theirs = saved("llama", tmp_path)
    ours = Model.load(open_checkpoint(tmp_path), dtype=torch.bfloat16)
    tokens = tokens_of(20, seed=10)
    run = Run(ours, "paged")
    run.add("a", tokens)
    logits, expected = run.step(a=20)["a"], their_logits(theirs, tokens)
    assert logits.dtype == torch.float32
    assert (logits - expected).std() < 0.05 * expected.std()
