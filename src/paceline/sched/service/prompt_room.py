"""How many positions prompts may have in a step, by the pace of those who run."""

from collections.abc import Sequence
from math import inf

import numpy as np

from paceline.core import request as core
from paceline.core.arrays import I32, Index
from paceline.sched.policy import View, within_budget
from paceline.sched.service.step_model import StepLoad

MARGIN = 0.97  # of the pace, which a step may take
ROOMY = 1.2  # times a step of one row, which a pace must allow to count
LEAST = 64  # prompts get at least this fraction of the budget of a step: 1 / LEAST
IN_STEPS = 4  # a prompt that just arrived and fits into a step has so many steps' time


class PromptRoom:
    """The time of a step, and what of it is left beside all who decode.

    The pace is the shortest target between two tokens among residents that still meet theirs, and
    at most a part in `IN_STEPS` of the shortest target of a first token, since an arrival waits for
    the step that runs. Targets that a request alone would miss do not count.

    decodes    the rows of one position
    most_s     of the step
    positions  for prompts; 0: no step was planned
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._measured = -1, 0.0  # step and time of the following
        self.budget = 0  # positions of the step; 0: none was planned
        self.decodes = StepLoad()
        self.most_s = inf
        self.positions = 0
        self._pairs = 0  # of the prompts in it so far

    def prepare(self, budget: int) -> bool:
        """Measure the step that is planned; False if that was done before."""
        view = self._view
        if self._measured == (view.step, view.now):
            return False
        self._measured, self._pairs = (view.step, view.now), 0
        self.budget = budget
        table, times = view.table, view.times
        decodes = table.order[table.planned[table.order] >= table.given[table.order]]
        rows = len(decodes)
        reads = int(table.planned[decodes].sum(dtype=np.int64)) + rows
        self.decodes = StepLoad(rows, rows, reads)
        alone_s = ROOMY * times.margin * times.seconds(StepLoad(1, 1, reads // max(rows, 1)))
        pace_s = view.promises.pace_s(decodes, alone_s)
        ttft_s, itl_s = view.promises.shortest_s(IN_STEPS * alone_s, alone_s)
        pace_s = min(pace_s if pace_s < inf else itl_s, ttft_s / IN_STEPS)
        self.most_s = MARGIN * pace_s / times.margin
        fitting = times.fitting(self.decodes, budget - rows, self.most_s)
        self.positions = min(max(fitting, budget // LEAST, 1), budget - rows)
        return True

    @property
    def seconds(self) -> float:
        """Of a step with as many positions of prompts as it may have; 0: not known."""
        times = self._view.times
        return times.seconds(self.decodes.with_prompt(self.positions)) if times.known else 0.0

    def prompts(self, slot: Index, want: I32) -> list[int]:
        """The rows that compute prompts."""
        table = self._view.table
        rows: list[int] = np.flatnonzero(
            (table.planned[slot] < table.given[slot]) & (want > 1)
        ).tolist()
        return rows

    def share(
        self,
        slot: Index,
        want: I32,
        budget: int,
        prompts: Sequence[int],
        late: Sequence[int] = (),
        spared: int = 0,
    ) -> I32:
        """Decodes first, then prompts in this order, each as long as it fits into the time. Late
        ones have `spared` positions and what the others leave."""
        granted = want.copy()
        granted[[*prompts, *late]] = 0
        granted = within_budget(granted, budget)
        left = min(max(self.positions, 1), budget - int(granted.sum()))
        load = self.decodes
        floor = max(budget // LEAST, 1)  # positions that prompts get in any case
        for rows, kept in ((prompts, spared), (late, 0)):
            for row in rows:
                most = max(min(int(want[row]), left - kept), 0)
                start = int(self._view.table.planned[slot[row]])
                fits = self._view.times.fitting(load, most, self.most_s, start) if most else 0
                granted[row] = count = min(max(fits, floor), most)
                left, floor = left - count, max(floor - count, 0)
                load = load.with_prompt(count, start) if count else load
        self._pairs = load.pairs
        return granted

    def of_arrival(self, sequence: core.Sequence, rest: int, taken: int, left: int) -> int:
        """Positions that a waiting sequence may begin with; see `Policy.room`."""
        cuts, decodes = self._view.cuts_prompts, self.decodes
        beside = max(self.positions + decodes.rows - taken, 0)
        load = StepLoad(decodes.rows, taken, decodes.reads, self._pairs)
        most, start = min(rest, left, beside), len(sequence.tokens) - rest
        fits = self._view.times.fitting(load, most, self.most_s, start)
        if fits >= rest or not (taken or cuts):
            return left
        if not cuts:
            return 0
        return fits if taken else max(fits, 1)
