"""How far a simulation is from a real run, and which part of the model is the cause."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.open_loop import RealRun
from benchmarks.tables import cell
from benchmarks.watched_steps import StepLog
from paceline.bench.samples import Spread, rate, spread_ms
from paceline.core.arrays import F64, Bool
from paceline.simulator.device.profile import Profile
from paceline.simulator.results.figures import Figures, SimulationReport
from paceline.simulator.results.request_log import RequestLog
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer

PERCENTILES = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
PART_OF_TURN_S = 0.02  # a longer gap between a result and the next launch is idle time
HELD_UP = 0.02  # a step whose result was waited for less than this share of it ended earlier
ROWS = (1, 8, 32, 64, 128, 256, 100_000)  # bounds of classes
POSITIONS = (16, 64, 256, 1024, 4096, 10_000_000)

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a real run and of its simulation."""

    figure: str
    real: float
    simulated: float

    @property
    def error(self) -> float | None:
        """As a share of the real figure; None if that is 0."""
        return (self.simulated - self.real) / self.real if self.real else None

    def to_dict(self) -> Line:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """A load: its figures, and the parts of the model beside what was observed."""

    name: str
    share: float  # of the capacity
    requests: int
    figures: Sequence[Compared]
    parts: Sequence[Compared]  # in milliseconds, and counts
    steps: Sequence[Line]  # by kind and size

    def to_dict(self) -> Line:
        return {
            "load": self.name,
            "share": self.share,
            "requests": self.requests,
            "figures": [one.to_dict() for one in self.figures],
            "parts": [one.to_dict() for one in self.parts],
            "steps": list(self.steps),
        }


def checked(real: RealRun, log: StepLog, model: ServerModel) -> Check:
    """Simulate the requests of a real run and compare."""
    simulated = SimulatedServer(model, real.requests).run()
    last = real.begun + float(real.ended.max())
    own = log.where((log.begun >= real.begun) & (log.begun <= last))
    report = SimulationReport.of(simulated, {}).total
    return Check(
        real.name,
        real.share,
        len(real.requests),
        compared_figures(real, report),
        compared_parts(real, own, simulated, model),
        step_errors(own, model.profile, model.depth or model.profile.depth),
    )


# -- what clients see -----------------------------------------------------------


def compared_figures(real: RealRun, simulated: Figures) -> list[Compared]:
    sent = np.array([one.at_s for one in real.requests])
    first = np.array([times[0] for times in real.times]) - sent
    gaps = np.concatenate([np.diff(times) for times in real.times])
    duration = float(real.ended.max() - sent.min())
    tokens = sum(map(len, real.times))
    return [
        *spreads("TTFT", spread_ms(first), simulated.ttft_ms),
        *spreads("ITL", spread_ms(gaps), simulated.itl_ms),
        Compared("output tokens/s", rate(tokens, duration), simulated.output_tokens_per_s),
        Compared("preemptions", int(real.preemptions.sum()), simulated.preemptions),
        Compared("cached tokens", int(real.cached.sum()), simulated.cached_tokens),
    ]


def spreads(name: str, real: Spread | None, simulated: Spread | None) -> Iterable[Compared]:
    if real is not None and simulated is not None:
        for label, of in PERCENTILES.items():
            yield Compared(f"{name} {label} ms", getattr(real, of), getattr(simulated, of))


# -- the parts of the model -----------------------------------------------------


def compared_parts(
    real: RealRun, log: StepLog, simulated: SimulatedRun, model: ServerModel
) -> list[Compared]:
    """Scheduling, the way of requests and of tokens, and the host, each by itself."""
    own, profile, stats = simulated.log, model.profile, simulated.stats
    sent = np.array([one.at_s for one in real.requests])
    first = np.array([times[0] for times in real.times])
    rows = np.array([one.rows for one in log.batches])
    positions = np.array([one.positions for one in log.batches])
    host, told = host_turns(log, profile, model.depth or profile.depth)
    late = delivery_s(real, log)
    told_late = [profile.commit_s(one) + model.frontend.deliver_s(one.rows) for one in log.batches]
    return [
        Compared("steps", len(log), stats.steps),
        Compared("tokens of a step", float(rows.mean()), stats.sampled / stats.steps),
        Compared("positions of a step", float(positions.mean()), stats.planned / stats.steps),
        *parts("sent to admitted", real.queued, own.queued),
        *parts("admitted to first token", first - sent - real.queued, since_admitted(own)),
        *parts("turn of the host", host, told),
        *parts("result to client", late, np.array(told_late)),
    ]


def since_admitted(log: RequestLog) -> F64:
    return log.first - log.arrival - log.queued


def parts(name: str, real: F64, simulated: F64) -> Iterable[Compared]:
    return spreads(name, spread_ms(real), spread_ms(simulated))


def host_turns(log: StepLog, profile: Profile, depth: int) -> tuple[F64, F64]:
    """Seconds from the latest result until the next launch has begun, or ended where steps are
    launched ahead: as they were, and as the profile says."""
    if len(log) <= depth:
        return np.empty(0), np.empty(0)
    end = log.begun if depth == 1 else log.launched
    gaps = end[depth:] - log.landed[:-depth]
    told = np.array(
        [
            profile.commit_s(before) + profile.plan_s(after)
            for before, after in zip(log.batches[:-depth], log.batches[depth:], strict=True)
        ]
    )
    kept = (gaps > 0) & (gaps < PART_OF_TURN_S)
    return gaps[kept], told[kept]


def delivery_s(real: RealRun, log: StepLog) -> F64:
    """Seconds from the latest result to each token at its client."""
    times = np.concatenate(real.times) + real.begun
    place = np.searchsorted(log.landed, times) - 1
    return times[place >= 0] - log.landed[place[place >= 0]]


# -- steps ----------------------------------------------------------------------


def step_errors(log: StepLog, profile: Profile, depth: int) -> list[Line]:
    """Seconds of steps beside what the profile says of the same steps, by kind and size.

    A step that had ended before the host waited for it took less time than can be seen; it is
    counted as held up, and otherwise left out.
    """
    if not len(log):
        return []
    before = np.concatenate([[-np.inf], log.landed[:-1]])
    taken = log.landed - np.maximum(before, log.begun if depth == 1 else log.launched)
    held_up = (log.landed - log.waited < HELD_UP * taken) if depth > 1 else taken < 0
    told = np.array([profile.device_s(one) for one in log.batches])
    mixed = np.array([one.has_prompts for one in log.batches])
    rows = np.array([one.rows for one in log.batches])
    positions = np.array([one.positions for one in log.batches])
    found: list[Line] = []
    for kind, of_kind, sizes, bounds in (
        ("decode", ~mixed, rows, ROWS),
        ("mixed", mixed, positions, POSITIONS),
    ):
        for low, high in pairwise((0, *bounds)):
            of_size = of_kind & (sizes > low) & (sizes <= high)
            if of_size.any():
                label = f"{low + 1}-{high}" if high < bounds[-1] else f"over {low}"
                about = {"kind": kind, "size": label, "held_up": int((held_up & of_size).sum())}
                found.append(about | errors_of(taken, told, of_size & ~held_up))
        found.append({"kind": kind, "size": "all"} | errors_of(taken, told, of_kind & ~held_up))
    return found


def errors_of(taken: F64, told: F64, kept: Bool) -> Line:
    """The error of all steps together, and the mean of the errors of each without their signs."""
    count = int(kept.sum())
    if not count:
        return {"steps": 0}
    real, said = taken[kept], told[kept]
    return {
        "steps": count,
        "real_ms": 1e3 * float(real.mean()),
        "profile_ms": 1e3 * float(said.mean()),
        "error": float(said.sum() / real.sum() - 1),
        "mean_error": float(np.mean(np.abs(said / real - 1))),
    }


# -- tables ---------------------------------------------------------------------


def tables(checks: Sequence[Check]) -> str:
    """In Markdown: the figures of all loads, and what explains them."""
    return "\n\n".join(
        [
            table_of(checks, lambda one: one.figures, "figure"),
            table_of(checks, lambda one: one.parts, "part"),
            *(steps_table(one) for one in checks),
        ]
    )


def table_of(checks: Sequence[Check], of: Callable[[Check], Sequence[Compared]], title: str) -> str:
    heads = [f"{one.name} ({one.share:.0%}): real | simulated | error" for one in checks]
    lines = [f"| {title} | {' | '.join(heads)} |", "|---" * (1 + 3 * len(checks)) + "|"]
    found = [{one.figure: one for one in of(check)} for check in checks]
    for name in found[0]:
        cells = [cell for one in found for cell in cells_of(one.get(name))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cells_of(one: Compared | None) -> list[str]:
    if one is None:
        return ["–"] * 3
    return [cell(one.real), cell(one.simulated), percent(one.error)]


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


def steps_table(check: Check) -> str:
    lines = [
        f"| steps of {check.name} | steps | held up | real ms | profile ms | error | mean error |",
        "|---" * 7 + "|",
    ]
    for one in check.steps:
        values = [cell(one.get(name)) for name in ("steps", "held_up", "real_ms", "profile_ms")]
        errors = [percent(one.get(name)) for name in ("error", "mean_error")]
        lines.append(f"| {one['kind']} {one['size']} | {' | '.join(values + errors)} |")
    return "\n".join(lines)
