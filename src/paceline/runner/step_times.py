"""Measure step times before the first request."""

from collections.abc import Callable

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import MEASURED_ROWS, StepTimes, TimedSteps
from paceline.core.plan import Admitted, Plan, Rows, StepResult
from paceline.core.request import Request
from paceline.core.settings.config import Config

CONTEXT = 64  # identical tokens per row, for which any proposer should find drafts
TIMES = 3  # runs of each step; the fastest counts
TOKEN = 7


class StepTimer:
    """Runs synthetic steps in the slots of an idle runner.

    Rows share blocks if there are too few; their results are discarded.
    """

    def __init__(self, runner: TimedSteps, config: Config, clock: Callable[[], float]) -> None:
        self._runner, self._config, self._clock = runner, config, clock
        self._resident = 0  # the first slots are in use
        self._drafts = config.speculation.num_speculative_tokens
        self._length = config.step.max_model_len
        self._context = max(min(CONTEXT, self._length - self._drafts - TIMES - 2), 1)

    def measure(self, limit_s: float) -> StepTimes | None:
        """Time steps without and with drafts; None if no draft fits the model's length.

        Small steps come first. After `limit_s` seconds no further size is begun.
        """
        plain: dict[int, float] = {}
        drafted: dict[int, float] = {}
        begin, step = self._clock(), self._config.step
        most = step.max_num_batched_tokens
        for rows in (rows for rows in MEASURED_ROWS if rows <= min(step.max_num_seqs, most)):
            if plain and self._clock() - begin > limit_s:
                break
            plain[rows] = self._plain(rows)
            longest = min(self._drafts, self._length - self._context - 1)
            for drafts in sorted({min(1, longest), longest} - {0}):
                if rows * (1 + drafts) <= most:
                    positions, seconds = self._drafted(rows, drafts)
                    drafted[positions] = min(seconds, drafted.get(positions, seconds))
        self._fill(0)
        return StepTimes.measured(plain, drafted)

    def _plain(self, rows: int) -> float:
        """Seconds of a decode step."""
        self._fill(rows)
        same, steps = self._rows(rows, 0), min(1 + TIMES, self._length - self._context)
        taken = [self._run(same, self._context + step)[0] for step in range(steps)]
        return min(taken[1:] or taken)  # the first run warms up

    def _drafted(self, rows: int, drafts: int) -> tuple[int, float]:
        """Positions and seconds of a step with drafts."""
        taken: list[tuple[int, float]] = []
        for _ in range(1 + TIMES):
            self._fill(rows)
            same = self._rows(rows, drafts)
            seconds, result = self._run(same, self._context)
            taken.append((rows + int(result.drafts_of(same).sum()), seconds))
        return taken[0][0], min(seconds for _, seconds in taken[1:])

    def _run(self, rows: Rows, start: int) -> tuple[float, StepResult]:
        begin = self._clock()
        self._runner.launch(Plan(0, rows, np.full(len(rows), start, np.int32)))
        result = self._runner.wait()
        return self._clock() - begin, result

    def _fill(self, rows: int) -> None:
        """Replace the sequences in the first slots by `rows` new ones."""
        tokens: I32 = np.full(self._context + 1, TOKEN, np.int32)
        admitted = tuple(self._admitted(slot, tokens) for slot in range(rows))
        none = self._rows(0, 0)
        released = tuple(range(self._resident))
        plan = Plan(0, none, none.count, admitted=admitted, released=released)
        self._runner.launch(plan)
        self._resident = rows

    def _admitted(self, slot: int, tokens: I32) -> Admitted:
        cache = self._config.cache
        request = Request(id=f"step times {slot}", prompt=tokens)
        longest = min(len(tokens) + TIMES + self._drafts, self._length)
        used = -(-longest // cache.block_size)
        blocks = tuple((slot * used + index) % cache.num_blocks for index in range(used))
        more = (blocks,) * (len(cache.groups) - 1)
        return Admitted(slot, request, tokens, self._context, blocks, resumed=False, more=more)

    @staticmethod
    def _rows(rows: int, drafts: int) -> Rows:
        return Rows(
            slot=np.arange(rows),
            epoch=np.zeros(rows, np.int32),
            serial=np.zeros(rows, np.int64),
            request_id=np.full(rows, "step times", object),
            child=np.arange(rows, dtype=np.int32),
            count=np.full(rows, 1 + drafts, np.int32),
            drafts=np.full(rows, drafts, np.int32),
            samples=np.ones(rows, np.bool_),
        )
