"""Clients take turns, cheap constraints go first, and grammars of late use are kept."""

from paceline.core.constraint import Constraint
from paceline.core.errors import GrammarTooCostly, RequestError
from paceline.structured.compile_queue import REFUSAL_BYTES, CompileQueue, GrammarCache, likely_cost
from tests.structured.support import backend


def drained(queue: CompileQueue[str]) -> list[str]:
    taken: list[str] = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return taken


def test_the_cheapest_of_a_client_is_next() -> None:
    queue = CompileQueue[str]()
    for item, cost in (("slow", 9.0), ("quick", 1.0), ("middle", 5.0)):
        queue.put("", item, cost)
    assert drained(queue) == ["quick", "middle", "slow"]


def test_each_fourth_time_the_oldest_is_next() -> None:
    queue = CompileQueue[str]()
    queue.put("", "slow", 9.0)
    for number in range(8):
        queue.put("", f"quick {number}", 1.0)
    assert drained(queue).index("slow") == 3


def test_clients_take_turns() -> None:
    queue = CompileQueue[str]()
    for number in range(3):
        queue.put("many", f"many {number}", 1.0)
    queue.put("one", "one", 100.0)
    assert drained(queue) == ["many 0", "one", "many 1", "many 2"]


def test_an_item_of_several_clients_is_taken_once() -> None:
    queue = CompileQueue[str]()
    for client in ("a", "b"):
        queue.put(client, "shared", 1.0)
        queue.put(client, f"own {client}", 2.0)
    assert drained(queue) == ["shared", "own b", "own a"]


def test_what_is_removed_is_not_taken() -> None:
    queue = CompileQueue[str]()
    queue.put("a", "gone", 1.0)
    queue.put("b", "stays", 1.0)
    queue.remove("gone")
    assert drained(queue) == ["stays"]


def test_repetitions_cost() -> None:
    nested = likely_cost(Constraint.regex("((a{1,1000}){1,50}){1,1000}"))
    listed = likely_cost(Constraint.json({"type": "array", "maxItems": 1000}))
    plain = likely_cost(Constraint.json({"type": "array", "items": {"type": "boolean"}}))
    assert nested > listed > plain > likely_cost(Constraint.regex("[0-9]+"))
    assert likely_cost(Constraint.regex("a" + "{9999999999999999999}" * 60)) <= 1e18
    digits = "{" + "1" * 400_000  # each digit is looked at a few times, not as often as there are
    assert likely_cost(Constraint("regex", digits)) == len(digits)


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
