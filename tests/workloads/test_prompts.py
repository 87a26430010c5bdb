"""Prompts: exact lengths, shared prefixes, the same ones again."""

import numpy as np
import pytest

from paceline.core.errors import ConfigError
from paceline.workloads.call import Call, Segment, Shape, Span, token_ids, words


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
