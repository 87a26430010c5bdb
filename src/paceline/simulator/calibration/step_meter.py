"""Times steps of any make on an idle runner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from time import perf_counter

import numpy as np

from paceline.core.arrays import I32
from paceline.core.capabilities import TimedSteps
from paceline.core.plan import Admitted, Plan, Rows
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.settings.config import Config
from paceline.simulator.device.batch_summary import BatchSummary

TOKENS = 1000  # different ones in prompts
ENOUGH_S = 0.1  # a run need not take longer
HELD_UP = 2.0  # times the median: no step counts for more
DRAWN = Sampling(temperature=1.0)
FEWEST, MOST = 2, 24  # steps of a run that are timed


@dataclass(frozen=True, slots=True)
class Part:
    """What a sequence computes in a step."""

    slot: int
    start: int
    count: int = 1
    samples: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """Steps that took so many seconds, from the result before them to the result of the last."""

    batches: tuple[BatchSummary, ...]
    seconds: float
    launch_s: float = 0.0  # of each step, on the host
    admit_s: float = 0.0  # what launching takes more for each sequence that is admitted
    waited_s: float = 0.0  # while other programs had the cores of threads that were ready to run

    @property
    def step_s(self) -> float:
        return self.seconds / len(self.batches)


@dataclass(frozen=True, slots=True)
class Moves:
    """Blocks that are moved with each step."""

    copies: int = 0
    swap_out: int = 0
    swap_in: int = 0


NO_MOVES = Moves()
Steps = Callable[[int], Sequence[Part]]  # the parts of step 0, 1, 2 and so on


class StepMeter:
    """Runs steps of its own making, with as many in flight as an engine would have.

    Blocks are shared where there are too few; what is computed means nothing. `waited_s` counts
    the seconds for which the threads of this process had no core.
    """

    def __init__(
        self,
        runner: TimedSteps,
        config: Config,
        depth: int,
        clock: Callable[[], float] = perf_counter,
        vocab: int = TOKENS,
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.config, self.depth, self._runner, self.clock = config, depth, runner, clock
        self._waited_s = waited_s
        self._tokens = min(vocab, TOKENS)
        self._resident = 0  # slots in use, the first ones

    def measure(self, steps: Steps, moves: Moves = NO_MOVES, most: int = MOST) -> Observation:
        """Time a run of at most `most` steps. Step 0 comes before them and is not timed."""
        once = self._run(steps, FEWEST, moves)
        count = int(min(ENOUGH_S / max(once.step_s, 1e-6), most))
        return once if count <= FEWEST else self._run(steps, count, moves)

    def clear(self) -> None:
        """Give all slots back."""
        if self._resident:
            none = rows_of(())
            released = tuple(range(self._resident))
            self._runner.launch(Plan(0, none, none.count, released=released))
            self._resident = 0

    # -- one run ------------------------------------------------------------

    def _run(self, steps: Steps, count: int, moves: Moves) -> Observation:
        parts = [tuple(steps(number)) for number in range(count + 1)]
        plans: list[Plan] = []
        for number, own in enumerate(parts):
            plans.append(self._plan(number, own, moves, plans[-1].rows if plans else None))
        self.clear()
        plans[0] = replace(plans[0], admitted=self._admitted(parts))
        self._resident = len(plans[0].admitted)
        waited_s = self._waited_s()
        came, launching = self._timed(plans)
        waited_s = self._waited_s() - waited_s
        gaps = np.diff(came)
        launch_s = median(launching[1:])
        return Observation(
            tuple(map(BatchSummary.of, plans[1:])),
            float(np.minimum(gaps, HELD_UP * np.median(gaps)).sum()),
            launch_s,
            max(launching[0] - launch_s, 0.0) / max(self._resident, 1),
            waited_s,
        )

    def _timed(self, plans: Sequence[Plan]) -> tuple[list[float], list[float]]:
        """When each result came, and the seconds of each launch."""
        came: list[float] = []
        launching: list[float] = []
        for number, plan in enumerate(plans):
            begin = self.clock()
            self._runner.launch(plan)
            launching.append(self.clock() - begin)
            if number + 1 >= self.depth:
                self._runner.wait()
                came.append(self.clock())
        while len(came) < len(plans):
            self._runner.wait()
            came.append(self.clock())
        return came, launching

    def _plan(self, number: int, parts: Sequence[Part], moves: Moves, before: Rows | None) -> Plan:
        """A step; its rows are those of the step before, if these are the same."""
        blocks = self.config.cache.num_blocks
        host = max(self.config.preemption.swap_space, 1)
        half = blocks // 2
        rows = rows_of(parts)
        if before is not None and is_same(before, rows):
            rows = before
        return Plan(
            number,
            rows,
            np.array([part.start for part in parts], np.int32),
            copies=tuple((at % half, half + at % half) for at in range(moves.copies)),
            swap_out=tuple((at % blocks, at % host) for at in range(moves.swap_out)),
            swap_in=tuple((at % host, at % blocks) for at in range(moves.swap_in)),
        )

    def _admitted(self, parts: Sequence[Sequence[Part]]) -> tuple[Admitted, ...]:
        """The sequences of a run, as they are before its first step."""
        first: dict[int, int] = {}  # position, by slot
        last: dict[int, int] = {}
        for part in chain.from_iterable(parts):
            first.setdefault(part.slot, part.start)
            last[part.slot] = part.start + part.count
        assert sorted(first) == list(range(len(first))), "slots are the first ones"
        used, admitted = 0, list[Admitted]()
        for slot in range(len(first)):
            admitted.append(self._sequence(slot, first[slot], last[slot] + 1, used))
            used += len(admitted[-1].blocks)
        return tuple(admitted)

    def _sequence(self, slot: int, computed: int, length: int, used: int) -> Admitted:
        """A sequence with room for `length` tokens, in the blocks after those that are used."""
        cache = self.config.cache
        tokens: I32 = (np.arange(length, dtype=np.int32) + 7 * slot) % self._tokens
        needed = -(-length // cache.block_size)
        blocks = tuple((used + index) % cache.num_blocks for index in range(needed))
        more = (blocks,) * (len(cache.groups) - 1)
        request = Request(id=f"measured {slot}", prompt=tokens, sampling=DRAWN, seed=slot)
        return Admitted(slot, request, tokens, computed, blocks, resumed=False, more=more)


def is_same(one: Rows, other: Rows) -> bool:
    """Do the same sequences compute as much?"""
    pairs = ((one.slot, other.slot), (one.count, other.count), (one.samples, other.samples))
    return all(np.array_equal(*pair) for pair in pairs)


def rows_of(parts: Sequence[Part]) -> Rows:
    size = len(parts)
    return Rows(
        slot=np.array([part.slot for part in parts], np.intp),
        epoch=np.zeros(size, np.int32),
        serial=np.zeros(size, np.int64),
        request_id=np.full(size, "measured", object),
        child=np.arange(size, dtype=np.int32),
        count=np.array([part.count for part in parts], np.int32),
        drafts=np.zeros(size, np.int32),
        samples=np.array([part.samples for part in parts], np.bool_),
    )
