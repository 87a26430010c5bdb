"""Percentiles, rates and goodput, on made-up times."""

import pytest

from paceline.bench.samples import Outcome, Sample, Spread, rate, targets_of
from paceline.core.errors import ConfigError


def sample(
    sent: float, *pieces: float, tokens: int | None = None, error: str = "", planned: float = 0.0
) -> Sample:
    """Ends with its last piece, and has a token for each piece."""
    end = pieces[-1] if pieces else sent + 1.0
    return Sample(planned, sent, pieces, end, 10, len(pieces) if tokens is None else tokens, error)


def test_times_of_one_request() -> None:
    one = sample(1.0, 1.5, 1.6, 1.9)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.tpot_s == pytest.approx(0.2)
    assert one.itl_s == pytest.approx([0.1, 0.3])
    assert one.e2e_s == pytest.approx(0.9)


def test_pieces_of_several_tokens() -> None:
    """Two pieces, nine tokens: the time per token is not the time per piece."""
    one = sample(0.0, 1.0, 1.8, tokens=9)
    assert one.tpot_s == pytest.approx(0.1)
    assert one.itl_s == pytest.approx([0.8])


def test_a_single_token_has_no_time_per_further_token() -> None:
    one = sample(0.0, 1.0)
    assert one.tpot_s is None
    assert one.itl_s == []
    assert one.meets({"tpot": 0.001})


def test_spread() -> None:
    found = Spread.of(float(value) for value in range(101))
    assert found == Spread(50.0, 50.0, 90.0, 99.0, 100.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.5, 1.9, 1.99, 2.0)
    assert Spread.of([]) is None


def test_a_run_is_added_up() -> None:
    samples = [
        sample(0.0, 0.1, 0.2, 0.3),
        sample(1.0, 1.4, 1.6, planned=0.5),
        sample(2.0, error="timeout"),
        sample(2.0, 2.5, error="cut off"),
        sample(2.5, error="timeout"),
    ]
    outcome = Outcome.of(samples, {"ttft": 200.0})
    assert outcome.duration_s == pytest.approx(3.5)
    assert (outcome.completed, outcome.errors) == (2, {"timeout": 2, "cut off": 1})
    assert (outcome.prompt_tokens, outcome.output_tokens) == (20, 5)
    assert outcome.requests_per_s == pytest.approx(2 / 3.5)
    assert outcome.output_tokens_per_s == pytest.approx(5 / 3.5)
    assert outcome.total_tokens_per_s == pytest.approx(25 / 3.5)
    assert outcome.goodput == pytest.approx(1 / 3.5)
    assert outcome.ttft_ms is not None
    assert outcome.ttft_ms.most == pytest.approx(400.0)
    assert outcome.itl_ms is not None
    assert outcome.itl_ms.mean == pytest.approx(400.0 / 3)
    assert outcome.behind_ms is not None
    assert outcome.behind_ms.median == pytest.approx(2000.0)


def test_a_run_in_which_nothing_ended_well() -> None:
    outcome = Outcome.of([sample(0.0, error="timeout")], {})
    assert (outcome.completed, outcome.requests_per_s, outcome.goodput) == (0, 0.0, None)
    assert outcome.ttft_ms is outcome.tpot_ms is outcome.itl_ms is outcome.e2e_ms is None
    assert Outcome.of([], {"e2e": 1.0}).goodput == 0.0


@pytest.mark.parametrize(
    ("targets", "met"),
    [
        ({}, True),
        ({"ttft": 500.0}, True),
        ({"ttft": 499.0}, False),
        ({"ttft": 500.0, "tpot": 199.0}, False),
        ({"tpot": 201.0, "e2e": 901.0}, True),
        ({"e2e": 899.0}, False),
    ],
)
def test_a_request_meets_all_targets_or_not(targets: dict[str, float], met: bool) -> None:
    assert sample(1.0, 1.5, 1.6, 1.9).meets(targets) == met
    assert not sample(1.0, 1.5, 1.6, 1.9, error="cut off").meets(targets)


def test_targets_are_read() -> None:
    assert targets_of(["ttft:200", "tpot:50.5"]) == {"ttft": 200.0, "tpot": 50.5}
    assert targets_of([]) == {}
    for wrong in ("ttft", "ttft:", "ttft:fast", "speed:3", "ttft:0", "ttft:-1", "ttft:nan"):
        with pytest.raises(ConfigError, match="goodput"):
            targets_of([wrong])
    with pytest.raises(ConfigError, match="'ttft' is not NAME:MS, for example ttft:200"):
        targets_of(["ttft"])


def test_no_time_no_rate() -> None:
    assert rate(5, 0.0) == 0.0
