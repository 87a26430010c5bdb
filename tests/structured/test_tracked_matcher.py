"""Matchers that advance together do what each does alone."""

from random import Random

import numpy as np
import pytest

from paceline.core.constraint import Constraint
from paceline.core.errors import RequestError
from paceline.structured import xgrammar_backend as xgrammar_group
from paceline.structured.backend import Matcher
from paceline.structured.reasoning import ReasoningGrammar, ReasoningMarkers
from paceline.structured.tracked_matcher import MatcherBatch
from tests.structured.support import backend, every_backend, made_schema, table

CONSTRAINTS = [
    Constraint.regex("(ab|cd)*e?"),
    Constraint.choice(["hello", "hello world", "the"]),
    Constraint.json({"type": "array", "items": {"enum": [None, "the"]}}),
    Constraint.json(made_schema(36)),
]
WIDTH = table().words


def matchers(*names: str) -> list[Matcher]:
    return [backend(name).compile(one).matcher() for name in names for one in CONSTRAINTS]


def reasoning() -> Matcher:
    markers = ReasoningMarkers.of(table(), "", "the")
    return ReasoningGrammar(markers, backend("xgrammar").compile(CONSTRAINTS[0])).matcher()


def alone(matcher: Matcher) -> np.ndarray:
    row = np.full(WIDTH, 7, np.int32)
    matcher.fill(row)
    return row


def tokens_of(rows: np.ndarray, random: Random) -> np.ndarray:
    """A token that each row allows, and no end token if there is another."""
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")
    found = [np.flatnonzero(row).tolist() for row in bits]
    text = [[id for id in ids if id not in table().eos] or [-1] for ids in found]
    return np.array([random.choice(ids) for ids in text], np.int32)


@pytest.mark.parametrize("names", [("xgrammar",), ("llguidance",), ("xgrammar", "llguidance")])
def test_masks_and_tokens_are_those_of_each_alone(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    threaded = xgrammar_group.Filler(2)
    monkeypatch.setattr(xgrammar_group, "WORTH_S", 0.0)  # as if masks took long
    monkeypatch.setattr(xgrammar_group, "filler", lambda: threaded)
    together, each, random = (
        [*matchers(*names), reasoning()],
        [*matchers(*names), reasoning()],
        Random(1),
    )
    at = np.arange(len(each))[::-1].copy()
    for _ in range(8):
        mask = np.full((len(each) + 1, WIDTH), 7, np.int32)
        batch = MatcherBatch(together)
        assert batch.fill(mask, at) == {}
        for place, one in enumerate(each):
            assert (mask[at[place]] == alone(one)).all()
        assert (mask[-1] == 7).all()
        tokens = tokens_of(mask[at], random)
        goes_on = np.flatnonzero(tokens >= 0).tolist()
        together, each = ([some[place] for place in goes_on] for some in (together, each))
        assert MatcherBatch(together).accept(tokens[goes_on]) == {}
        assert all(one.accept(int(token)) for one, token in zip(each, tokens[goes_on], strict=True))
        at = np.argsort(np.argsort(at[goes_on]))


@every_backend
def test_a_token_that_is_refused_is_named(name: str) -> None:
    batch, wrong = MatcherBatch(matchers(name)), table().spelled.index(b"%")
    found = batch.accept(np.array([table().spelled.index(b"a"), wrong, wrong, wrong], np.int32))
    assert {1, 2} <= found.keys() <= {1, 2, 3}
    assert f"does not allow token {wrong}" in found[1]


@every_backend
def test_a_grammar_that_fails_is_named(name: str) -> None:
    endless = backend(name).compile(Constraint.regex("(a|aa)+b?")).matcher()
    stuck = reasoning()

    def fail(row: np.ndarray) -> None:
        raise RequestError("stuck")

    stuck.fill = fail
    mask = np.zeros((2, WIDTH), np.int32)
    assert MatcherBatch([endless, stuck]).fill(mask, np.array([1, 0])) == {1: "stuck"}
    assert (mask[1] == alone(endless)).all()
