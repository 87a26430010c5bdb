"""A model in torch. `tests/conformance` compares the numbers of every architecture."""

from dataclasses import MISSING, fields
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from paceline.core.errors import ConfigError
from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import Piece, batch_of, tiny


def model_of(architecture: str) -> Model:
    config = tiny(
        architectures=[f"{architecture}ForCausalLM"], num_hidden_layers=7, sliding_window=5
    )
    return Model.load(Dummy(config))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_types(dtype: torch.dtype) -> None:
    model = Model.load(Dummy(tiny()), dtype)
    kv = KVStore(model.config, 8, 4)
    batch = batch_of([Piece([3, 4, 5], 0, [2]), Piece([6], 0, [5])], 4)
    hidden = model.forward(batch, kv, load("paged"))
    assert hidden.shape == (4, model.config.width)
    logits = model.logits(hidden[batch.sample_at])
    assert (logits.shape, logits.dtype) == ((2, model.config.vocab), torch.float32)
    assert logits.isfinite().all()


class HalfPrecision(Dummy):
    """A checkpoint of bfloat16."""

    def read(self, name: str) -> torch.Tensor:
        return super().read(name).bfloat16()


def test_an_embedding_of_16_bits_stays_so_and_reads_as_the_same_numbers() -> None:
    model = Model.load(HalfPrecision(tiny()))
    [table] = (one.present for one in model.weight_parts(None) if one.name == "embedding")
    assert table.dtype == torch.bfloat16
    assert torch.equal(model.plain_embedding(), table.float())
    batch = batch_of([Piece([3, 4, 5], 0, [2])], 4)
    kept = model.forward(batch, KVStore(model.config, 8, 4), load("paged"))
    wide = Model.load(HalfPrecision(tiny()))
    wide._embed = partial(F.embedding, weight=table.float())
    assert torch.equal(kept, wide.forward(batch, KVStore(model.config, 8, 4), load("paged")))


def test_a_forward_leaves_the_weights_alone() -> None:
    """Residuals are added in place, and none of them is a row of the embedding."""
    model = model_of("Gemma3")
    batch = batch_of([Piece([3, 3, 4], 0, [1])], 4)
    first, second = (
        model.forward(batch, KVStore(model.config, 2, 4), load("paged")) for _ in range(2)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("attention", ["paged", "sdpa"])
def test_indices_may_be_of_32_bits(attention: str) -> None:
    model = model_of("Gemma3")
    batch = batch_of([Piece(range(3, 20), 0, [7, 2, 1, 3, 5]), Piece([6], 0, [6])], 4)
    names = [one.name for one in fields(batch) if one.default is MISSING]
    narrow = Batch(**{name: getattr(batch, name).int() for name in names})
    wide, short = (
        model.forward(indices, KVStore(model.config, 8, 4), load(attention))
        for indices in (batch, narrow)
    )
    assert torch.equal(wide, short)


def test_forks_go_on_from_a_copied_block() -> None:
    model, attention = model_of("Llama"), load("paged")
    kv = KVStore(model.config, 8, 4)
    model.forward(batch_of([Piece([3, 4, 5, 6, 7, 8], 0, [0, 1])], 4), kv, attention)
    kv.copy([(1, 4)])
    fork = batch_of([Piece([9], 6, [0, 1]), Piece([10], 6, [0, 4])], 4)
    forked = model.forward(fork, kv, attention)
    alone = model.forward(batch_of([Piece([3, 4, 5, 6, 7, 8, 10], 0, [5, 6])], 4), kv, attention)
    torch.testing.assert_close(forked[1], alone[-1], rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_verified_before_it_is_loaded() -> None:
    dummy = Dummy(tiny())
    dummy.shapes["surplus"] = (1,)
    with pytest.raises(ConfigError, match="unknown: surplus"):
        Model.load(dummy)
