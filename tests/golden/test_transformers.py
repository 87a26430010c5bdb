"""Files as transformers writes them, and types beside float32. `tests/conformance` compares numbers
with transformers' for every architecture."""

from pathlib import Path

import pytest
import torch

from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint
from tests.conformance.architectures import Case, architectures, tokens_of
from tests.golden.support import is_greedy, made, same, saved, their_logits
from tests.golden.torch_backend import both
from tests.runner.driving import requests
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.test_runner import outputs

LLAMA = Case("llama")


@pytest.mark.parametrize("architecture", architectures())
def test_greedy_tokens(architecture: str) -> None:
    theirs, ours = both(Case(architecture))
    asked = requests()
    found, _ = outputs(ours, asked)
    for request in asked:
        prompt, steps = request.prompt.tolist(), request.max_tokens or 0
        assert is_greedy(theirs, prompt, found[request.id], steps)


def test_many_files_hold_the_same_model(tmp_path: Path) -> None:
    theirs = saved(LLAMA, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    tokens = tokens_of(20, seed=9)
    ours = OnCPU(Model.load(open_checkpoint(tmp_path)), "paged")
    same(logits_of(ours, tokens), their_logits(theirs, tokens))


@pytest.mark.parametrize(("length", "max_model_len"), [(40, None), (16, 16)])
def test_longrope_beyond_and_within_the_original_length(
    length: int, max_model_len: int | None, tmp_path: Path
) -> None:
    """Theirs chooses for each sequence; ours chooses once, for the longest one."""
    theirs = made(Case("phi3", "longrope"))
    theirs.config.rope_parameters["original_max_position_embeddings"] = 16
    theirs.config.original_max_position_embeddings = 16
    theirs.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    ours = OnCPU(Model.load(checkpoint, max_model_len=max_model_len), "paged")
    tokens = tokens_of(length, seed=4)
    same(logits_of(ours, tokens), their_logits(theirs, tokens))


def test_bfloat16_is_near(tmp_path: Path) -> None:
    theirs = saved(LLAMA, tmp_path)
    ours = OnCPU(Model.load(open_checkpoint(tmp_path), dtype=torch.bfloat16), "paged")
    tokens = tokens_of(20, seed=10)
    logits, expected = logits_of(ours, tokens), their_logits(theirs, tokens)
    assert logits.dtype == torch.float32
    assert (logits - expected).std() < 0.05 * expected.std()
