"""How long turns of an engine take, and when one takes too long."""

from dataclasses import replace
from statistics import median
from time import monotonic, perf_counter

import numpy as np

from paceline.core.capabilities import MEASURED_ROWS, StepTimes
from paceline.core.plan import Plan
from paceline.core.request import Request
from paceline.core.sampling import Sampling
from paceline.core.settings.config import CacheConfig, Config, StepConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Delivery, Question
from paceline.engine.loop.ports import Clock, Runner
from paceline.sched.scheduler import Scheduler


class StallDetector:
    """Counts the seconds without a delivery while requests are ready to run.

    A step loop that is stuck cannot report itself, so its core watches it from the caller's side:
    every step that computes something is delivered, and silence means that none has ended. A
    request that is parked, or a loop that is paused, explains the silence.
    """

    def __init__(self, stall_s: float, clock: Clock = monotonic) -> None:
        self._stall_s, self._clock = stall_s, clock
        self._open: dict[str, int] = {}  # handles by id
        self._parked: set[str] = set()  # of those that are open
        self._paused = False
        self._since = clock()

    def submitted(self, request_id: str, handle: int, parked: str = "") -> None:
        """Call it before the request is sent, so that it precedes the end."""
        if not self._is_waiting:
            self._since = self._clock()
        self._open[request_id] = handle
        if parked:
            self._parked.add(request_id)

    def ended(self, request_id: str) -> None:
        self._open.pop(request_id, None)
        self._parked.discard(request_id)

    def parked(self, request_id: str) -> None:
        if request_id in self._open:
            self._parked.add(request_id)

    def woken(self, request_id: str) -> None:
        if not self._is_waiting:
            self._since = self._clock()
        self._parked.discard(request_id)

    def asked(self, question: Question) -> None:
        if question.verb in ("pause", "resume"):
            self._paused, self._since = question.verb == "pause", self._clock()

    def delivered(self, delivery: Delivery) -> None:
        self._since = self._clock()
        if self._parked:  # a request with new tokens runs, so it was not parked
            running = set(delivery.handle.tolist())
            begun = [one for one in self._parked.copy() if self._open.get(one) in running]
            self._parked.difference_update(begun)
        for one in delivery.ended:
            if one.child < 0:
                self.ended(one.request_id)
        for one in delivery.refused:
            self.ended(one.request_id)

    def stalled(self) -> str | None:
        """None, or a message with the seconds since the last step."""
        silence = self._clock() - self._since
        if self._paused or not self._is_waiting or silence <= self._stall_s:
            return None
        return f"no step has ended for {silence:.0f} s, and requests are waiting"

    @property
    def _is_waiting(self) -> bool:
        """Whether a request is open that is not parked."""
        return len(self._open) > len(self._parked)


CONTEXT = 512  # tokens of a prompt
TURNS, WARM = 8, 4  # turns that are timed, and turns before them
DECODES = (1, 32, 256)  # rows, where prompts are measured as well
POWERS = tuple(64 << power for power in range(9))  # positions of prompts
TOKEN = 7


class TurnTimer:
    """Runs requests of its own through a scheduler of its own on an idle runner.

    A turn includes planning, launching, waiting and committing. Where steps are launched ahead, a
    turn takes as long as the slower of host and device.
    """

    def __init__(
        self, runner: Runner, config: Config, depth: int, clock: Clock = perf_counter
    ) -> None:
        self._runner, self._config, self._depth, self._clock = runner, config, depth, clock
        self._context = max(min(CONTEXT, config.step.max_model_len // 2), 1)

    def measure(self, limit_s: float) -> StepTimes | None:
        """Time steps without drafts and with them. None: no draft fits into the model's length.

        Small steps come first. After `limit_s` seconds no further size is begun.
        """
        plain: dict[int, float] = {}
        drafted: dict[int, float] = {}
        least: dict[int, float] = {}
        begin, most = self._clock(), self._config.speculation.num_speculative_tokens
        for rows in MEASURED_ROWS:
            if plain and (self._clock() - begin > limit_s or not self._has_room(rows, most)):
                break
            for found, size, drafts in (
                (plain, rows, [0] * rows),
                (least, rows, [1] + [0] * (rows - 1)),
                (drafted, rows * (1 + most), [most] * rows),
            ):
                if taken := self._seconds(drafts):
                    found[size] = median(taken)
        return StepTimes.measured(plain, drafted, least)

    def with_prompts(self, limit_s: float) -> StepTimes | None:
        """Time decodes, and steps of prompts, as large as the slots and the memory allow. None: no
        prompt fits.

        Small steps come first. After `limit_s` seconds no further size is begun.
        """
        begin, step, cache = self._clock(), self._config.step, self._config.cache
        most = min(step.max_num_batched_tokens, cache.num_blocks * cache.block_size // 2)
        sizes = self._runner.capabilities.step_sizes
        several: dict[int, float] = {}
        for size in sizes or POWERS:
            prompts = self._filling(size)
            if size > most or len(prompts) > step.max_num_seqs:
                break
            if several and self._clock() - begin > limit_s:
                break
            several[size] = min(self._prompts_s(prompts) for _ in range(2))
        decodes = {rows: self._seconds([0] * rows) for rows in DECODES if self._has_room(rows, 0)}
        plain = {rows: median(taken) for rows, taken in decodes.items() if taken}
        return StepTimes.measured(plain, several, sizes=sizes)

    def _filling(self, positions: int) -> list[int]:
        """The lengths of the fewest prompts that have so many positions together."""
        longest = min(self._config.step.max_model_len - 1, positions)
        full, rest = divmod(positions, longest)
        return [longest] * full + [rest] * bool(rest)

    def _prompts_s(self, sizes: list[int]) -> float:
        """Of a step of prompts alone, from its plan to its end."""
        step, cache = self._config.step, self._config.cache
        scheduler = Scheduler(
            Config(
                cache=CacheConfig(cache.num_blocks, cache.block_size, enable_prefix_caching=False),
                step=StepConfig(len(sizes), step.max_num_batched_tokens, step.max_model_len),
            )
        )
        engine = Engine(scheduler, self._runner, self._clock, self._depth)
        for number, size in enumerate(sizes):
            engine.submit(replace(self._request(number, 0), prompt=[TOKEN] * size, max_tokens=1))
        begin = self._clock()
        while not engine.idle:
            engine.turn()
        taken = self._clock() - begin
        engine.turn(while_idle=True)  # the runner learns which slots were released
        return taken

    def _has_room(self, rows: int, drafts: int) -> bool:
        """Can so many rows with so many drafts each run in one step, without preemption?"""
        step, cache = self._config.step, self._config.cache
        own = -(-(self._context + self._tokens(drafts)) // cache.block_size)
        fits = rows <= step.max_num_seqs and rows * (1 + drafts) <= step.max_num_batched_tokens
        return fits and rows * own <= cache.num_blocks

    def _tokens(self, drafts: int) -> int:
        """Tokens that a row generates at most."""
        turns = WARM + TURNS + 2 * self._depth
        return min(turns * (1 + drafts), self._config.step.max_model_len - self._context)

    def _seconds(self, drafts: list[int]) -> list[float]:
        """Of turns whose step has rows with so many drafts each; none if no such step fits."""
        runner = WithoutPrompts(self._runner)
        scheduler = Scheduler(self._settings(drafts))
        engine = Engine(scheduler, runner, self._clock, self._depth)
        for number, most in enumerate(drafts):
            engine.submit(self._request(number, most))
        taken: list[float] = []
        for turn in range(WARM + TURNS + self._depth):
            begin = self._clock()
            engine.turn()
            due = runner.positions == sum(drafts) + len(drafts) and runner.drafts == sum(drafts)
            if due and turn >= WARM + self._depth:
                taken.append(self._clock() - begin)
        for number in range(len(drafts)):
            engine.abort(str(number))
        while not engine.idle:
            engine.turn()
        engine.turn(while_idle=True)  # the runner learns which slots were released
        return taken

    def _settings(self, drafts: list[int]) -> Config:
        """Plain settings, with which all prompts are in the first step."""
        cache, step = self._config.cache, self._config.step
        budget = max(step.max_num_batched_tokens, len(drafts) * self._context)
        fixed = replace(self._config.speculation, speculation="fixed")
        return Config(
            cache=CacheConfig(cache.num_blocks, cache.block_size, enable_prefix_caching=False),
            step=StepConfig(step.max_num_seqs, budget, step.max_model_len),
            speculation=fixed,
        )

    def _request(self, number: int, drafts: int) -> Request:
        return Request(
            id=str(number),
            prompt=[TOKEN] * self._context,
            max_tokens=self._tokens(drafts),
            ignore_eos=True,
            drafts=drafts,
            sampling=Sampling(temperature=0.0),
        )


class WithoutPrompts:
    """A runner that takes prompts for computed, up to their last token.

    What it reads instead means nothing, but takes as long to read.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.capabilities = runner.capabilities
        self.wait, self.is_lost, self.close = runner.wait, runner.is_lost, runner.close
        self.positions = self.drafts = 0  # of the latest step

    def launch(self, plan: Plan) -> None:
        self.positions, self.drafts = plan.total, int(plan.rows.drafts.sum())
        if plan.admitted:
            start = plan.start + plan.rows.count - 1
            rows = replace(plan.rows, count=np.ones_like(plan.rows.count))
            known = {new.slot: len(new.tokens) - 1 for new in plan.admitted}
            admitted = tuple(replace(new, computed=known[new.slot]) for new in plan.admitted)
            plan = replace(plan, rows=rows, start=start, admitted=admitted)
        self._runner.launch(plan)
