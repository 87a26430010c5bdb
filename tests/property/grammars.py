"""Grammars for random schedules, on vocabularies of a few characters."""

from concurrent.futures import Future
from functools import cache
from typing import Any, ClassVar

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.request import Request
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.structured.backend import Grammar, GrammarBackend, backend_class
from paceline.structured.compile_queue import GrammarCounts
from paceline.structured.guarded_matcher import GuardedGrammar
from paceline.structured.reasoning import ReasoningGrammar, ReasoningMarkers
from paceline.structured.token_table import TokenTable
from paceline.testing.reference import Mask
from tests.structured.support import SchemaMaker, torch_hidden

END = 2
PATTERNS = ("[01]+", "(0|11)*1", "0{3,9}", "(01|10){2,6}", "0*", "1|01|001|0001(0|1)*")
LONG_PATTERNS = ("(0010111)*", "0{5}(1111111|0)1{6}0*")  # with several tokens that are forced


CHARACTERS = '0123456789{}[]":, -.abcdefghijklmnopqrstuvwxyz'  # enough to write documents
SCHEMAS = 40


@cache
def table(vocab: int) -> TokenTable:
    """Tokens are characters, and one is the end token. Those of documents are the first ones."""
    others = (chr(256 + id) for id in range(vocab))
    spelled = [one.encode() for one in (*CHARACTERS, *others)][:vocab]
    spelled[END] = b""
    return TokenTable(tuple(spelled), (END,))


class PlainSchemaMaker(SchemaMaker):
    """Random schemas whose documents need only `CHARACTERS`."""

    names: ClassVar = ["a", "bc", "name", "colour of hair", "b"]

    def leaf(self) -> dict[str, Any]:
        return self.random.choice(
            [
                {"type": "string"},
                {"type": "string", "pattern": "^[ab]{1,4}$"},
                {"type": "string", "enum": ["north", "northeast", "south"]},
                {"type": "integer"},
                {"type": "boolean"},
                {"type": ["null", "boolean"]},
                {"const": self.random.choice([1, "x", None, [1, {"a": 3}]])},
            ]
        )


@cache
def document(number: int) -> Constraint:
    """A document that is valid against a random schema. Some may have spaces anywhere."""
    schema = PlainSchemaMaker(number).schema(2)
    return Constraint.json(schema, any_whitespace=number % 2 == 0)


@cache
def backend(vocab: int) -> GrammarBackend:
    with torch_hidden():
        return backend_class("xgrammar")(table(vocab))


@cache
def grammar(vocab: int, constraint: Constraint) -> Grammar:
    if constraint.kind == "text":
        return GuardedGrammar(table(vocab), constraint, None, None)
    answer = backend(vocab).compile(constraint.of_answer)
    if not constraint.reasoning_end:
        return answer
    markers = ReasoningMarkers.of(
        table(vocab), constraint.reasoning_start, constraint.reasoning_end
    )
    return ReasoningGrammar(markers, answer)


class CompilesAtOnce:
    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self.counts = GrammarCounts()

    def submit(self, constraint: Constraint, client: str = "") -> Future[Grammar]:
        done: Future[Grammar] = Future()
        done.set_result(grammar(self._vocab, constraint))
        return done

    def close(self) -> None:
        """It keeps nothing."""


def constrained_requests(vocab: int) -> ConstrainedRequests:
    return ConstrainedRequests(CompilesAtOnce(vocab), -(-vocab // 32), (END,))


def mask_of(request: Request, vocab: int) -> Mask | None:
    """What a request may sample after some outputs, from a matcher that begins anew each time."""
    constraint = request.constraint
    if constraint is None:
        return None

    def mask(outputs: list[int]) -> list[int]:
        matcher = grammar(vocab, constraint).matcher()
        assert all(map(matcher.accept, outputs)), f"{outputs} do not follow {constraint.text}"
        row = np.zeros(-(-vocab // 32), np.int32)
        matcher.fill(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        allowed: list[int] = np.flatnonzero(bits[:vocab]).tolist()
        others = [token for token in allowed if token != END]
        may_end = not request.ignore_eos and len(outputs) >= request.min_tokens
        return allowed if may_end or not others else others

    return mask
