import pytest
import torch

from paceline.runner.layers import packing
from paceline.runner.layers.packing import FourBitWeights, quantised
from tests.runner.support import stepped


def weights_of(steps: FourBitWeights) -> torch.Tensor:
    found = steps.whole * steps.step.float()[..., None] + steps.least.float()[..., None]
    return found.flatten(1)


@pytest.mark.parametrize("inputs", [32, 96, 70])
def test_steps_are_found_again(inputs: int) -> None:
    weight = stepped(torch.randn(9, inputs))
    steps = FourBitWeights.of(weight, 32)
    assert steps.holds_all
    torch.testing.assert_close(weights_of(steps)[:, :inputs], weight, rtol=1e-6, atol=1e-6)


def test_what_has_no_steps_is_not_held() -> None:
    assert not FourBitWeights.of(torch.randn(3, 64), 32).holds_all


def test_steps_too_small_for_halves_are_not_held() -> None:
    assert not FourBitWeights.of(stepped(torch.randn(3, 64)) * 1e-9, 32).holds_all


def test_groups_that_are_all_alike_are_held() -> None:
    assert FourBitWeights.of(torch.full((2, 32), 0.5), 32).holds_all
    assert FourBitWeights.of(torch.zeros(2, 32), 32).holds_all


def test_a_weight_of_zeros() -> None:
    whole, scale = quantised(torch.zeros(3, 4))
    assert not whole.any()
    assert scale.isfinite().all()


def test_rows_are_rounded_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(11, 7)
    whole, scale = quantised(weight)
    assert torch.equal(scale, weight.abs().amax(dim=1) / 127)
    monkeypatch.setattr(packing, "PIECE", 4)
    assert torch.equal(quantised(weight)[0], whole)
    assert bool(((whole * scale[:, None] - weight).abs() <= scale[:, None] * 0.501).all())
