"""A whole model of kernels for a card, against the one for a CPU, in float32."""

from typing import Any

import pytest
import torch

from paceline.runner.attention.backend import load
from paceline.runner.cuda.model import CudaModel
from paceline.runner.layers.linear import DenseLinear
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import Rows, cells_of, filled_store, rows_of, tiny


class AsOnACard(DenseLinear):
    """Weights as they come: those of an output lie together."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.weight = self.weight.t().contiguous().t()


class Massive(Dummy):
    """One token has a value as first tokens do, and keys and queries are long."""

    def read(self, name: str) -> torch.Tensor:
        tensor = super().read(name)
        if "embed_tokens" in name:
            tensor[7, 3] = 8000.0
        return tensor * 8 if "q_proj" in name or "k_proj" in name else tensor


FAMILIES = ["Llama", "Qwen2", "Qwen3", "Gemma3", "Mistral"]
ROWS: list[Rows] = [
    [(1, 9), (1, 1), (1, 30)],  # as few as have kernels of their own
    [(1, 1 + 5 * row) for row in range(6)],
    [(1, 9), (1, 20), (13, 13), (4, 17)],
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("counts", ROWS, ids=lambda counts: f"{len(counts)} rows")
def test_hidden_states_and_the_store(
    family: str, counts: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.runner.cuda.model.DenseLinear", AsOnACard)
    config = tiny(architectures=[f"{family}ForCausalLM"], num_hidden_layers=2, sliding_window=9)
    source = Dummy(config, seed=3)
    batch, blocks = rows_of(counts, 8)
    batch.tokens.copy_(torch.arange(batch.positions) * 7 % config.vocab)
    ours, truth = filled_store(config, blocks, 8), filled_store(config, blocks, 8)
    card = CudaModel.load(source, 64, torch.float32, device="cpu")
    hidden = card.forward(batch, cells_of(batch, ours), ours, load("triton").prepare(batch, ours))
    model = Model.load(source)
    expected = model.forward(batch, truth, load("sdpa"))
    torch.testing.assert_close(ours.content, truth.content, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(card.logits(hidden), model.logits(expected), rtol=1e-3, atol=1e-3)
    for wanted in (batch.sample_at.flip(0), batch.sample_at[:0]):
        prepared = load("triton").prepare(batch, ours)
        some = card.forward(batch, cells_of(batch, ours), ours, prepared, wanted)
        torch.testing.assert_close(some, hidden[wanted], rtol=1e-3, atol=1e-3)


def test_an_embedding_is_scaled_as_roughly_as_in_training() -> None:
    config = tiny(architectures=["Gemma3ForCausalLM"])
    source, dtype = Dummy(config, seed=3), torch.bfloat16
    truth, card = Model.load(source, dtype), CudaModel.load(source, 64, dtype, device="cpu")
    assert torch.equal(card._embedding, truth._embedding * truth._embedding_scale)


def test_rows_too_long_for_float16_are_divided_before_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.runner.cuda.model.DenseLinear", AsOnACard)
    config = tiny(num_hidden_layers=2, hidden_size=64)
    batch, blocks = rows_of([(1, 1 + 5 * row) for row in range(6)], 8)
    batch.tokens.copy_(torch.tensor([7, 1, 2, 3, 4, 5]))
    kv = filled_store(config, blocks, 8, dtype=torch.float16)
    card = CudaModel.load(Massive(config, seed=3), 64, torch.float16, device="cpu")
    hidden = card.forward(batch, cells_of(batch, kv), kv, load("triton").prepare(batch, kv))
    assert card.logits(hidden).isfinite().all()
