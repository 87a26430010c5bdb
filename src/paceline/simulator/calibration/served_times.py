"""Times what host and front end take, with an engine in a process of its own and no device."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.core.capabilities import Capabilities
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.settings.config import Config
from paceline.engine.api import GenerationRequest, SamplingParams, TextDelta
from paceline.engine.components import EngineComponents
from paceline.engine.frontend.frontend import Frontend
from paceline.engine.loop.ports import StepObserver
from paceline.engine.streaming import StreamingEngine
from paceline.engine.transport.process import ProcessCore
from paceline.sched.scheduler import Scheduler
from paceline.simulator.calibration.calibrate import closest
from paceline.simulator.device.profile import FrontEndTerms, HostTerms
from paceline.simulator.recorded import UNUSED

FACTORY = "paceline.simulator.calibration.served_times:build"
STEP_S = 0.01  # longer than what host and front end take
TOKEN = 7
TIMES = ("planning", "launched", "landed", "committed")
COUNTS = ("rows", "admitted", "finished", "changed")


@dataclass(frozen=True, slots=True, eq=False)
class TurnLog:
    """The steps of an engine in their order; times are in seconds on the system's clock.

    planning, launched   when the host began to plan a step, and had launched it
    landed, committed    when it had its result, and had committed it
    rows                 sequences that computed something
    admitted, finished   sequences that joined with it, or ended before it
    changed              1 if its rows were others than those of the step before, else 0
    """

    planning: F64
    launched: F64
    landed: F64
    committed: F64
    rows: I32
    admitted: I32
    finished: I32
    changed: I32

    def __len__(self) -> int:
        return len(self.rows)

    @staticmethod
    def load(path: Path) -> "TurnLog":
        with np.load(path) as found:
            return TurnLog(*(found[name] for name in (*TIMES, *COUNTS)))


class TurnRecorder(StepObserver):
    """Writes the steps of an engine to a file when that is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._times: dict[str, list[float]] = {name: [] for name in TIMES}
        self._plans: list[Plan] = []
        self._begun = 0.0

    def planning(self) -> None:
        self._begun = monotonic()

    def launched(self, plan: Plan) -> None:
        if not plan.empty:
            self._plans.append(plan)
            self._times["planning"].append(self._begun)
            self._times["launched"].append(monotonic())

    def landed(self, plan: Plan) -> None:
        self._times["landed"].append(monotonic())

    def committed(self, plan: Plan, outputs: Outputs) -> None:
        if not plan.empty:
            self._times["committed"].append(monotonic())

    def close(self) -> None:
        count = len(self._times["committed"])
        plans = self._plans[:count]
        counts = {
            "rows": [len(one.rows) for one in plans],
            "admitted": [len(one.admitted) for one in plans],
            "finished": [len(one.finished) for one in plans],
            "changed": [1, *(int(one.rows is not two.rows) for one, two in pairwise(plans))][
                :count
            ],
        }
        columns: dict[str, Any] = {name: np.array(one) for name, one in counts.items()}
        columns |= {name: np.array(taken[:count]) for name, taken in self._times.items()}
        np.savez(self._path, **columns)


class IdleRunner:
    """One step after another, each of `STEP_S`."""

    capabilities = Capabilities()

    def __init__(self) -> None:
        self._running: deque[tuple[float, StepResult]] = deque()  # each with the time of its end
        self._free_at = 0.0  # when the device has run all of them

    def launch(self, plan: Plan) -> None:
        if plan.empty:
            return
        ids = np.full((len(plan.rows), 1), TOKEN, np.int32)
        self._free_at = max(self._free_at, monotonic()) + STEP_S
        result = StepResult(ids, plan.rows.samples.astype(np.int32))
        self._running.append((self._free_at, result))

    def wait(self) -> StepResult:
        done_at, result = self._running.popleft()
        sleep(max(done_at - monotonic(), 0.0))
        return result

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to release."""


@dataclass(frozen=True, slots=True, eq=False)
class ObservedComponents(EngineComponents):
    """With a log of its steps in the file that `model` names."""

    def _observer(self) -> StepObserver:
        return TurnRecorder(Path(self.model))


def build(model: str, *, settings: Mapping[str, Any], depth: int) -> EngineComponents:
    """The scheduler has these settings. The front end, which is elsewhere, has the tokenizer."""
    scheduler, absent = Scheduler(Config.of(**settings)), None
    tokens: Any = absent
    return ObservedComponents(model, scheduler, IdleRunner(), tokens, tokens, depth=depth)


ROWS = (1, 8, 32, 64, 128, 256)
PROMPT, OUTPUT = 16, 24  # tokens of a request in a burst
PROMPTS = (16, 512, 2048)  # tokens of requests that come alone
ALONE = 8  # of each
PAUSE_S = 0.02  # between two bursts
RESTED_S = 0.002  # a host that did nothing for longer waited for requests


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that are sent at once, to an idle engine."""

    count: int
    prompt: int  # tokens of each
    output: int


@dataclass(frozen=True, slots=True, eq=False)
class SentRequest:
    """A request, when it was sent, and when its tokens came, in seconds on the system's clock."""

    prompt: int  # tokens
    sent: float
    times: F64
    is_alone: bool


def served_terms(config: Config, depth: int, frontend: Frontend) -> tuple[HostTerms, FrontEndTerms]:
    """Of an engine with this scheduler and so many steps in flight, and of a front end."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "turns.npz"
        settings = {name: one for name, one in config.to_dict().items() if name not in UNUSED}
        core = ProcessCore(FACTORY, str(path), {"settings": settings, "depth": depth})
        requests = asyncio.run(all_of(StreamingEngine(core, frontend), bursts(config)))
        return terms_of(TurnLog.load(path), requests)


def bursts(config: Config) -> Iterator[Burst]:
    """Alone with prompts of several lengths, then together."""
    longest, most = config.step.max_model_len, config.step.max_num_seqs
    for prompt in PROMPTS * ALONE:
        yield Burst(1, max(min(prompt, longest - 2), 1), 2)
    prompt = min(PROMPT, max(longest - OUTPUT, 1))
    sizes = sorted({rows for rows in ROWS if rows < most} | {min(most, ROWS[-1])})
    for count in (*sizes, *sizes):
        yield Burst(count, prompt, min(OUTPUT, max(longest - prompt, 1)))


async def all_of(engine: StreamingEngine, wanted: Iterator[Burst]) -> list[SentRequest]:
    """Send one burst after the other."""
    found: list[SentRequest] = []
    async with engine:
        for number, burst in enumerate(wanted):
            await asyncio.sleep(PAUSE_S)
            prompts = [[number, at, *[TOKEN] * burst.prompt] for at in range(burst.count)]
            waiting = [TimedClient(engine, one[: burst.prompt], burst.output) for one in prompts]
            for one in waiting:
                await one.ended()
                times = np.array(one.times)
                is_alone = burst.count == 1
                found.append(SentRequest(burst.prompt, one.sent, times, is_alone))
    return found


class TimedClient:
    """A client of one request, which notes when tokens come."""

    def __init__(self, engine: StreamingEngine, prompt: Sequence[int], output: int) -> None:
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        self.times: list[float] = []
        self.sent = monotonic()
        self._stream = engine.generate(GenerationRequest(prompt_token_ids=prompt, params=params))
        self._stream.listen(self._came)

    def _came(self, delta: TextDelta) -> bool:
        self.times += [monotonic()] * len(delta.token_ids)
        return True

    async def ended(self) -> Any:
        return await self._stream.whole()


# -- terms ----------------------------------------------------------------------


def terms_of(log: TurnLog, requests: Sequence[SentRequest]) -> tuple[HostTerms, FrontEndTerms]:
    """Sums that are closest to what was seen."""
    commit_s, commit_row_s = commit_terms(log)
    # What the host did since the latest result, less what that took to commit; or since it began
    # to plan, if it had rested.
    latest = np.searchsorted(log.landed, log.planning) - 1
    since = log.landed[latest] + commit_s + commit_row_s * log.rows[latest]
    rested = (latest < 0) | (log.planning - log.committed[latest] > RESTED_S)
    taken = log.launched - np.where(rested, log.planning, np.minimum(since, log.launched))
    amounts = log.rows, log.changed, log.admitted, log.finished
    plan_s, plan_row_s, change_s, admit_s, finish_s = closest(taken, *amounts)
    host = HostTerms(
        plan_s=plan_s,
        plan_row_s=plan_row_s,
        change_s=change_s,
        admit_s=admit_s,
        finish_s=finish_s,
        commit_s=commit_s,
        commit_row_s=commit_row_s,
    )
    way = request_terms(log, requests)
    return host, FrontEndTerms(*way, *delivery_terms(log, requests, host))


def request_terms(log: TurnLog, requests: Sequence[SentRequest]) -> tuple[float, ...]:
    """How long a request takes until an idle engine plans it: a fixed part, and one per token of
    its prompt."""
    alone = [one for one in requests if one.is_alone]
    sent = np.array([one.sent for one in alone])
    begun = log.planning[np.searchsorted(log.planning, sent)]
    return closest(begun - sent, np.array([one.prompt for one in alone]))


def commit_terms(log: TurnLog) -> tuple[float, float]:
    """From a result until its tokens are sent and messages were read: until the next plan, where
    nothing begins or ends."""
    following = np.searchsorted(log.planning, log.committed)
    is_last = following >= len(log)
    following[is_last] = 0
    is_steady = (log.changed[following] == 0) & ~is_last & (log.rows > 0)
    taken = log.planning[following] - log.landed
    fixed, row = closest(taken[is_steady], log.rows[is_steady])
    return fixed, row


def delivery_terms(
    log: TurnLog, requests: Sequence[SentRequest], host: HostTerms
) -> tuple[float, ...]:
    """How long the last token of a step takes to its client: a fixed part, and one per row."""
    times = np.sort(np.concatenate([one.times for one in requests]))
    last = np.full(len(log), np.nan)  # token of each step
    last[np.searchsorted(log.landed, times, "right") - 1] = times
    late = last - log.landed - host.commit_s - host.commit_row_s * log.rows
    seen = ~np.isnan(last)
    return closest(late[seen], log.rows[seen])
