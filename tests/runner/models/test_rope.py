from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.runner.models.rope import Frequencies, Rope, RopeChoice, frequencies, scaled

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 2.0],
    "long_factor": [2.0, 8.0],
    "original_max_position_embeddings": 4096,
}


def always(found: Frequencies) -> RopeChoice:
    return RopeChoice.always(Rope.plain(found))


def slowed(scaling: dict[str, Any], plain: Frequencies) -> list[float]:
    found = scaled(plain, scaling).short.frequencies
    return [before / after for before, after in zip(plain, found, strict=True)]


def test_plain() -> None:
    assert frequencies(10_000.0, 4) == pytest.approx((1.0, 0.01))


def test_linear() -> None:
    assert scaled((1.0, 0.5), {"type": "linear", "factor": 4}) == always((0.25, 0.125))


@pytest.mark.parametrize(("scaling", "factor"), [(LLAMA3, 8.0), (YARN, 4.0)])
def test_slow_pairs_are_slowed_alone(scaling: dict[str, Any], factor: float) -> None:
    ratio = slowed(scaling, frequencies(500_000.0, 128))
    assert ratio[0] == 1.0
    assert ratio[-1] == pytest.approx(factor)
    assert ratio == sorted(ratio)
    assert any(1.1 < by < factor - 0.1 for by in ratio)


@pytest.mark.parametrize(
    ("changes", "amplitude"),
    [
        ({}, 1.1386294),  # 1 + ln(4) / 10
        ({"attention_factor": 1.5}, 1.5),
        ({"factor": 1.0}, 1.0),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, 1.1217511),
    ],
)
def test_yarn_makes_queries_and_keys_longer(changes: dict[str, Any], amplitude: float) -> None:
    rope = scaled(frequencies(10_000.0, 8), {**YARN, **changes}).short
    assert rope.amplitudes == pytest.approx((amplitude,) * 4)


def test_yarn_takes_the_factor_from_the_lengths_if_it_is_null() -> None:
    plain = frequencies(10_000.0, 64)
    derived = scaled(plain, {**YARN, "factor": None}, max_position=4 * 4096)
    assert derived == scaled(plain, YARN)


def test_longrope_depends_on_the_longest_sequence() -> None:
    choice = scaled((1.0, 0.5), {**LONGROPE, "attention_factor": 1.25})
    assert choice.at(4096) == Rope.plain((1.0, 0.25), 1.25)
    assert choice.at(4097) == Rope.plain((0.5, 0.0625), 1.25)
    longer = scaled((1.0, 0.5), LONGROPE, max_position=4096**2)
    assert longer.short.amplitudes == pytest.approx((2**0.5,) * 2)
    assert scaled((1.0, 0.5), LONGROPE, max_position=4096).short.amplitudes == (1.0, 1.0)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_longrope_under_its_old_names(name: str) -> None:
    assert scaled((1.0, 0.5), {**LONGROPE, "rope_type": name}, 8192) == scaled(
        (1.0, 0.5), LONGROPE, 8192
    )


def test_pairs_that_do_not_turn() -> None:
    padded = scaled((1.0, 0.5), {**LONGROPE, "attention_factor": 1.25}).padded(3)
    assert padded.short == Rope((1.0, 0.25, 0.0), (1.25, 1.25, 1.0))
    assert padded.long == Rope((0.5, 0.0625, 0.0), (1.25, 1.25, 1.0))
    assert padded.limit == 4096


def test_no_scaling() -> None:
    for nothing in ({}, {"rope_type": "default"}):
        assert scaled((1.0, 0.5), nothing) == always((1.0, 0.5))


def test_what_is_unknown_or_incomplete() -> None:
    with pytest.raises(ConfigError, match=r"'ntk' is not supported; choose one of .*yarn"):
        scaled((1.0,), {"rope_type": "ntk", "factor": 2.0})
    with pytest.raises(ConfigError, match="'llama3' lacks 'low_freq_factor'"):
        scaled((1.0,), {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"})
    with pytest.raises(ConfigError, match="short_factor has 2 factors; the model needs 1"):
        scaled((1.0,), LONGROPE, 4096)
