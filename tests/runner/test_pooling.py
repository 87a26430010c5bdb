"""Embeddings do not depend on how prompts are scheduled."""

import numpy as np
import pytest
import torch

from paceline.core.pooling import CLS, LAST, MEAN
from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.pooling_ways import PROMPTS, WAYS, embeddings
from tests.runner.support import tiny
from tests.runner.test_runner import runner_for


def states(model: Model, prompt: list[int]) -> np.ndarray:
    """Hidden states after the last norm, of a prompt that is computed alone and at once."""
    kv, positions = KVStore(model.config, 1, 16), torch.arange(len(prompt))
    batch = Batch(
        tokens=torch.tensor(prompt),
        position=positions,
        row_start=torch.tensor([0, len(prompt)]),
        context=torch.tensor([len(prompt)]),
        block_table=torch.zeros(1, 1, 1, dtype=torch.long),
        write_cell=positions[None],
        sample_at=positions[-1:],
    )
    return model.normed(model.forward(batch, kv, load("paged"))).numpy()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_on_every_schedule(family: str, way: str) -> None:
    model = Model.load(Dummy(tiny(architectures=[f"{family}ForCausalLM"]), seed=3))
    found = embeddings(runner_for, model, **WAYS[way])
    for number, prompt in enumerate(PROMPTS):
        due = states(model, prompt)
        kinds = {LAST: due[-1], MEAN: due.mean(0), CLS: due[0]}
        for kind, vector in kinds.items():
            np.testing.assert_allclose(found[f"{kind} {number}"], vector, atol=2e-4)
