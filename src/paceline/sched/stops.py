"""Which sampled token ends its request."""

from collections import Counter

import numpy as np

from paceline.core.arrays import I32, Bool, Index
from paceline.core.request import Request
from paceline.sched.slots import SlotTable


class StopWatch:
    """Watches for the stop tokens of all residents at once.

    One bit per token id says whether any resident could stop at it, so that a step
    costs one lookup per sampled id, and only rows that sampled such a token are
    looked at one by one.
    """

    def __init__(self) -> None:
        self._watchers: Counter[int] = Counter()
        self._watched = np.zeros(1, np.bool_)  # the last entry is always False

    def watch(self, request: Request) -> None:
        for token in self._tokens(request):
            self._watchers[token] += 1
            if token + 1 >= len(self._watched):
                wider = np.zeros(token + token // 2 + 2, np.bool_)
                wider[: len(self._watched)] = self._watched
                self._watched = wider
            self._watched[token] = True

    def unwatch(self, request: Request) -> None:
        for token in self._tokens(request):
            self._watchers[token] -= 1
            if not self._watchers[token]:
                del self._watchers[token]
                self._watched[token] = False

    @staticmethod
    def _tokens(request: Request) -> tuple[int, ...]:
        return request.stop_token_ids + (() if request.ignore_eos else request.eos_token_ids)

    def suspects(self, ids: I32) -> Bool | None:
        """Where some resident's stop token was sampled; None if nobody watches anything."""
        if not self._watchers:
            return None
        suspects: Bool = np.take(self._watched, ids, mode="clip")
        return suspects

    def cut(self, table: SlotTable, slot: Index, ids: I32, count: I32) -> dict[int, int]:
        """Shorten `count` in place to each row's first stop; returns the stop tokens by row."""
        found = self.suspects(ids)
        if found is None:
            return {}
        inside: Bool = np.less(np.arange(ids.shape[1]), count.reshape(-1, 1))
        suspects: Bool = np.logical_and(found, inside)
        stops: dict[int, int] = {}
        for row in np.flatnonzero(suspects.any(axis=1)).tolist():
            place = int(slot[row])
            outputs = int(table.known[place] - table.prompt[place])
            request = table.sequence(place).request
            for column in np.flatnonzero(suspects[row]).tolist():
                token = int(ids[row, column])
                if request.stops_at(token, outputs + column + 1):
                    count[row] = column + 1
                    stops[row] = token
                    break
        return stops
