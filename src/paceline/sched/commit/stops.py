"""Find sampled stop tokens."""

from collections import Counter

import numpy as np

from paceline.core.arrays import I32, Bool, Index, sparse_zeros
from paceline.core.request import Request
from paceline.sched.slots import SlotTable

FLAGS = 1 << 20  # larger than any vocabulary


class StopWatch:
    """Watches for the stop tokens of all residents at once.

    One flag per token id says whether it stops any resident, so a step costs one lookup per
    sampled id, and only rows that sampled such a token are checked one by one. The last flag
    stands for all larger token ids.
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
        """Which rows sampled a stop token of any resident; None if no resident has one."""
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
            one = int(slot[row])
            outputs = int(table.known[one] - table.prompt[one])
            request = table.sequence(one).request
            for column in np.flatnonzero(suspects[row]).tolist():
                token = int(ids[row, column])
                if request.stops_at(token, outputs + column + 1):
                    count[row] = column + 1
                    stops[row] = token
                    break
        return stops
