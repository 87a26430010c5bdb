"""Calls of a load: prompts, lengths and arrivals."""

from math import inf

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.workloads.call import (
    Call,
    LengthDistribution,
    Segment,
    Shape,
    Span,
    arrival_times,
    token_ids,
    words,
)

CALL = Call(2.0, (Segment("a", 512), Segment("b", 88)), 40)


def test_a_call_is_cut_at_the_end_of_its_prompt() -> None:
    assert CALL.input_len == 600
    assert CALL.cut(1000, 1000) == CALL
    assert CALL.cut(520, 8) == Call(2.0, (Segment("a", 512), Segment("b", 8)), 8)
    assert CALL.cut(512, 40).segments == (Segment("a", 512),)
    assert CALL.cut(100, 40).segments == (Segment("a", 100),)


def gaps(burstiness: float) -> np.ndarray:
    times = arrival_times(20_000, 5.0, burstiness, np.random.default_rng(1))
    assert times[0] == 0.0
    return np.diff(times)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_that_was_asked_for(burstiness: float) -> None:
    found = gaps(burstiness)
    assert (found >= 0).all()
    assert found.mean() == pytest.approx(1 / 5.0, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(3, inf, 1.0, np.random.default_rng(1)).tolist() == [0.0, 0.0, 0.0]


def test_none() -> None:
    assert arrival_times(0, 2.0, 1.0, np.random.default_rng(1)).tolist() == []


def test_the_same_seed_gives_the_same_times() -> None:
    assert gaps(1.0).tolist() == gaps(1.0).tolist()


@pytest.mark.parametrize(
    ("text", "median"),
    [("128", 128), ("64-256", 160), ("lognormal:900:0.8", 900), ("exponential:200", 139)],
)
def test_lengths_have_their_median(text: str, median: float) -> None:
    lengths, random = LengthDistribution.parse(text), np.random.default_rng(0)
    drawn = [lengths.draw(random) for _ in range(2000)]
    assert np.median(drawn) == pytest.approx(median, rel=0.1)
    assert min(drawn) >= 1


@pytest.mark.parametrize("text", ["", "x", "9-3", "lognormal:5", "lognormal:0:1", "exponential:-1"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(ValueError, match="write 128, 64-256"):
        LengthDistribution.parse(text)


def calls(count: int, shape: Shape, seed: int = 0) -> list[Call]:
    return shape.calls([0.5 * number for number in range(count)], np.random.default_rng(seed))


def test_spans_are_read() -> None:
    assert Span.parse("128") == Span(128, 128)
    assert Span.parse("64-256") == Span(64, 256)
    for wrong in ("", "0", "-5", "9-3", "a", "1-b", "1-2-3", "1.5"):
        with pytest.raises(ValueError, match="length"):
            Span.parse(wrong)


def test_lengths_are_drawn_from_the_whole_span() -> None:
    found = calls(400, Shape(Span(10, 14), Span(3, 4)))
    assert {call.input_len for call in found} == {10, 11, 12, 13, 14}
    assert {call.output_len for call in found} == {3, 4}
    assert [call.at_s for call in found[:3]] == [0.0, 0.5, 1.0]
    assert calls(5, Shape(Span(10, 14), Span(3, 4))) == found[:5]
    assert calls(5, Shape(Span(10, 14), Span(3, 4)), seed=1) != found[:5]


def test_prompts_share_nothing_but_their_prefix() -> None:
    found = calls(40, Shape(Span(20, 20), Span(1, 1), prefix_len=8, prefixes=3))
    prompts = [token_ids(call, 5000, seed=0) for call in found]
    assert all(len(prompt) == 20 for prompt in prompts)
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 3
    assert len({prompt[8] for prompt in prompts}) > 30
    assert len({tuple(prompt) for prompt in prompts}) == 40


def test_a_prefix_as_long_as_a_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves nothing"):
        Shape(Span(8, 20), Span(1, 1), prefix_len=8)


def test_ids_avoid_the_beginning_of_the_vocabulary() -> None:
    ids = token_ids(Call(0.0, (Segment("a", 5000),), 1), 80, seed=0)
    assert set(ids) == set(range(10, 80))


def test_tokens_depend_on_key_and_seed_and_a_shorter_segment_is_a_prefix() -> None:
    def of(key: str, count: int, seed: int = 0) -> list[int]:
        return token_ids(Call(0.0, (Segment(key, count),), 1), 5000, seed)

    assert of("a", 40)[:13] == of("a", 13)
    assert of("a", 40) != of("b", 40)
    assert of("a", 40) != of("a", 40, seed=1)


def test_words_are_as_many_as_tokens() -> None:
    call = Call(0.0, (Segment("a", 30), Segment("b", 5)), 1)
    assert len(words(call, 0).split()) == 35
    other = Call(0.0, (Segment("a", 30), Segment("c", 5)), 1)
    assert words(call, 0).split()[:30] == words(other, 0).split()[:30]
    assert words(call, 0) != words(other, 0)
