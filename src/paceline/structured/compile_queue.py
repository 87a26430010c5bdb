"""Which of the constraints that wait is compiled next."""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from paceline.core.constraint import Constraint

OLDEST_EACH = 4  # of so many turns of a client one goes to its oldest constraint
MOST_COST = 1e18
# Bounds of repetitions: `{3}`, `{,3}` and `{1,3}` in patterns and grammars; keywords of schemas.
REPEATED = re.compile(r"\{(?:\d*,)?(\d+)\}")
COUNTED = re.compile(r'"(?:max|min)(?:Length|Items|Properties)":(\d+)')

Item = TypeVar("Item")


@dataclass(slots=True)
class Waiting(Generic[Item]):
    """The items of one client, with their costs, in the order of their arrival."""

    items: dict[Item, float] = field(default_factory=dict[Item, float])
    turns: int = 0

    def pop(self) -> Item:
        self.turns += 1
        is_oldest = self.turns % OLDEST_EACH == 0
        item = next(iter(self.items)) if is_oldest else min(self.items, key=self.items.__getitem__)
        del self.items[item]
        return item


class CompileQueue(Generic[Item]):
    """Clients take turns. Of one client's items the cheapest is next, but each fourth time its
    oldest, so that none waits for ever. An item may wait for several clients, and is taken once.

    One thread at a time may use it.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, Waiting[Item]] = OrderedDict()

    def put(self, client: str, item: Item, cost: float) -> None:
        self._clients.setdefault(client, Waiting()).items.setdefault(item, cost)

    def take(self) -> Item | None:
        """The next item; None if none waits."""
        if not self._clients:
            return None
        client, waiting = next(iter(self._clients.items()))
        item = waiting.pop()
        self._clients.move_to_end(client)
        self.remove(item)
        return item

    def remove(self, item: Item) -> None:
        for client, waiting in tuple(self._clients.items()):
            waiting.items.pop(item, None)
            if not waiting.items:
                del self._clients[client]


def likely_cost(constraint: Constraint) -> float:
    """How long compiling takes, roughly and without a unit: nested repetitions multiply, and those
    of a schema add up. Only the order of constraints that wait depends on it."""
    cost = float(len(constraint.text))
    for found in COUNTED.findall(constraint.text):
        cost += float(found[:9])
    for found in REPEATED.findall(constraint.text):
        cost = min(cost * max(float(found[:9]), 1.0), MOST_COST)
    return cost
