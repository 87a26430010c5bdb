"""Numbers that a model of kernels for GPUs must round, or must not lose."""

import pytest
import torch

from paceline.runner.attention_backend import load
from paceline.runner.cuda.model import CudaModel
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.gpu.cuda_backend import OnCUDA
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import cells_of, filled_store, rows_of, tiny


class Massive(Dummy):
    """One token has a value as first tokens do, and keys and queries are long."""

    def read(self, name: str) -> torch.Tensor:
        tensor = super().read(name)
        if "embed_tokens" in name:
            tensor[7, 3] = 8000.0
        return tensor * 8 if "q_proj" in name or "k_proj" in name else tensor


def test_an_embedding_is_scaled_as_roughly_as_in_training() -> None:
    config = tiny(architectures=["Gemma3ForCausalLM"])
    source, dtype = Dummy(config, seed=3), torch.bfloat16
    truth, gpu = Model.load(source, dtype), CudaModel.load(source, 64, dtype, device="cpu")
    assert torch.equal(gpu._embedding, truth._embedding * truth._embedding_scale)


def test_rows_too_long_for_float16_are_divided_before_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(num_hidden_layers=2, hidden_size=64)
    batch, blocks = rows_of([(1, 1 + 5 * row) for row in range(6)], 8)
    batch.tokens.copy_(torch.tensor([7, 1, 2, 3, 4, 5]))
    kv = filled_store(config, blocks, 8, dtype=torch.float16)
    gpu = CudaModel.load(Massive(config, seed=3), 64, torch.float16, device="cpu")
    hidden = gpu.forward(batch, cells_of(batch, kv), kv, load("triton").prepare(batch, kv))
    assert gpu.logits(hidden).isfinite().all()


@pytest.mark.parametrize("format", ["modelopt", "benchmarks.coded_formats.Q4K"])
def test_a_model_whose_linears_and_experts_stay_packed(format: str) -> None:
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "head_dim": 64, "vocab_size": 64}
    config = Case("qwen3moe").config(**sizes, moe_intermediate_size=128).loaded_as(format)
    model = CudaModel.load(Dummy(config, seed=3), 64, torch.float16, "cpu")
    (experts,) = (line for line in model.kernels() if "experts" in line)
    assert "grouped_codes" in experts
    found = logits_of(OnCUDA(model, "cpu", torch.float16), [5, 9, 2])
    truth = OnCPU(Model.load(Dummy(config, seed=3), weights="float32"), "paged")
    due = logits_of(truth, [5, 9, 2])
    assert (found - due).norm() < 0.01 * due.norm()
