"""A grammar holds the answer, and the reasoning before it is free."""

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.structured.backend import Matcher
from paceline.structured.reasoning import ReasoningGrammar, ReasoningMarkers, ReasoningMatcher
from paceline.structured.token_table import TokenTable
from tests.structured.support import PADDING, backend, every_backend, ids, table

END = table().eos[0]
THINK, THOUGHT = "<think>", "</think>"
SPECIAL = table().vocab_size - PADDING, table().vocab_size - PADDING + 1  # ids without a token
CHOICE = Constraint.choice(["hello", "<the>", "\nhello"])


@cache
def markers(start: str = THINK, special: bool = False) -> ReasoningMarkers:
    """With markers of several tokens, or of one that has no text of its own."""
    marker_ids = dict(zip((THINK, THOUGHT), SPECIAL, strict=True)) if special else {}

    def encode(text: str) -> list[int]:
        return [marker_ids[text]] if text in marker_ids else ids(text)

    return ReasoningMarkers.of(replace(table(), encode=encode), start, THOUGHT)


def reasoning(
    constraint: Constraint = CHOICE,
    start: str = THINK,
    special: bool = False,
    name: str = "xgrammar",
) -> ReasoningMatcher:
    return ReasoningGrammar(markers(start, special), backend(name).compile(constraint)).matcher()


def follows(matcher: Matcher, *texts: str) -> bool:
    """Whether all is accepted; tokens as they come, so that a marker may be many."""
    tokens = [token for text in texts for token in ids(text)]
    return matcher.try_tokens([*tokens, END]) == len(tokens) + 1


def allowed(matcher: Matcher, of: TokenTable) -> list[int]:
    row = np.full(of.words, -1, np.int32)
    matcher.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


@every_backend
def test_the_answer_is_held_behind_the_reasoning(name: str) -> None:
    for breaks in ("", "\n", "\n\n"):
        assert follows(reasoning(name=name), THINK, "hm { < </th", THOUGHT, breaks, "hello")
        inside = reasoning(start="", name=name)
        assert follows(inside, "hm", THOUGHT, breaks, "hello")
        assert follows(inside, THOUGHT, breaks, "hello")
    assert not follows(reasoning(name=name), THINK, "hm", THOUGHT, "\n\n\n\n", "hello")
    assert not follows(reasoning(name=name), THINK, "hm", THOUGHT, "hi")
    assert not follows(reasoning(name=name), THINK, "hm", THOUGHT)
    assert not follows(reasoning(name=name), THINK, "hm")
    assert not follows(reasoning(start="", name=name), "hello")


def test_the_model_may_answer_at_once() -> None:
    assert follows(reasoning(), "hello")
    assert follows(reasoning(), "<the>")  # it begins like the marker
    assert follows(reasoning(), "\nhello")
    assert not follows(reasoning(), "<thing>")
    assert not follows(reasoning(), "<think")


def test_a_line_break_of_the_answer_is_the_answers() -> None:
    assert follows(reasoning(), THINK, THOUGHT, "\nhello")
    assert follows(reasoning(Constraint.regex("\n\nok")), THINK, THOUGHT, "\n\n", "ok")


def test_markers_may_be_special_tokens() -> None:
    start, end = SPECIAL
    matcher = reasoning(special=True)
    assert start in allowed(matcher, markers(special=True).table)
    assert matcher.accept(start)
    for token in ids("hm"):
        assert matcher.accept(token)
    assert end in allowed(matcher, markers(special=True).table)
    assert not set(table().eos) & set(allowed(matcher, markers(special=True).table))
    assert matcher.accept(end)
    assert follows(matcher, "\nhello")
    assert not reasoning().accept(start)


def test_no_token_has_the_end_of_the_reasoning_and_a_part_of_the_answer() -> None:
    wide = replace(
        table(), spelled=(*table().spelled, b">hello", b">\n", b"x</think>{", b">\n\n\n")
    )
    size = table().vocab_size
    grammar = ReasoningGrammar(
        ReasoningMarkers.of(wide, THINK, THOUGHT), backend("xgrammar").compile(CHOICE)
    )
    matcher = grammar.matcher()
    for text in (THINK, "hm", "</think"):
        for token in ids(text):
            assert matcher.accept(token)
    found = set(allowed(matcher, wide))
    assert found & set(range(size, size + 4)) == {size + 1}
    assert not matcher.accept(size)
    assert not matcher.accept(size + 2)
    assert matcher.accept(size + 1)
    assert follows(matcher, "\n", "hello")


@pytest.mark.parametrize("start", [THINK, ""])
@pytest.mark.parametrize("special", [False, True])
def test_a_random_history_is_the_same_as_a_fresh_matcher(start: str, special: bool) -> None:
    """Also masks: they allow what is accepted. Markers come often, in whole and in parts."""
    own = markers(start, special).table
    texts = [THINK, THOUGHT, "hello", "<the>", "\n", "\n\n", "h"]
    likely = [token for text in texts for token in ids(text)] + list(SPECIAL) + [END] * 9
    ends = 0
    for seed in range(8):
        random, matcher, tokens = Random(seed), reasoning(CHOICE, start, special), list[int]()
        for _ in range(40):
            fresh = reasoning(CHOICE, start, special)
            assert all(map(fresh.accept, tokens))
            possible = allowed(matcher, own)
            assert allowed(fresh, own) == possible
            assert (fresh.finished, fresh.terminated) == (matcher.finished, matcher.terminated)
            for token in likely:
                accepted = matcher.try_tokens([token]) == 1
                assert accepted == (token in possible and not matcher.terminated)
            if random.random() < 0.2:
                back = random.randint(0, min(len(tokens), 9))
                matcher.rollback(back)
                tokens = tokens[: len(tokens) - back]
            matcher = matcher.fork() if random.random() < 0.2 else matcher
            text = random.choice(texts)
            for token in ids(text) if random.random() < 0.8 else [random.choice(likely)]:
                if matcher.accept(token):
                    tokens.append(token)
            ends += matcher.terminated
    assert ends


def test_drafts_of_reasoning_and_answer_have_masks() -> None:
    matcher = reasoning(start="")
    drafts = [*ids("hm"), *ids(THOUGHT), *ids("hello"), END]
    mask = np.zeros((len(drafts) + 1, table().words), np.int32)
    assert matcher.fill_rows(mask, drafts) == len(drafts)
    for at, token in enumerate(drafts):
        row = np.zeros(table().words, np.int32)
        matcher.fill(row)
        assert (row == mask[at]).all()
        assert matcher.accept(token)
