"""Clients take turns, cheap constraints go first, and none waits for ever."""

from paceline.core.constraint import Constraint
from paceline.structured.compile_queue import CompileQueue, likely_cost


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
