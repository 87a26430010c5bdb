"""Prompt lookup: which earlier occurrence counts, and what is proposed after it."""

from random import Random

import pytest
import torch

from paceline.core.settings.features import SpeculationConfig
from paceline.runner.proposers import ngram
from paceline.runner.proposers.ngram import Ngram


def proposed(
    sequences: list[list[int]], number: list[int], least: int = 2, most: int = 4
) -> list[list[int]]:
    """The drafts of each sequence, without those that are none."""
    width = max(map(len, sequences)) + 3
    tokens = torch.full((len(sequences), width), 99)  # behind what is known stands anything
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    known = torch.tensor([len(sequence) for sequence in sequences])
    config = SpeculationConfig(prompt_lookup_min=least, prompt_lookup_max=most)
    found = Ngram(config).propose(tokens, known, torch.tensor(number), max(number))
    assert found.shape == (len(sequences), max(number))
    return [[token for token in row if token >= 0] for row in found.tolist()]


def by_hand(sequence: list[int], number: int, least: int, most: int) -> list[int]:
    """The same, as one would write it down."""
    for size in range(most, least - 1, -1):
        for begin in range(len(sequence) - size - 1, -1, -1):
            if size < len(sequence) and sequence[begin : begin + size] == sequence[-size:]:
                followed = sequence[begin + size :]
                return [followed[place % len(followed)] for place in range(number)]
    return []


def test_drafts_are_what_followed_the_latest_tokens_before() -> None:
    assert proposed([[1, 2, 3, 4, 5, 1, 2]], [3]) == [[3, 4, 5]]


def test_of_equally_long_matches_the_latest_counts() -> None:
    assert proposed([[1, 2, 7, 1, 2, 8, 1, 2]], [1]) == [[8]]


def test_a_longer_match_goes_before_a_later_one() -> None:
    assert proposed([[9, 1, 2, 7, 5, 1, 2, 8, 9, 1, 2]], [1]) == [[7]]


def test_no_more_tokens_than_the_most_are_compared() -> None:
    """Four agree at the beginning, and two of them count: then the later one is as good."""
    sequence = [9, 8, 1, 2, 7, 5, 1, 2, 6, 9, 8, 1, 2]
    assert proposed([sequence], [1]) == [[7]]
    assert proposed([sequence], [1], most=2) == [[6]]


def test_fewer_tokens_than_the_least_are_no_match() -> None:
    sequence = [1, 2, 3, 9, 2]
    assert proposed([sequence], [2]) == [[]]
    assert proposed([sequence], [2], least=1) == [[3, 9]]


def test_what_followed_repeats_where_it_is_short() -> None:
    assert proposed([[4, 1, 2, 1, 2]], [5]) == [[1, 2, 1, 2, 1]]
    assert proposed([[7, 7, 7]], [3]) == [[7, 7, 7]]


@pytest.mark.parametrize("sequence", [[5], [5, 5], [1, 2, 3]])
def test_a_sequence_without_a_match_gets_nothing(sequence: list[int]) -> None:
    assert proposed([sequence], [3]) == [[]]


def test_rows_are_independent_and_get_as_many_as_they_want() -> None:
    rows = [[1, 2, 3, 1, 2], [1, 2, 3], [5] * 9]
    assert proposed(rows, [1, 2, 4]) == [[3], [], [5, 5, 5, 5]]
    assert proposed(rows, [0, 2, 4]) == [[], [], [5, 5, 5, 5]]


@pytest.mark.parametrize("piece", [1 << 22, 40])
def test_any_sequences_get_what_a_search_by_hand_finds(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram, "PIECE", piece)  # rows of a call that takes too much are split
    random = Random(7)
    for _ in range(60):
        kinds, least = random.choice([2, 3, 9]), random.choice([1, 2, 3])
        most = least + random.choice([0, 1, 4])
        lengths = random.choices(range(1, 30), k=random.choice([1, 5]))
        rows = [random.choices(range(kinds), k=length) for length in lengths]
        number = [random.choice([1, 4, 6]) for _ in rows]
        expected = [by_hand(*pair, least, most) for pair in zip(rows, number, strict=True)]
        assert proposed(rows, number, least, most) == expected
