"""Banned sequences and a budget of reasoning, alone and beside a grammar."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured.backend import Grammar, Matcher
from paceline.structured.guarded_matcher import GuardedGrammar
from paceline.structured.reasoning import ReasoningGrammar, ReasoningMarkers
from tests.structured.support import allowed, backend, ids, table

END = table().eos[0]
SPECIAL = table().vocab_size - 1  # without bytes
THINK, THOUGHT = "<think>", "</think>"


def guarded(constraint: Constraint, markers: ReasoningMarkers | None = None) -> Matcher:
    inner: Grammar | None = None
    if constraint.kind != "text":
        inner = backend("llguidance").compile(constraint.of_answer)
        if markers is not None:
            inner = ReasoningGrammar(markers, inner)
    return GuardedGrammar(table(), constraint, inner, markers).matcher()


def banning(*sequences: tuple[int, ...], of: Constraint | None = None) -> Matcher:
    return guarded((of or Constraint.any_text()).without(sequences))


def test_the_last_token_of_a_sequence_is_forbidden_behind_the_others() -> None:
    matcher = banning((5, 6, 7), (6, 9), (8,))
    every = set(range(table().vocab_size))
    assert every - set(allowed(matcher)) == {8}
    assert matcher.try_tokens([7, 6, 7, 6, 6, SPECIAL]) == 6
    for token, forbidden in ((5, {8}), (6, {8, 7, 9}), (6, {8, 9}), (3, {8})):
        assert matcher.accept(token)
        assert every - set(allowed(matcher)) == forbidden
    assert not matcher.accept(8)


def test_an_output_ends_at_an_end_token() -> None:
    matcher = banning((5, 6))
    assert matcher.finished
    assert not matcher.terminated
    assert matcher.accept(5)
    assert matcher.accept(END)
    assert matcher.terminated
    assert set(allowed(matcher)) == set(table().eos)
    assert not matcher.accept(3)
    matcher.rollback(1)
    assert not matcher.terminated
    assert 6 not in allowed(matcher)
    matcher.rollback(1)
    assert 6 in allowed(matcher)


def test_drafts_are_refused_where_a_sequence_would_be_complete() -> None:
    matcher, mask = banning((5, 6)), np.zeros((4, table().words), np.int32)
    assert matcher.fill_rows(mask, [4, 5, 6]) == 2
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, 6]
    assert bits.tolist() == [1, 1, 0, 1]
    assert matcher.try_tokens([6]) == 1  # nothing has changed


def test_a_copy_goes_its_own_way() -> None:
    matcher = banning((5, 6))
    assert matcher.accept(5)
    copy = matcher.fork()
    assert copy.accept(4)
    assert 6 in allowed(copy)
    assert 6 not in allowed(matcher)


def test_a_grammar_and_banned_sequences_hold_together() -> None:
    yes, no = ids("yes"), ids("no")
    matcher = banning(tuple(yes), of=Constraint.choice(["yes", "no"]))
    assert matcher.try_tokens([*no, END]) == len(no) + 1
    assert matcher.try_tokens(yes) == len(yes) - 1
    alone = banning(tuple(yes), of=Constraint.choice(["yes"]))
    assert alone.try_tokens(yes[:-1]) == len(yes) - 1
    for token in yes[:-1]:
        assert alone.accept(token)
    with pytest.raises(RequestError, match="bad_words forbids every token"):
        alone.fill(np.zeros(table().words, np.int32))


# -- a budget of reasoning ------------------------------------------------------


def markers(start: str = THINK) -> ReasoningMarkers:
    return ReasoningMarkers.of(table(), start, THOUGHT)


def special_markers() -> ReasoningMarkers:
    """Markers that are one special token each."""
    found = {THINK: [SPECIAL - 1], THOUGHT: [SPECIAL]}
    return ReasoningMarkers.of(replace(table(), encode=found.__getitem__), THINK, THOUGHT)


def budgeted(most: int, found: ReasoningMarkers, of: Constraint | None = None) -> Matcher:
    start = found.start.decode()
    constraint = (of or Constraint.any_text()).after_reasoning(start, THOUGHT)
    return guarded(constraint.within(most), found)


def forced(matcher: Matcher) -> list[int]:
    """The tokens that the matcher forces from here on."""
    tokens: list[int] = []
    while len(only := allowed(matcher)) == 1:
        assert matcher.accept(only[0])
        tokens += only
    return tokens


@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_reasoning_ends_after_its_budget(most: int) -> None:
    matcher = budgeted(most, markers(""))
    for _ in range(most):
        assert len(allowed(matcher)) > 1
        assert matcher.accept(ids("x")[0])
    assert forced(matcher) == ids(THOUGHT)
    assert len(allowed(matcher)) > 1
    matcher.rollback(len(ids(THOUGHT)))
    assert allowed(matcher) == ids(THOUGHT)[:1]


def test_a_model_may_end_its_reasoning_earlier_or_not_begin_it() -> None:
    matcher = budgeted(9, special_markers())
    for token in (SPECIAL - 1, 5, SPECIAL, *[5] * 20):
        assert len(allowed(matcher)) > 1
        assert matcher.accept(token)
    matcher = budgeted(2, special_markers())
    for token in (6, SPECIAL - 1, *[5] * 9):  # the block does not begin in the middle
        assert matcher.accept(token)
    assert len(allowed(matcher)) > 1


def test_a_start_marker_of_several_tokens_begins_the_block() -> None:
    matcher = budgeted(2, markers())
    accept = partial(map, matcher.accept)
    assert all(accept([*ids("\n"), *ids(THINK), *ids("x"), *ids("y")]))
    assert forced(matcher) == ids(THOUGHT)


def test_a_grammar_holds_the_answer_behind_a_budget() -> None:
    matcher = budgeted(1, markers(""), Constraint.choice(["yes"]))
    assert matcher.accept(ids("x")[0])
    end = ids(THOUGHT)
    for token in end:
        assert allowed(matcher) == [token]
        assert matcher.accept(token)
    assert matcher.try_tokens([*ids("yes"), END]) == len(ids("yes")) + 1
    assert matcher.try_tokens(ids("no")) == 0
