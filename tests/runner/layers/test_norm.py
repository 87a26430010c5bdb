import pytest
import torch
import torch.nn.functional as F

from paceline.runner.layers.norm import Norm, UnscaledNorm


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_a_norm_is_torchs(size: float) -> None:
    """Also where the eps is larger than the mean square."""
    x, weight, eps = torch.randn(3, 4, 16) * size, torch.randn(16), 1e-5
    expected = F.rms_norm(x, (16,), weight, eps)
    norm = Norm(UnscaledNorm((16 * eps) ** 0.5, "cpu"), weight * 4)
    torch.testing.assert_close(norm(x), expected, rtol=1e-5, atol=1e-6)
    norm.apply_to(x)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)


def test_zeros_stay_zeros() -> None:
    assert not UnscaledNorm(1e-3, "cpu")(torch.zeros(2, 8)).any()


def test_halves_are_normalised_in_full() -> None:
    x = torch.randn(5, 64).bfloat16()
    got = Norm(UnscaledNorm(8e-3, "cpu"), torch.full((64,), 8.0).bfloat16())
    expected = F.rms_norm(x.float(), (64,), eps=1e-6)
    assert got(x).dtype == torch.bfloat16
    torch.testing.assert_close(got(x).float(), expected, rtol=1e-2, atol=1e-2)
    got.apply_to(x)
    torch.testing.assert_close(x.float(), expected, rtol=1e-2, atol=1e-2)
