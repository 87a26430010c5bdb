"""Constrained sequences get their next position when the token before it is known on the host."""

from paceline.sched.arrivals import CONSTRAINED
from paceline.sched.result_rows import ResultHook, ResultRows


class Lockstep(ResultHook):
    """Hands out one more position to each constrained sequence whose token has come back.

    A constraint says which tokens may follow the latest one, so the next sample has to wait for
    it. `Arrivals.settle` holds a sequence so when it takes a slot. Others run ahead.
    """

    def appended(self, rows: ResultRows) -> None:
        table = self._state.table
        for slot, features in table.needs_host.items():
            if CONSTRAINED in features:
                table.cap(slot, CONSTRAINED, int(table.known[slot]))
