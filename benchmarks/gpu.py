"""Decode steps and nano-vLLM's script on a card, under the real scheduler; prints JSON lines.

    python -m benchmarks.gpu step qwen3-0.6b flashinfer 1 64 256
    python -m benchmarks.gpu script,tight,shared qwen3-0.6b triton
    python -m benchmarks.gpu profile qwen3-0.6b triton 0 256          0: a step of prompts

Weights are random, in the shapes of the named models: the speed is the same.
"""

import json
import random
import sys
from collections import deque
from dataclasses import dataclass
from importlib.resources import files
from time import perf_counter
from typing import Any

import numpy as np
import torch

from paceline import Request, Scheduler, StepResult
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.runner.attention.backend import load
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.weights.dummy import Dummy

DEPTH = 2
CONTEXT = 512  # tokens of a prompt of the steps
STEPS = 256
MAX_MODEL_LEN = 2048


@dataclass
class Times:
    """Where the host was, in seconds."""

    host: float = 0.0  # planning, launching, committing
    waiting: float = 0.0
    steps: int = 0


class Bench:
    """A model on the card, and a scheduler for each workload."""

    def __init__(self, name: str, attention: str, block_size: int = 16) -> None:
        raw = json.loads((files("paceline.runner.models") / f"shapes/{name}.json").read_text())
        begin = perf_counter()
        self.name, self.attention = name, attention
        self.config = ModelConfig.of_hf(raw)
        self.model = CudaModel.load(Dummy(self.config, device="cuda"), MAX_MODEL_LEN)
        torch.cuda.synchronize()
        self.load_s = perf_counter() - begin
        self.blocks, self.block_size = 256 * 1152 // block_size, block_size
        kv = KVStore(self.config, self.blocks + 1, block_size, torch.bfloat16, "cuda")
        kv.content.normal_()
        self.runner = CudaRunner(self.model, kv, load(attention), 256, MAX_MODEL_LEN)
        begin = perf_counter()
        self.runner.warm()
        torch.cuda.synchronize()
        self.capture_s = perf_counter() - begin

    def scheduler(self, **settings: Any) -> Scheduler:
        return Scheduler.create(
            max_num_seqs=256,
            max_num_batched_tokens=settings.pop("budget", 16384),
            max_model_len=MAX_MODEL_LEN,
            num_blocks=settings.pop("blocks", self.blocks),
            block_size=self.block_size,
            **settings,
        )

    def drive(self, scheduler: Scheduler, until: Any = None) -> Times:
        """Turn the loop until all is done, or `until` a plan says so."""
        times, flight = Times(), deque[Plan]()
        while not scheduler.idle:
            begin = perf_counter()
            plan = scheduler.plan(begin)
            self.runner.launch(plan)
            launched = perf_counter()
            times.host += launched - begin
            if not plan.empty:
                flight.append(plan)
                times.steps += 1
            if plan.empty and not flight:
                scheduler.commit(plan, StepResult.of(plan, {}), launched)
            elif plan.empty or len(flight) == DEPTH:
                result = self.runner.wait()
                landed = perf_counter()
                times.waiting += landed - launched
                scheduler.commit(flight.popleft(), result, landed)
                times.host += perf_counter() - landed
            if until is not None and until(plan):
                break
        while flight:
            scheduler.commit(flight.popleft(), self.runner.wait(), perf_counter())
        if scheduler.idle:
            self.runner.launch(scheduler.plan(perf_counter()))  # tells the runner who has left
        torch.cuda.synchronize()
        return times

    def say(self, **figures: Any) -> None:
        about = {
            "model": self.name,
            "attention": self.attention,
            "block_size": self.block_size,
            "torch": torch.__version__,
            "load_s": round(self.load_s, 1),
            "capture_s": round(self.capture_s, 1),
        }
        print(json.dumps(about | figures), flush=True)


def submit(scheduler: Scheduler, prompts: list[list[int]], outs: list[int], heat: float) -> None:
    sampling = Sampling(temperature=heat)
    for number, (prompt, out) in enumerate(zip(prompts, outs, strict=True)):
        fields: dict[str, Any] = {"ignore_eos": True, "sampling": sampling, "seed": number}
        request = Request(id=f"r{number}", prompt=prompt, max_tokens=out, **fields)  # pyright: ignore[reportArgumentType]
        scheduler.submit(request, now=perf_counter())


def decoding(bench: Bench, rows: int, steps: int = STEPS) -> Scheduler:
    """A scheduler whose requests have their prompts behind them."""
    scheduler = bench.scheduler(enable_prefix_caching=False)
    draw = np.random.default_rng(0)
    prompts = [draw.integers(0, 10_000, CONTEXT).tolist() for _ in range(rows)]
    submit(scheduler, prompts, [steps + 8] * rows, heat=0.0)
    bench.drive(scheduler, lambda plan: len(plan.rows) == rows == plan.total)
    return scheduler


def prefilling(bench: Bench) -> Scheduler:
    """A scheduler with a full step of prompts to begin with."""
    scheduler = bench.scheduler(enable_prefix_caching=False)
    submit(scheduler, [list(range(1024))] * 16, [4] * 16, heat=0.6)
    return scheduler


def step(bench: Bench, rows: int) -> None:
    scheduler = decoding(bench, rows)
    begin = perf_counter()
    times = bench.drive(scheduler)
    wall = perf_counter() - begin
    bench.say(
        case=f"step:{rows}",
        ms=round(1e3 * wall / times.steps, 3),
        host_ms=round(1e3 * times.host / times.steps, 3),
        waiting_ms=round(1e3 * times.waiting / times.steps, 3),
        steps=times.steps,
    )


def script(bench: Bench, **settings: Any) -> None:
    random.seed(0)
    prompts = [
        [random.randint(0, 10_000) for _ in range(random.randint(100, 1024))] for _ in range(256)
    ]
    outs = [random.randint(100, 1024) for _ in range(256)]
    scheduler = bench.scheduler(**settings)
    submit(scheduler, prompts, outs, heat=0.6)
    begin = perf_counter()
    times = bench.drive(scheduler)
    wall = perf_counter() - begin
    bench.say(
        case="script",
        settings=settings,
        tokens_in=sum(map(len, prompts)),
        tokens_out=sum(outs),
        seconds=round(wall, 3),
        tokens_per_s=round(sum(outs) / wall),
        host_s=round(times.host, 3),
        waiting_s=round(times.waiting, 3),
        steps=times.steps,
        preemptions=scheduler.stats.preemptions,
    )


def shared(bench: Bench) -> None:
    """64 groups of 16 requests, each with a prefix of its own, in a mixed order."""
    draw = random.Random(1)
    ids = lambda count: [draw.randint(0, 10_000) for _ in range(count)]
    prompts = [prefix + ids(256) for prefix in (ids(1024) for _ in range(64)) for _ in range(16)]
    draw.shuffle(prompts)
    scheduler = bench.scheduler()
    submit(scheduler, prompts, [128] * len(prompts), heat=0.6)
    begin = perf_counter()
    times = bench.drive(scheduler)
    wall = perf_counter() - begin
    bench.say(
        case="shared",
        tokens_per_s=round(128 * len(prompts) / wall),
        seconds=round(wall, 3),
        host_s=round(times.host, 3),
        waiting_s=round(times.waiting, 3),
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
    kind, name, attention, *rest = sys.argv[1:]
    bench = Bench(name, attention)
    for each in kind.split(","):
        if each == "script":
            script(bench)
            script(bench)
        if each == "tight":
            script(bench, blocks=4140)
        if each == "shared":
            shared(bench)
        for rows in map(int, rest):
            if each == "step" and rows:
                step(bench, rows)
            if each == "profile":
                profile(bench, rows)


if __name__ == "__main__":
    main()
