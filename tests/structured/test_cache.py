"""The grammars that were used last."""

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.structured.compile_queue import REFUSAL_BYTES, GrammarCache
from tests.structured.support import backend

A, B, C = (Constraint.regex(text) for text in "abc")
GRAMMAR = backend("llguidance").compile(A)
SIZE = GRAMMAR.size_bytes + 1


def test_the_one_that_was_not_used_for_longest_is_dropped() -> None:
    cache = GrammarCache(2, 1 << 20)
    cache.put(A, GRAMMAR)
    cache.put(B, GRAMMAR)
    assert cache.get(A) is GRAMMAR
    cache.put(C, GRAMMAR)
    assert cache.get(B) is None
    assert cache.get(A) is GRAMMAR
    assert len(cache) == 2
    assert cache.size_bytes == 2 * SIZE


def test_bytes_are_bounded() -> None:
    cache = GrammarCache(10, 2 * SIZE + 10)
    for one in (A, B, C):
        cache.put(one, GRAMMAR)
    assert len(cache) == 2
    assert cache.get(A) is None
    assert cache.size_bytes == 2 * SIZE


def test_one_that_is_larger_than_all_is_not_kept() -> None:
    cache = GrammarCache(10, SIZE - 1)
    cache.put(A, GRAMMAR)
    assert len(cache) == 0
    assert cache.size_bytes == 0


def test_the_same_again_is_counted_once() -> None:
    cache = GrammarCache(10, 1 << 20)
    cache.put(A, GRAMMAR)
    cache.put(A, GRAMMAR)
    assert (len(cache), cache.size_bytes) == (1, SIZE)


def test_refusals_are_kept() -> None:
    cache, refusal = GrammarCache(10, 1 << 20), RequestError("no")
    cache.put(A, refusal)
    assert cache.get(A) is refusal
    assert cache.size_bytes == REFUSAL_BYTES + 1


def test_nothing_may_be_kept() -> None:
    cache = GrammarCache(0, 1 << 20)
    cache.put(A, GRAMMAR)
    assert cache.get(A) is None


def test_a_refusal_for_cost_is_forgotten_after_a_while() -> None:
    now = [0.0]
    cache = GrammarCache(8, 1 << 20, costly_s=60.0, clock=lambda: now[0])
    costly, malformed = Constraint.regex("a{9}"), Constraint.regex("(")
    cache.put(costly, GrammarTooCostly("too slow"))
    cache.put(malformed, RequestError("no"))
    now[0] = 59.0
    assert isinstance(cache.get(costly), GrammarTooCostly)
    now[0] = 60.0
    assert cache.get(costly) is None
    assert isinstance(cache.get(malformed), RequestError)
    assert len(cache) == 1
