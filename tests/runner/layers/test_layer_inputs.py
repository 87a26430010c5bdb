"""What some layers read, kept while a decoder runs."""

from typing import Any

import torch

from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import LayerInputs
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import Piece, batch_of, tiny


def test_the_input_of_a_layer_is_the_result_of_those_before_it() -> None:
    """The last norm and the head leave the residual stream alone, so a shorter model has it."""
    model = Model.load(Dummy(tiny(num_hidden_layers=4)))
    batch = batch_of([Piece([3, 4, 5, 6, 7], 0, [1, 0])], 4)
    kept = LayerInputs((0, 1, 3), torch.empty(9, 3 * 24))
    model.forward(batch, KVStore(model.config, 2, 4), load("paged"), batch.sample_at, kept)
    stack: Any = model._layers
    layers = stack.layers
    for place, before in enumerate((0, 1, 3)):
        stack.layers = layers[:before]
        hidden = model.forward(batch, KVStore(model.config, 2, 4), load("paged"))
        assert torch.equal(kept.rows[:5, place * 24 : (place + 1) * 24], hidden)
