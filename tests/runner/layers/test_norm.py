"""Norms, rotations, and what some layers read."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paceline.runner.attention_backend import load
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.norm import HeadNorm, LayerInputs, Norm, Rotation, UnscaledNorm
from paceline.runner.models.model import Model
from paceline.runner.weights.dummy import Dummy
from tests.runner.support import Piece, batch_of, tiny


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_norm_is_torchs(size: float) -> None:
    """Also where the eps is larger than the mean square."""
    x, weight, eps = torch.randn(3, 4, 16) * size, torch.randn(16), 1e-5
    expected = F.rms_norm(x, (16,), weight, eps)
    unscaled = UnscaledNorm((16 * eps) ** 0.5, "cpu")
    norm, of_heads = Norm(unscaled, weight * 4), HeadNorm(unscaled, weight * 4)
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-6)
    of_heads.apply_to(x)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-2, 1e4])
def test_a_centred_norm_is_torchs_layer_norm(size: float) -> None:
    x, weight, bias, eps = torch.randn(3, 16) * size + size, torch.randn(16), torch.randn(16), 1e-5
    norm = Norm(UnscaledNorm((16 * eps) ** 0.5, "cpu", is_centred=True), weight * 4, bias)
    expected = F.layer_norm(x, (16,), weight, bias, eps)
    torch.testing.assert_close(norm(x), expected, rtol=1e-4, atol=1e-5)


def test_zeros_stay_zeros() -> None:
    assert not UnscaledNorm(1e-3, "cpu")(torch.zeros(2, 8)).any()


def test_halves_are_normalised_in_full() -> None:
    x = torch.randn(5, 64).bfloat16()
    got = Norm(UnscaledNorm(8e-3, "cpu"), torch.full((64,), 8.0).bfloat16())
    expected = F.rms_norm(x.float(), (64,), eps=1e-6)
    assert got(x).dtype == torch.bfloat16
    torch.testing.assert_close(got(x).float(), expected, rtol=1e-2, atol=1e-2)
    HeadNorm(UnscaledNorm(8e-3, "cpu"), got.factor).apply_to(x)
    torch.testing.assert_close(x.float(), expected, rtol=1e-2, atol=1e-2)


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


def test_pairs_turn_as_complex_numbers_do() -> None:
    position, frequencies = torch.tensor([0, 1, 7, 500]), torch.tensor([1.0, 0.1, 0.013])
    x = torch.randn(4, 2, 6)
    pairs = torch.complex(x[..., :3], x[..., 3:])
    amplitudes = torch.tensor([1.5, 1.0, 0.5])
    rotated = pairs * torch.polar(amplitudes.expand(4, 3), position[:, None] * frequencies)[:, None]
    Rotation.of(position, torch.stack((frequencies, amplitudes)), torch.float32).rotate(x)
    torch.testing.assert_close(x, torch.cat((rotated.real, rotated.imag), dim=-1))


def test_a_view_is_rotated_in_place_and_its_surroundings_are_not() -> None:
    heads = torch.randn(2, 5, 4)
    before = heads.clone()
    rope = torch.tensor([[1.0, 0.5], [1.0, 1.0]])
    Rotation.of(torch.tensor([3, 4]), rope, torch.float32).rotate(heads[:, :3])
    assert not torch.equal(heads[:, :3], before[:, :3])
    assert torch.equal(heads[:, 3:], before[:, 3:])
