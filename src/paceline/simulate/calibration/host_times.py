"""Times what the thread of an engine does for a step, beside the runner."""

from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

import numpy as np

from paceline.core.config import Config
from paceline.core.plan import Plan, StepResult
from paceline.core.request import Request
from paceline.sched.scheduler import Scheduler
from paceline.simulate.calibration.fit import rounded
from paceline.simulate.profile import HostTerms

ROWS = (1, 16, 64, 256)
PROMPT, OUTPUT = 16, 48  # tokens
TOKEN = 7


@dataclass(slots=True)
class HostSeconds:
    """Of the steps of one run."""

    plans: list[float] = field(default_factory=list[float])  # of decode steps
    commits: list[float] = field(default_factory=list[float])
    admitting: float = 0.0  # submitting, and plans that admit; in all
    finishing: float = 0.0  # commits in which sequences end; in all


def host_terms(config: Config) -> HostTerms:
    """Lines through the times at several numbers of rows."""
    sizes = [rows for rows in ROWS if rows <= config.step.max_num_seqs]
    timed = {rows: run(config, rows) for rows in sizes}
    plan, plan_row = line({rows: median(one.plans) for rows, one in timed.items()})
    commit, commit_row = line({rows: median(one.commits) for rows, one in timed.items()})
    most, last = sizes[-1], timed[sizes[-1]]
    return HostTerms(
        plan_s=plan,
        plan_row_s=plan_row,
        admit_s=rounded(last.admitting / most),
        finish_s=rounded(last.finishing / most),
        commit_s=commit,
        commit_row_s=commit_row,
    )


def line(seconds: dict[int, float]) -> tuple[float, float]:
    """A fixed part and one per row, neither of them negative."""
    rows, taken = np.array(list(seconds)), np.array(list(seconds.values()))
    if len(rows) == 1:
        return rounded(float(taken[0])), 0.0
    slope, fixed = np.polyfit(rows, taken, 1)
    if slope < 0 or fixed < 0:
        fixed, slope = float(taken.min()), 0.0
    return rounded(float(fixed)), rounded(float(slope))


def run(config: Config, rows: int) -> HostSeconds:
    """Requests that begin and end together, on a scheduler of their own."""
    scheduler = Scheduler(config)
    found, now = HostSeconds(), 0.0
    begin = perf_counter()
    length = min(PROMPT, config.step.max_model_len // 2)
    output = min(OUTPUT, config.step.max_model_len - length)
    for number in range(rows):
        request = Request(id=f"r{number}", prompt=[number, *[TOKEN] * (length - 1)])
        scheduler.submit(replace(request, max_tokens=output, ignore_eos=True), now)
    found.admitting += perf_counter() - begin
    while not scheduler.idle:
        begin = perf_counter()
        plan = scheduler.plan(now)
        planned = perf_counter()
        result = sampled(plan)
        landed = perf_counter()
        outputs = scheduler.commit(plan, result, now)
        committed = perf_counter()
        if plan.admitted:
            found.admitting += planned - begin
        else:
            found.plans.append(planned - begin)
        if outputs.finished:
            found.finishing += committed - landed
        else:
            found.commits.append(committed - landed)
    return found


def sampled(plan: Plan) -> StepResult:
    ids = np.full((len(plan.rows), 1), TOKEN, np.int32)
    return StepResult(ids, plan.rows.samples.astype(np.int32))
