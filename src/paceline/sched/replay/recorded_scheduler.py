"""A scheduler that records the calls that change it, so that the run can be replayed."""

from dataclasses import fields
from typing import Any, Literal

from paceline.core.capabilities import StepCost, StepTimes
from paceline.core.errors import PacelineError
from paceline.core.plan import Outputs, Plan, StepResult
from paceline.core.request import Request
from paceline.core.settings.config import Config
from paceline.core.settings.features import RecordConfig
from paceline.kv.connector import Connector
from paceline.sched.replay.calls import (
    Commitment,
    ResultScores,
    Submission,
    drafts_record,
    failed_rows,
    forced_record,
    step_times_record,
)
from paceline.sched.replay.checkpoint import PlansInFlight, SchedulerCheckpoint
from paceline.sched.replay.connector_answers import RecordedConnector
from paceline.sched.replay.fingerprint import Fingerprint
from paceline.sched.replay.reader import Preamble
from paceline.sched.replay.recording import OUTCOME_BYTES, Recording
from paceline.sched.replay.records import CHECKSUM, HEAD, STEP, TIME, RecordKind, arguments, record
from paceline.sched.scheduler import Scheduler
from paceline.sched.transfers.swapping import Rates

RECORD_SETTINGS = [setting.name for setting in fields(RecordConfig)]
LONGEST_ERROR = OUTCOME_BYTES - HEAD.size - CHECKSUM.size  # bytes


class RecordedScheduler(Scheduler):
    """Records every call that changes the scheduler, in order, until `recording.ended`.

    A file begins with the settings. One that continues another also holds the state of the
    scheduler at that point, so each can be replayed alone. `commit`, `fail` and `retry` take the
    plans that `plan` returned.
    """

    def __init__(self, config: Config, record: RecordConfig) -> None:
        """RecordingError or OSError if the file cannot be created."""
        super().__init__(config)
        self._state = list(vars(self))  # attributes that affect decisions
        self._in_flight = PlansInFlight()
        self._fingerprint = Fingerprint()
        self._has_begun = False
        self.recording = Recording(record, self._beginning)
        self._refusals = Refusals(self.recording)
        self._has_begun = True

    @classmethod
    def create(cls, **settings: Any) -> "RecordedScheduler":
        """Create from flat settings of the scheduler and of `RecordConfig`."""
        record = {name: settings.pop(name) for name in RECORD_SETTINGS if name in settings}
        return cls(Config.of(**settings), RecordConfig(**record))

    def _beginning(self) -> bytes:
        """The beginning of a file: the settings, and the state if calls precede it."""
        settings = Preamble.of(self.config).encoded()
        if not self._has_begun:
            return settings
        attributes = {name: getattr(self, name) for name in self._state}
        state = SchedulerCheckpoint(attributes, self._in_flight).encoded(self.config)
        return settings + record(RecordKind.STATE, state)

    def close(self) -> None:
        """End the recording and close the connector."""
        super().close()
        self.recording.close()

    def __enter__(self) -> "RecordedScheduler":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # -- calls that change the scheduler ------------------------------------

    def submit(self, request: Request, now: float, parked: str = "") -> None:
        if not self.recording.ended:
            self.recording.call(Submission(request, now, parked).encoded())
        with self._refusals:
            super().submit(request, now, parked)

    def abort(self, request_id: str, now: float, child: int | None = None) -> bool:
        self._note(RecordKind.ABORT, request_id, now, *(() if child is None else (child,)))
        with self._refusals:
            return super().abort(request_id, now, child)

    def park(self, request_id: str, reason: str, now: float) -> bool:
        self._note(RecordKind.PARK, request_id, reason, now)
        with self._refusals:
            return super().park(request_id, reason, now)

    def wake(self, request_id: str, now: float) -> bool:
        self._note(RecordKind.WAKE, request_id, now)
        with self._refusals:
            return super().wake(request_id, now)

    def plan(self, now: float) -> Plan:
        if self.recording.ended:
            return super().plan(now)
        self.recording.call(record(RecordKind.PLAN, TIME.pack(now)))
        with self._refusals:
            plan = super().plan(now)
        self._in_flight.add(plan)
        digests = STEP.pack(plan.step) + self._fingerprint.of(plan)
        self.recording.outcome(record(RecordKind.PLANNED, digests))
        return plan

    def commit(self, plan: Plan, result: StepResult, now: float) -> Outputs:
        if self.recording.ended:
            return super().commit(plan, result, now)
        scores = ResultScores.of(result)
        parts = (
            scores.encoded() if scores is not None else b"",
            failed_rows(result.failed) if result.failed else b"",
            drafts_record(result.computed_drafts) if result.computed_drafts is not None else b"",
            forced_record(result.forced) if result.forced else b"",
            Commitment(plan.step, now, len(plan.rows), result).encoded(),
        )
        self.recording.call(b"".join(parts))
        with self._refusals:
            outputs = super().commit(plan, result, now)
        self._in_flight.committed(plan.step)
        return outputs

    def fail(self, plan: Plan, now: float, message: str = "the step failed") -> Outputs:
        self._note(RecordKind.FAIL, plan.step, now, message)
        self._in_flight.give_up(plan.step)
        with self._refusals:
            return super().fail(plan, now, message)

    def stop(self, now: float, message: str) -> Outputs:
        self._note(RecordKind.STOP, now, message)
        self._in_flight.clear()
        with self._refusals:
            return super().stop(now, message)

    def retry(self, plan: Plan, now: float) -> None:
        self._note(RecordKind.RETRY, plan.step, now)
        self._in_flight.give_up(plan.step)
        with self._refusals:
            super().retry(plan, now)

    def pause(self, mode: Literal["new", "all"] = "new") -> None:
        self._note(RecordKind.PAUSE, mode)
        with self._refusals:
            super().pause(mode)

    def resume(self) -> None:
        self._note(RecordKind.RESUME)
        super().resume()

    def drain(self) -> None:
        self._note(RecordKind.DRAIN)
        super().drain()

    def reset_prefix_cache(self, reset_running_requests: bool = False, now: float = 0.0) -> bool:
        self._note(RecordKind.RESET_PREFIX_CACHE, reset_running_requests, now)
        with self._refusals:
            return super().reset_prefix_cache(reset_running_requests, now)

    def use_weights(self, fingerprint: str, now: float = 0.0) -> bool:
        self._note(RecordKind.USE_WEIGHTS, fingerprint, now)
        with self._refusals:
            return super().use_weights(fingerprint, now)

    def connect(self, connector: Connector) -> None:
        role = connector.config.kv_role
        self._note(RecordKind.CONNECT, connector.config.kv_connector, role, connector.hands_over)
        with self._refusals:
            super().connect(RecordedConnector(connector, self.recording))

    def measure(self, rates: Rates) -> None:
        self._note(RecordKind.MEASURE, rates.recompute_tokens_per_s, rates.swap_blocks_per_s)
        super().measure(rates)

    def measure_steps(self, times: StepTimes) -> None:
        if not self.recording.ended:
            self.recording.call(step_times_record(times))
        super().measure_steps(times)

    def measure_cost(self, cost: StepCost) -> None:
        self._note(RecordKind.STEP_COST, cost.position_ns, cost.read_ns)
        super().measure_cost(cost)

    def _note(self, kind: RecordKind, *values: Any) -> None:
        if not self.recording.ended:
            self.recording.call(record(kind, arguments(*values)))


class Refusals:
    """Context manager that records PacelineErrors as outcomes of calls."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, PacelineError):
            text = str(error).encode(errors="replace")[:LONGEST_ERROR]
            self._recording.outcome(record(RecordKind.REFUSED, text))
