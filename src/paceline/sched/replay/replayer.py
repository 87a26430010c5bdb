"""Replay a recording on a new scheduler, and compare every plan."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from json import loads
from os import PathLike
from pathlib import Path
from typing import Any

from paceline.core.capabilities import StepCost
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.settings.config import Config
from paceline.sched.replay.calls import (
    Commitment,
    ResultScores,
    Submission,
    drafts_of,
    failed_of,
    forced_of,
    step_times_of,
)
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint
from paceline.sched.replay.connector_answers import ANSWERS, ReplayedConnector
from paceline.sched.replay.fingerprint import Divergence, Fingerprint, brief, differences
from paceline.sched.replay.reader import Record, RecordingEnd, RecordQueue, RunReader
from paceline.sched.replay.records import STEP, TIME, RecordingError, RecordKind
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates

ResultPart = Callable[[StepResult], StepResult]  # adds a part to a result


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Counts of a replay. Plans beyond `verified` have no digest in the file."""

    steps: int
    verified: int  # plans that were compared and identical
    requests: int
    refused: int  # calls that raised an error in the recorded run and in the replay
    tokens: int  # sampled
    preemptions: int
    swapped_out_blocks: int
    forks: int


MOST_BLOCKS = 1 << 24  # on the device and the host; a gigabyte of free lists
MOST_CELLS = 1 << 32  # of the table of tokens, max_num_seqs times max_model_len


def begun(reader: RunReader) -> tuple[Scheduler, PlansInFlight]:
    """The scheduler before the first call, and its plans in flight."""
    config, path = reader.preamble.config, reader.files[0].path
    try:
        check_size(config)
        if reader.state is None:
            return Scheduler(config), PlansInFlight()
    except (PacelineError, MemoryError) as error:
        raise RecordingError(f"{path}: its settings do not fit here: {error}") from None
    try:
        found = SchedulerCheckpoint.decoded(reader.state, config)
    except (RecordingError, MemoryError) as error:
        raise RecordingError(
            f"{path} continues another file, and this version cannot read the state in "
            f"it: {error}; replay it with paceline {reader.preamble.made_by}"
        ) from None
    return found.scheduler(), found.flight


def check_size(config: Config) -> None:
    """Refuse settings, as of a damaged file, that would take too much memory."""
    blocks = config.cache.num_blocks + config.preemption.swap_space
    if blocks > MOST_BLOCKS:
        raise ConfigError(
            f"num_blocks and swap_space come to {blocks:,} blocks; a replay takes at most "
            f"{MOST_BLOCKS:,}"
        )
    cells = config.step.max_num_seqs * config.step.max_model_len
    if cells > MOST_CELLS:
        raise ConfigError(
            f"max_num_seqs times max_model_len is {cells:,}; a replay takes at most {MOST_CELLS:,}"
        )


class Replay:
    """A replay of a recorded run.

    While `divergence` is None, every plan so far with a digest in the file was identical.
    `scheduler` has the state of the recorded scheduler after the last replayed call. `on_plan` is
    called with each plan, `on_result` before each commit, with its time, and `on_commit` after it.
    """

    def __init__(self, *paths: str | PathLike[str]) -> None:
        """One file, or several that continue each other, oldest first: see `files_of_run`.

        OSError or RecordingError if one of them cannot be read.
        """
        self.reader = RunReader([Path(path) for path in paths])
        self._records = RecordQueue(self.reader)
        self.scheduler, self._flight = begun(self.reader)
        if (link := self.scheduler.state.link).name:
            self._connect(link.name, link.role, link.hands_over)
        self._before = replace(self.scheduler.stats)  # from before the file
        self.request_ids = dict.fromkeys(self.scheduler.view.live_ids())  # and later ones
        self.divergence: Divergence | None = None
        self._fingerprint = Fingerprint()
        self._plan: Plan | None = None  # the latest, until it is compared
        self._refusal: str | None = None  # of the latest call, until it is compared
        self._parts: list[ResultPart] = []  # of the next commit
        self._counts = Counter[str]()  # verified plans, requests, and refused calls
        self.on_plan: Callable[[Plan], None] = lambda plan: None
        self.on_result: Callable[[Plan, float], None] = lambda plan, now: None
        self.on_commit: Callable[[Plan, Outputs], None] = lambda plan, outputs: None

    @cached_property
    def _calls(self) -> dict[RecordKind, Callable[[bytes], None]]:
        """Methods by kind of call."""
        scheduler = self.scheduler

        def plainly(call: Callable[..., Any]) -> Callable[[bytes], None]:
            return lambda payload: call(*loads(payload))

        return {
            RecordKind.SUBMIT: self._submit,
            RecordKind.ABORT: plainly(scheduler.abort),
            RecordKind.PARK: plainly(scheduler.park),
            RecordKind.WAKE: plainly(scheduler.wake),
            RecordKind.PLAN: self._plan_again,
            RecordKind.COMMIT: lambda payload: self._commit(Commitment.decoded(payload)),
            RecordKind.COMMIT_ONES: lambda payload: self._commit(Commitment.decoded_ones(payload)),
            RecordKind.SCORES: self._score,
            RecordKind.FAILED: self._fail_rows,
            RecordKind.DRAFTS: self._draft,
            RecordKind.FORCED: self._force,
            RecordKind.STEP_TIMES: self._measure_steps,
            RecordKind.STEP_COST: plainly(self._measure_cost),
            RecordKind.MEASURE: plainly(self._measure),
            RecordKind.CONNECT: plainly(self._connect),
            RecordKind.FAIL: plainly(self._fail),
            RecordKind.RETRY: plainly(self._retry),
            RecordKind.STOP: plainly(self._stop),
            RecordKind.PAUSE: plainly(scheduler.pause),
            RecordKind.RESUME: plainly(scheduler.resume),
            RecordKind.DRAIN: plainly(scheduler.drain),
            RecordKind.RESET_PREFIX_CACHE: plainly(scheduler.reset_prefix_cache),
            RecordKind.USE_WEIGHTS: plainly(scheduler.use_weights),
        }

    @property
    def summary(self) -> ReplaySummary:
        stats, before = self.scheduler.stats, self._before
        return ReplaySummary(
            steps=stats.steps - before.steps,
            verified=self._counts["verified"],
            requests=self._counts["requests"],
            refused=self._counts["refused"],
            tokens=stats.sampled - before.sampled,
            preemptions=stats.preemptions - before.preemptions,
            swapped_out_blocks=stats.swapped_out_blocks - before.swapped_out_blocks,
            forks=stats.forks - before.forks,
        )

    @property
    def now(self) -> float:
        """The time of the last replayed call, in seconds on the clock of the recorded run."""
        return self.scheduler.state.now

    @property
    def steps_before(self) -> int:
        """Steps of the run before this file; 0 unless it continues another."""
        return self._before.steps

    def run(self, until: int | None = None) -> ReplaySummary:
        """Replay up to the plan of step `until`, to the end, or to the first difference."""
        for _ in self.plans(until):
            pass
        return self.summary

    def plans(self, until: int | None = None) -> Iterator[Plan]:
        """Like `run`, and yields each plan; if one differs, it is the last.

        An error other than a PacelineError is a bug of the scheduler; it is raised at the same call
        as in the recorded run.
        """
        for record in self._records:
            plan = self._follow(record)
            if plan is not None:
                yield plan
            if self.divergence or (plan is not None and plan.step == until):
                return
        if self._plan is not None:
            yield self._plan
        if self._refusal is not None and self.reader.ending in (
            RecordingEnd.CLOSED,
            RecordingEnd.CONTINUED,
        ):
            self._diverge_by_refusal()

    def _follow(self, record: Record) -> Plan | None:
        """Replay one call, or compare an outcome; returns the plan if one was compared."""
        if record.kind is RecordKind.PLANNED:
            return self._compare(record.payload)
        if record.kind is RecordKind.REFUSED:
            self._compare_refusal(record.payload.decode())
            return None
        if self._refusal is not None:
            self._diverge_by_refusal()
            return None
        if record.kind in ANSWERS:
            self._diverge("the connector is not asked what it was asked in the recorded run")
            return None
        try:
            self._calls[record.kind](record.payload)
        except PacelineError as error:
            self._refusal = str(error)
        return None

    # -- calls --------------------------------------------------------------

    def _submit(self, payload: bytes) -> None:
        submission = Submission.decoded(payload)
        self.scheduler.submit(submission.request, submission.now, submission.parked)
        self.request_ids[submission.request.id] = None
        self._counts["requests"] += 1

    def _plan_again(self, payload: bytes) -> None:
        (now,) = TIME.unpack(payload)
        self._plan = self.scheduler.plan(now)
        self.scheduler.cache_events()  # drop them
        self._flight.add(self._plan)
        self.on_plan(self._plan)

    def _commit(self, made: Commitment) -> None:
        plan = self._flight.to_commit(made.step, made.rows)
        result = made.result
        for added_to in self._parts:
            result = added_to(result)
        self._parts.clear()
        self.on_result(plan, made.now)
        outputs = self.scheduler.commit(plan, result, made.now)
        self._flight.committed(made.step)
        self.on_commit(plan, outputs)

    def _score(self, payload: bytes) -> None:
        self._parts.append(ResultScores.decoded(payload).added_to)

    def _fail_rows(self, payload: bytes) -> None:
        self._parts.append(partial(replace, failed=failed_of(payload)))

    def _draft(self, payload: bytes) -> None:
        self._parts.append(partial(replace, computed_drafts=drafts_of(payload)))

    def _connect(self, name: str, role: str, hands_over: bool) -> None:
        answers = self._records.answer
        self.scheduler.connect(ReplayedConnector(name, role, hands_over, answers))

    def _force(self, payload: bytes) -> None:
        self._parts.append(partial(replace, forced=forced_of(payload)))

    def _measure(self, recompute: float, swap: float) -> None:
        self.scheduler.measure(Rates(recompute, swap))

    def _measure_steps(self, payload: bytes) -> None:
        self.scheduler.measure_steps(step_times_of(payload))

    def _measure_cost(self, position_ns: int, read_ns: int) -> None:
        self.scheduler.measure_cost(StepCost(position_ns, read_ns))

    def _fail(self, step: int, now: float, message: str) -> None:
        self.scheduler.fail(self._flight.give_up(step), now, message)

    def _stop(self, now: float, message: str) -> None:
        self._flight.clear()
        self.scheduler.stop(now, message)

    def _retry(self, step: int, now: float) -> None:
        self.scheduler.retry(self._flight.give_up(step), now)

    # -- comparing ----------------------------------------------------------

    def _compare(self, payload: bytes) -> Plan | None:
        plan, self._plan = self._plan, None
        if plan is None:
            self._diverge("the recorded run planned a step that the replay refuses")
            return None
        (step,) = STEP.unpack_from(payload)
        recorded, replayed = payload[STEP.size :], self._fingerprint.of(plan)
        if (step, recorded) == (plan.step, replayed):
            self._counts["verified"] += 1
        else:
            found = differences(recorded, replayed)
            self._diverge(f"the plans differ in {found}; the replay has {brief(plan)}", step)
        return plan

    def _compare_refusal(self, then: str) -> None:
        now, self._refusal = self._refusal, None
        if now is None:
            self._diverge(f"the recorded run refused a call that the replay accepts: {then}")
        else:
            self._counts["refused"] += 1

    def _diverge_by_refusal(self) -> None:
        self._diverge(f"the recorded run accepted a call that the replay refuses: {self._refusal}")

    def _diverge(self, what: str, step: int | None = None) -> None:
        self.divergence = Divergence(self.scheduler.stats.steps if step is None else step, what)
