"""Grammars for random schedules, on vocabularies of a few characters."""

from concurrent.futures import Future
from functools import cache

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.request import Request
from paceline.engine.core.constrained_requests import ConstrainedRequests
from paceline.sim.reference import Mask
from paceline.structured.backend import Grammar, GrammarBackend, load_backend
from paceline.structured.grammar_counts import GrammarCounts
from paceline.structured.reasoning_markers import ReasoningMarkers
from paceline.structured.reasoning_matcher import ReasoningGrammar
from paceline.structured.token_table import TokenTable
from tests.structured.support import torch_hidden

END = 2
PATTERNS = ("[01]+", "(0|11)*1", "0{3,9}", "(01|10){2,6}", "0*", "1|01|001|0001(0|1)*")
LONG_PATTERNS = ("(0010111)*", "0{5}(1111111|0)1{6}0*")  # with several tokens that are forced


@cache
def table(vocab: int) -> TokenTable:
    """Tokens are the characters from "0" on, and one is the end token."""
    spelled = tuple(b"" if id == END else bytes([48 + id]) for id in range(vocab))
    return TokenTable(spelled, (END,))


@cache
def backend(vocab: int) -> GrammarBackend:
    with torch_hidden():
        return load_backend("xgrammar", table(vocab))


@cache
def grammar(vocab: int, constraint: Constraint) -> Grammar:
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

    def submit(self, constraint: Constraint) -> Future[Grammar]:
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
