"""Our beam search, inside the scheduler, against transformers' on a small model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline import Request
from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import Case, tokens_of
from tests.golden.support import saved
from tests.runner.test_runner import outputs

STOP = 7


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Model]:
    folder = Path(tmp_path_factory.mktemp("llama"))
    return saved(Case("llama"), folder), Model.load(open_checkpoint(folder))


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, -1.0])
def test_the_same_beams_as_transformers(
    both: tuple[Any, Model], early_stopping: Any, length_penalty: float
) -> None:
    for seed in range(3):
        compare_beams(*both, seed, early_stopping, length_penalty)


@pytest.mark.parametrize("architecture", ["jamba", "kimilinear", "lfm2"])
def test_beams_of_models_with_states(architecture: str, tmp_path: Path) -> None:
    """A beam that continues from another one copies its state."""
    theirs = saved(Case(architecture), tmp_path)
    compare_beams(theirs, Model.load(open_checkpoint(tmp_path)), 1, "never", 1.0)


def compare_beams(
    theirs: Any, ours: Model, seed: int, early_stopping: Any, length_penalty: float
) -> None:
    prompt = tokens_of(9, seed)
    found = theirs.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=4,
        num_return_sequences=3,
        max_new_tokens=12,
        eos_token_id=STOP,
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
    )
    expected = [trimmed(one[len(prompt) :].tolist()) for one in found]
    request = Request(
        id="a",
        prompt=prompt,  # pyright: ignore[reportArgumentType]
        max_tokens=12,
        eos_token_ids=(STOP,),
        beam_width=4,
        n=3,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
    )
    got, _ = outputs(ours, [request], depth=2, num_blocks=40)
    assert got["a"] == expected


def trimmed(tokens: list[int]) -> list[int]:
    """Without the padding behind the end."""
    return tokens[: tokens.index(STOP) + 1] if STOP in tokens else tokens
