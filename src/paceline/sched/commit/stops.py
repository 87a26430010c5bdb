"""Which sampled token ends its request."""

from collections import Counter

import numpy as np

from paceline.core.arrays import I32, Bool, Index, sparse_zeros
from paceline.core.request import Request
from paceline.sched.slots import SlotTable

FLAGS = 1 << 20  # more than any vocabulary has


class StopWatch:
    """Watches for the stop tokens of all residents at once.

    One flag per token id says whether any resident could stop at it, so that a step
    costs one lookup per sampled id, and only rows that sampled such a token are
    looked at one by one. The last flag stands for all token ids from there on.
    """

    def __init__(self) -> None:
        self._watchers: Counter[int] = Counter()  # by flag
        self._watched = sparse_zeros(1, FLAGS)[0]

    def watch(self, request: Request) -> None:
        for flag in self._flags(request):
            self._watchers[flag] += 1
            self._watched[flag] = 1

    def unwatch(self, request: Request) -> None:
        for flag in self._flags(request):
            self._watchers[flag] -= 1
            if not self._watchers[flag]:
                del self._watchers[flag]
                self._watched[flag] = 0

    @staticmethod
    def _flags(request: Request) -> list[int]:
        tokens = request.stop_token_ids + (request.eos_token_ids if request.ends_at_eos else ())
        return [min(token, FLAGS - 1) for token in tokens] if tokens else []

    def suspects(self, ids: I32) -> Bool | None:
        """Where some resident's stop token was sampled; None if no resident has any."""
        if not self._watchers:
            return None
        suspects: Bool = np.take(self._watched, ids, mode="clip") > 0
        return suspects

    def cut(self, table: SlotTable, slot: Index, ids: I32, count: I32) -> dict[int, int]:
        """Shorten `count` in place to each row's first stop; returns the stop tokens by row."""
        found = self.suspects(ids)
        if found is None:
            return {}
        inside: Bool = np.less(np.arange(ids.shape[1], dtype=np.int32), count.reshape(-1, 1))
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
