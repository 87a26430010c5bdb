"""The measurement itself, the same code for every scheduler: what is timed, and what is not."""

import argparse
import gc
import json
import resource
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cases import STEPS, WARM_STEPS, Case, parse
from workloads import Work

clock = time.thread_time_ns  # CPU time of this thread: other processes on the core do not count
IDLE_TURNS = 1000  # this many steps in a row without work are a scheduler that is stuck


@dataclass(frozen=True, slots=True)
class Counts:
    """What a scheduler says of its own work."""

    preemptions: int
    prefix_queries: int  # tokens
    prefix_hits: int  # tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A plan, and the result of a model that always samples the same token."""

    plan: Any
    result: Any
    tokens: int  # scheduled
    rows: int
    samples: int  # rows that yield a token


class Side(Protocol):
    """A scheduler built for one case. Only submit, plan, commit and release are timed."""

    def submit(self, serial: int, work: Work) -> None: ...
    def plan(self) -> Any: ...
    def fake(self, plan: Any) -> Step: ...
    def commit(self, plan: Any, result: Any) -> Any: ...
    def observe(self, outputs: Any) -> None: ...
    def unfinished(self) -> int: ...
    def release(self, serials: Iterable[int]) -> None: ...
    def counts(self) -> Counts: ...


class Turns:
    """The loop of an engine: plan until `depth` steps are in flight, then commit the oldest."""

    def __init__(self, side: Side, depth: int) -> None:
        self.plan_ns: list[int] = []
        self.commit_ns: list[int] = []
        self.steps = self.tokens = self.samples = 0
        self.last: Step | None = None
        self._side, self._depth, self._idle = side, depth, 0
        self._flight: deque[Step] = deque()

    def turn(self) -> None:
        while len(self._flight) < self._depth:
            self._flight.append(self._plan())
        step = self._flight.popleft()
        begin = clock()
        outputs = self._side.commit(step.plan, step.result)
        self.commit_ns.append(clock() - begin)
        self._side.observe(outputs)

    def _plan(self) -> Step:
        begin = clock()
        plan = self._side.plan()
        self.plan_ns.append(clock() - begin)
        self.last = step = self._side.fake(plan)
        self.steps += step.rows > 0
        self.tokens += step.tokens
        self.samples += step.samples
        self._idle = 0 if step.rows else self._idle + 1
        assert self._idle < IDLE_TURNS, "nothing is planned any more"
        return step


def measure(case: Case, build: Callable[[Case, list[Work]], Side]) -> dict[str, float]:
    """Run one case. The heap of before the first request is frozen, as an engine does."""
    work = case.work()
    gc.collect()
    before = peak_mib()
    side = build(case, work)
    built = peak_mib()
    gc.collect()
    gc.freeze()
    turns = Turns(side, case.depth)
    begin = clock()
    for serial, item in enumerate(work):
        side.submit(serial, item)
    submit_ns = clock() - begin
    if case.running:
        figures = per_step(turns, side, case.running)
        figures["submit_us"] = submit_ns / len(work) / 1e3
    else:
        figures = total(turns, side, submit_ns, sum(item.max_tokens for item in work))
    figures |= {"rss_build_mib": built - before, "rss_mib": peak_mib() - before}
    gc.unfreeze()
    return figures


def per_step(turns: Turns, side: Side, running: int) -> dict[str, float]:
    """CPU time of a step while exactly `running` requests decode."""
    while turns.last is None or (turns.last.rows, turns.last.samples) != (running, running):
        turns.turn()
    for _ in range(WARM_STEPS):
        turns.turn()
    turns.plan_ns.clear()
    turns.commit_ns.clear()
    steps_before = turns.steps
    for _ in range(STEPS):
        turns.turn()
    assert turns.last.rows == running, "the batch changed while it was measured"
    both = [plan + commit for plan, commit in zip(turns.plan_ns, turns.commit_ns, strict=True)]
    begin = clock()
    side.release(range(running))
    release_ns = clock() - begin
    return {
        "us": statistics.median(both) / 1e3,
        "mean_us": statistics.fmean(both) / 1e3,
        "plan_us": statistics.median(turns.plan_ns) / 1e3,
        "commit_us": statistics.median(turns.commit_ns) / 1e3,
        # A request leaves once: its share of each step in which it got a token.
        "release_us": release_ns * running / turns.samples / 1e3,
        "steps": turns.steps - steps_before,
    }


def total(turns: Turns, side: Side, submit_ns: int, out: int) -> dict[str, float]:
    """CPU time of everything, from the first request handed over to the last one ended."""
    while side.unfinished():
        turns.turn()
    assert turns.samples == out, f"{turns.samples} tokens came out instead of {out}"
    counts = side.counts()
    plan_ns, commit_ns = sum(turns.plan_ns), sum(turns.commit_ns)
    return {
        "ms": (submit_ns + plan_ns + commit_ns) / 1e6,
        "submit_ms": submit_ns / 1e6,
        "plan_ms": plan_ns / 1e6,
        "commit_ms": commit_ns / 1e6,
        "steps": turns.steps,
        "scheduled_tokens": turns.tokens,
        "preemptions": counts.preemptions,
        "hit_rate": counts.prefix_hits / max(counts.prefix_queries, 1),
    }


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def clock_us() -> float:
    """What one interval costs by itself: it is in every figure once for each timed call."""
    return statistics.median(-(clock() - clock()) for _ in range(2000)) / 1e3


def serve(build: Callable[[Case, list[Work]], Side], about: dict[str, str]) -> None:
    """The command line of a side: cases as arguments, or one a line on standard input.

    The first line printed says what is measured, each further one is the result of a case.
    """
    parser = argparse.ArgumentParser(description="Measure one scheduler; prints JSON lines.")
    parser.add_argument("specs", nargs="*", metavar="CASE", help="such as steady:64, or churn")
    specs: Sequence[str] = parser.parse_args().specs
    measure(parse("steady:4"), build)  # warms the code paths
    python = sys.version.split()[0]
    print(json.dumps({**about, "python": python, "clock_us": round(clock_us(), 2)}), flush=True)
    for spec in specs or map(str.strip, sys.stdin):
        figures = measure(parse(spec), build)
        print(json.dumps({"case": spec} | {k: round(v, 4) for k, v in figures.items()}), flush=True)
