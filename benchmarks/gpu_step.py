"""The time of a decode step on a GPU, and of what it is made; prints JSON lines.

    python -m benchmarks.gpu_step qwen3-0.6b triton 1 64 256
    python -m benchmarks.gpu_step qwen3-14b:fp8 triton 1 64 256     quantized on load
    python -m benchmarks.gpu_step --profile qwen3-0.6b triton 0 256        0: a step of prompts
    python -m benchmarks.gpu_step qwen3-8b triton 64 --kv-cache-dtype fp8 --context 256 1536

Weights are random, in the shapes of the named models: the speed is the same.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter

import torch

from benchmarks.gpu import Bench, drawn, submit
from paceline import Scheduler
from paceline.core.plan import Plan
from paceline.wiring.cuda import CACHE_DTYPES

CONTEXT, STEPS = 512, 256


def decoding(bench: Bench, rows: int, steps: int = STEPS, context: int = CONTEXT) -> Scheduler:
    """A scheduler whose requests have their prompts behind them."""
    scheduler = bench.scheduler(enable_prefix_caching=False)
    submit(scheduler, drawn(rows, context), [steps + 8] * rows, heat=0.0)
    bench.drive(scheduler, lambda plan: len(plan.rows) == rows == plan.total)
    return scheduler


def prefilling(bench: Bench) -> Scheduler:
    """A scheduler with a full step of prompts to begin with."""
    scheduler = bench.scheduler(enable_prefix_caching=False)
    submit(scheduler, [list(range(1024))] * 16, [4] * 16, heat=0.6)
    return scheduler


class Marks:
    """Where on the GPU's own clock each launch begins and ends."""

    def __init__(self) -> None:
        self._marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def around(self, bench: Bench) -> Iterator[None]:
        launch = bench.runner.launch

        def marked(plan: Plan) -> None:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            launch(plan)
            end.record()
            self._marks.append((begin, end))

        bench.runner.launch = marked
        try:
            yield
        finally:
            bench.runner.launch = launch

    def idle_ms(self) -> float:
        """Between the end of a launch and the begin of the next. A host that is late shows here,
        unless it is so only within its own launch."""
        gaps = [one[1].elapsed_time(next_[0]) for one, next_ in pairwise(self._marks)]
        return sum(gaps) / len(gaps)


def step(bench: Bench, rows: int, context: int) -> None:
    scheduler, marks = decoding(bench, rows, context=context), Marks()
    with marks.around(bench):
        begin = perf_counter()
        times = bench.drive(scheduler)
        wall = perf_counter() - begin
    bench.say(
        case=f"step:{rows}",
        context=context,
        ms=round(1e3 * wall / times.steps, 3),
        roofline=round(times.floor / wall, 3),
        host_ms=round(1e3 * times.host / times.steps, 3),
        waiting_ms=round(1e3 * times.waiting / times.steps, 3),
        idle_ms=round(marks.idle_ms(), 4),
        steps=times.steps,
    )


def profile(bench: Bench, rows: int, steps: int = 20) -> None:
    """The kernels of a decode step, by the time that they take."""
    scheduler = decoding(bench, rows) if rows else prefilling(bench)
    steps = steps if rows else 1
    left = [steps]

    def enough(_: Plan) -> bool:
        left[0] -= 1
        return left[0] == 0

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        bench.drive(scheduler, enough)
    table = [
        (event.key, event.self_device_time_total / steps, event.count / steps)
        for event in found.key_averages()
        if event.self_device_time_total
    ]
    total = sum(each for _, each, _ in table)
    print(f"{bench.name} {bench.attention}, {rows} rows: {total:.0f} us of kernels in a step")
    for key, each, count in sorted(table, key=lambda line: -line[1])[:22]:
        print(f"{each:9.1f} us {count:6.1f} x {each / count:7.2f}  {key[:110]}", flush=True)
    bench.drive(scheduler)


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("attention")
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--kv-cache-dtype", choices=CACHE_DTYPES, default="bf16")
    parser.add_argument("--context", type=int, nargs="+", default=[CONTEXT])
    given = parser.parse_args()
    bench = Bench(given.name, given.attention, kv_dtype=CACHE_DTYPES[given.kv_cache_dtype])
    for rows in given.rows:
        for context in given.context if rows else ():
            step(bench, rows, context)
        if given.profile:
            profile(bench, rows)


if __name__ == "__main__":
    main()
