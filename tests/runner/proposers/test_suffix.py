"""Suffix decoding: which path of the tree is proposed, and what is kept of past outputs."""

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from paceline.core.arrays import I64
from paceline.core.plan import NO_ROWS, Admitted, Plan
from paceline.core.request import Request
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.device_state import DeviceState
from paceline.runner.proposer import DraftingFor, DraftInput
from paceline.runner.proposers import suffix
from paceline.runner.proposers.suffix import PastOutputs, Suffix

LONGEST = 64
AFTER = [4, 5, 6, 7]


def made(**settings: Any) -> Suffix:
    names = {f"suffix_decoding_{name}": value for name, value in settings.items()}
    found = Suffix(SpeculationConfig(proposer="suffix", num_speculative_tokens=8, **names))
    found.attach(DraftingFor(None, DeviceState(4, LONGEST, 8), blocks=8, block_size=8))
    return found


def proposed(drafter: Suffix, *sequences: list[int], number: int = 8) -> list[list[int]]:
    """The drafts of each sequence, without those that are none."""
    tokens = torch.full((len(sequences), LONGEST), 99)  # behind what is known stands anything
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    rows = torch.arange(len(sequences))
    known = torch.tensor([len(sequence) for sequence in sequences])
    found = drafter.draft(DraftInput(rows, tokens, known, torch.full_like(rows, number), number))
    assert found.probabilities is None
    return [[token for token in row if token >= 0] for row in found.ids.tolist()]


# -- the path ---------------------------------------------------------------


def test_drafts_are_what_followed_the_latest_tokens() -> None:
    assert proposed(made(), [1, 2, 3, *AFTER, 9, 1, 2, 3]) == [[4, 5, 6]]


def test_there_are_no_more_drafts_than_the_factor_allows_for_the_tokens_that_match() -> None:
    sequence = [1, 2, *AFTER, 9, 1, 2]
    assert proposed(made(), sequence) == [[4, 5]]
    assert proposed(made(max_spec_factor=1.5), sequence) == [[4, 5, 6]]
    assert proposed(made(max_spec_factor=4.0), sequence, number=3) == [[4, 5, 6]]


def test_a_match_and_its_drafts_share_the_depth() -> None:
    sequence = [1, 2, 3, *AFTER, 9, 1, 2, 3]
    assert proposed(made(max_tree_depth=5), sequence) == [[4, 5]]  # two tokens and two
    assert proposed(made(max_tree_depth=3), sequence) == [[4]]


def test_the_token_that_followed_most_often_is_drafted() -> None:
    sequence = [1, 2, 7, 8, 1, 2, 7, 9, 1, 2, 3, 0, 1, 2]
    assert proposed(made(), sequence) == [[7, 9]]  # of 8 and 9, the later one


def test_a_path_ends_where_it_is_unlikely() -> None:
    sequence = [1, 2, 7, 8, 1, 2, 7, 9, 1, 2, 3, 0, 1, 2]
    assert proposed(made(min_token_prob=0.5), sequence) == [[7]]
    assert proposed(made(min_token_prob=0.7), sequence) == [[]]


@pytest.mark.parametrize("sequence", [[5], [5, 5], [1, 2, 3], [2, 3, 4, 9, 4]])
def test_a_sequence_that_repeats_nothing_gets_nothing(sequence: list[int]) -> None:
    assert proposed(made(), sequence) == [[]]


def test_rows_are_independent_and_have_no_more_than_they_may() -> None:
    drafter, rows = made(), ([1, 2, 3, *AFTER, 1, 2, 3], [1, 2], [5] * 9)
    assert proposed(drafter, *rows, number=2) == [[4, 5], [], [5, 5]]
    assert proposed(drafter, *rows, number=0) == [[], [], []]


def by_hand(text: list[list[int]], latest: list[int], depth: int, factor: float) -> float:
    """The best score of any path, of any match in these texts, as one would look for it."""
    best = 0.0
    for size in range(suffix.LEAST, min(depth, len(latest) + 1)):
        followed = [
            each[end:]
            for each in text
            for end in range(len(each), size - 1, -1)
            if each[end - size : end] == latest[-size:]
            and (each is not latest or end < len(latest))
        ]
        odds, score = 1.0, 0.0
        for place in range(min(int(factor * size), depth - size)):
            counts = Counter(each[place] if place < len(each) else -1 for each in followed)
            if not counts:
                break
            ((token, times),) = counts.most_common(1)
            odds *= times / len(followed)
            if token < 0 or odds < 0.1:
                break
            score += odds
            followed = [each for each in followed if place < len(each) and each[place] == token]
        best = max(best, score)
    return best


def test_of_all_matches_the_path_with_the_best_score_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suffix, "NODES", 99)
    random = Random(3)
    for _ in range(80):
        depth, factor = random.choice([3, 6, 24]), random.choice([0.5, 1.0, 2.0])
        sequence = random.choices(range(random.choice([2, 3])), k=random.randint(2, 40))
        reach = suffix.Reach(depth, factor, 0.1)
        own = suffix.OwnTokens(np.array(sequence, np.int32))
        latest: I64 = np.array(sequence[::-1][: depth - 1])
        found = suffix.best(own, own.occurrences(), latest, reach)
        assert found.score == pytest.approx(by_hand([sequence], sequence, depth, factor))


# -- past outputs -----------------------------------------------------------


def test_past_outputs_are_drafts_for_other_requests() -> None:
    drafter = made()
    drafter._past.add([9, 1, 2, 3, *AFTER, 9])
    assert proposed(drafter, [8, 1, 2, 3], [3, 1, 8]) == [[4, 5, 6], []]
    assert proposed(drafter, [8, 4, 5]) == [[6, 7]]


def test_no_draft_goes_from_one_output_into_the_next() -> None:
    drafter = made()
    drafter._past.add([1, 2, 3])
    drafter._past.add([4, 5, 6])
    assert proposed(drafter, [2, 3], [1, 2]) == [[], [3]]


def test_the_sequence_itself_goes_before_an_output_that_is_as_good() -> None:
    drafter = made()
    drafter._past.add([1, 2, 8, 8])
    assert proposed(drafter, [1, 2, 7, 7, 1, 2]) == [[7, 7]]
    assert proposed(drafter, [1, 2, 7, 7, 3, 1, 2]) == [[7, 7]]
    drafter._past.add([3, 1, 2, 8, 8, 8])
    assert proposed(drafter, [1, 2, 7, 7, 3, 1, 2]) == [[8, 8, 8]]  # more tokens match


@pytest.mark.parametrize("size", [1 << 20, 64])
def test_the_oldest_outputs_make_room(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "CAPACITY", size)
    drafter = made(max_cached_requests=3)
    for first in range(0, 500, 10):
        drafter._past.add([*range(first, first + 10)])
    known = [first for first in range(0, 500, 10) if proposed(drafter, [first, first + 1])[0]]
    assert known == [470, 480, 490]


def test_any_outputs_are_found_again_in_a_small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes collide, positions are used again, and nothing is found that was not there."""
    monkeypatch.setattr(suffix, "CAPACITY", 32)
    random, past, texts = Random(5), PastOutputs(4), list[list[int]]()
    for _ in range(200):
        output = random.choices(range(4), k=random.randint(0, 40))
        past.add(output)
        texts = [*texts, output][-4:] if len(output) > suffix.LEAST else texts
        latest: I64 = np.array(random.choices(range(4), k=7))
        for end in past.occurrences(latest):
            there = past.at(end - np.arange(2))
            assert there.tolist() == latest[:2].tolist()
            pair = there[::-1].tolist()
            assert any(pair == each[at : at + 2] for each in texts for at in range(len(each)))


def test_an_output_longer_than_the_ring_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "CAPACITY", 16)
    drafter = made()
    drafter._past.add([*range(50)])
    assert proposed(drafter, [47, 48], [3, 4]) == [[49], []]


# -- from the plans ---------------------------------------------------------


def follow(drafter: Suffix, *admitted: Admitted, **fields: Any) -> None:
    drafter.follow(Plan(0, NO_ROWS, NO_ROWS.count, admitted=admitted, **fields))


def admitted(slot: int, name: str, prompt: list[int]) -> Admitted:
    tokens = np.array(prompt, np.int32)
    return Admitted(slot, Request(name, tokens), tokens, 0, (0,), resumed=False)


def test_outputs_are_kept_when_their_slots_are_released() -> None:
    drafter = made()
    columns = drafter._columns
    assert columns is not None
    follow(drafter, admitted(1, "a", [6, 6]), admitted(2, "b", [6, 6]))
    for slot, output in ((1, [1, 2, 3, 4]), (2, [5, 6, 7, 8])):
        columns.tokens[slot, :6] = torch.tensor([6, 6, *output])
        columns.position[slot] = 5
    follow(drafter, admitted(1, "c", [0]), released=(1, 2), preempted=("b",), finished=("a",))
    columns.tokens[1] = 0  # another request has the slot now
    assert proposed(drafter, [1, 2], [5, 6], [6, 6]) == [[3, 4], [], []]


def test_while_no_request_drafts_only_the_latest_outputs_are_kept() -> None:
    drafter = made()
    columns = drafter._columns
    assert columns is not None
    for number in range(100):
        follow(drafter, admitted(0, f"r{number}", [1]))
        columns.tokens[0, 1:4] = torch.tensor([number, number + 200, number + 300])
        columns.position[0] = 3
        follow(drafter, released=(0,))
    assert proposed(drafter, [99, 299], [98, 298], [1, 201]) == [[399], [398], []]


def test_none_are_kept_if_none_may_be() -> None:
    drafter = made(max_cached_requests=0)
    follow(drafter, admitted(1, "a", [6, 6]))
    follow(drafter, released=(1,))
    assert not drafter._unread
    assert proposed(drafter, [1, 2, 3, 1, 2]) == [[3, 1]]
