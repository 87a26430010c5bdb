import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.rope import frequencies, scaled

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def test_plain() -> None:
    assert frequencies(10_000.0, 4) == pytest.approx((1.0, 0.01))


def test_linear() -> None:
    assert scaled((1.0, 0.5), {"type": "linear", "factor": 4}) == (0.25, 0.125)


def test_llama3_slows_the_slow_alone() -> None:
    plain = frequencies(500_000.0, 128)
    found = scaled(plain, LLAMA3)
    ratio = [before / after for before, after in zip(plain, found, strict=True)]
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(8.0)
    assert ratio == sorted(ratio)
    assert any(1.1 < by < 7.9 for by in ratio)


def test_no_scaling() -> None:
    for nothing in ({}, {"rope_type": "default"}):
        assert scaled((1.0, 0.5), nothing) == (1.0, 0.5)


def test_what_is_unknown_or_incomplete() -> None:
    with pytest.raises(ConfigError, match="'yarn' is not supported"):
        scaled((1.0,), {"rope_type": "yarn", "factor": 2.0})
    with pytest.raises(ConfigError, match="'llama3' lacks 'low_freq_factor'"):
        scaled((1.0,), {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"})
