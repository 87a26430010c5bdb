"""Time steps with drafts on a GPU, and show when they pay; prints JSON lines.

    python -m benchmarks.gpu_speculation qwen3-0.6b triton 1 8 64

Weights are random, in the shapes of the named models: the speed is the same. Such a model copies
nothing, so the drafts are right by construction: each row is drafted what it sampled in a run
without drafts. It needs numpy, torch and triton alone.

    step times    of decode steps, and of steps with drafts, as an engine measures them
    rows, right   whole runs by number of rows and by the share of drafts that are right: without
                  drafts, with `fixed`, and with `adaptive`, which has to notice what does not pay
"""

import sys
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import MAX_MODEL_LEN, ROWS, Bench, drawn, submit
from paceline import Scheduler, StepResult
from paceline.core.config import SpeculationConfig
from paceline.core.plan import Plan
from paceline.runner.proposer import Proposer
from paceline.runner.step_times import Room, StepTimer
from paceline.sched.step_times import StepTimes

CONTEXT, OUTPUT, DRAFTS = 512, 256, 4
SHARES = (0.0, 0.5, 0.9)
ROUNDS = 3


class Scripted(Proposer):
    """Proposes the tokens of an earlier run, some of them wrong, without reading on the host.

    A slot is known by the first token of its prompt.
    """

    def __init__(self, config: SpeculationConfig, vocab: int) -> None:
        super().__init__(config)
        self._vocab = vocab
        self.script: Tensor | None = None  # [prompts, MAX_MODEL_LEN], by the first token
        self.wrong: Tensor | None = None  # the same, where a draft is made wrong

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        places = torch.arange(most, device=tokens.device)
        if self.script is None or self.wrong is None:
            guess = tokens.gather(1, (known - 1).long()[:, None]).expand(-1, most).long()
        else:
            row = tokens[:, :1].long()
            at = (known[:, None] + places).clamp(max=self.script.shape[1] - 1)
            guess = self.script[row, at]
            guess = torch.where(self.wrong[row, at], (guess + 1) % self._vocab, guess)
        return torch.where(places < number[:, None], guess, -1)


def prompts_of(rows: int) -> list[list[int]]:
    """Prompts whose first token is their number."""
    return [[number, *prompt[1:]] for number, prompt in enumerate(drawn(rows, CONTEXT))]


def measured(bench: Bench) -> StepTimes:
    """As an engine measures when it starts."""
    room = Room(ROWS, bench.blocks, bench.block_size, MAX_MODEL_LEN, 512, DRAFTS)
    timer = StepTimer(bench.runner, room, perf_counter, torch.cuda.synchronize)
    return StepTimes(*timer.measure(2.0))


def run(bench: Bench, rows: int, times: StepTimes, **settings: Any) -> dict[str, Any]:
    """Decode all rows to their end; prompts are not timed."""
    scheduler = bench.scheduler(enable_prefix_caching=False, **settings)
    scheduler.measure_steps(times)
    submit(scheduler, prompts_of(rows), [OUTPUT] * rows, heat=0.0)
    prefill(bench, scheduler)
    sampled, begin = scheduler.stats.sampled, perf_counter()
    took = bench.drive(scheduler)
    wall = perf_counter() - begin
    stats = scheduler.stats
    return {
        "tokens_per_s": round((stats.sampled - sampled) / wall, 1),
        "ms": round(1e3 * wall / took.steps, 3),
        "host_ms": round(1e3 * took.host / took.steps, 3),
        "waiting_ms": round(1e3 * took.waiting / took.steps, 3),
        "steps": took.steps,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "paused": scheduler.view.gauges().drafting_paused,
    }


def prefill(bench: Bench, scheduler: Scheduler) -> None:
    """Run steps until no prompt is left."""
    while scheduler.view.queued or not decoding(scheduler):
        plan = scheduler.plan(perf_counter())
        bench.runner.launch(plan)
        result = StepResult.of(plan, {}) if plan.empty else bench.runner.wait()
        scheduler.commit(plan, result, perf_counter())


def decoding(scheduler: Scheduler) -> bool:
    """Has every request its first token?"""
    return all(one["known"] > one["prompt"] for one in scheduler.snapshot()["requests"].values())


def script_of(bench: Bench, rows: int) -> Tensor:
    """The tokens of each prompt and of its answer without drafts, [rows, MAX_MODEL_LEN]."""
    prompts = prompts_of(rows)
    scheduler = bench.scheduler(enable_prefix_caching=False)
    submit(scheduler, prompts, [OUTPUT] * rows, heat=0.0)
    found = [list(prompt) for prompt in prompts]
    while not scheduler.idle:
        plan: Plan = scheduler.plan(perf_counter())
        bench.runner.launch(plan)
        result = StepResult.of(plan, {}) if plan.empty else bench.runner.wait()
        for name, new in scheduler.commit(plan, result, perf_counter()).to_dict().items():
            found[int(name[1:])] += new["tokens"]
    bench.runner.launch(scheduler.plan(perf_counter()))
    script = torch.zeros((rows, MAX_MODEL_LEN), dtype=torch.int64)
    for row, tokens in enumerate(found):
        script[row, : len(tokens)] = torch.tensor(tokens)
    return script.cuda()


def compare(bench: Bench, proposer: Scripted, rows: int, times: StepTimes) -> None:
    """Without drafts, with `fixed` and with `adaptive`, in turns; the best of some rounds."""
    proposer.script = script_of(bench, rows)
    random = torch.rand(proposer.script.shape, generator=torch.Generator().manual_seed(1)).cuda()
    for share in SHARES:
        proposer.wrong = random >= share
        best: dict[str, dict[str, Any]] = {}
        for _ in range(ROUNDS):
            for way in ("none", "fixed", "adaptive"):
                how = {} if way == "none" else {"num_speculative_tokens": DRAFTS}
                kind = {} if way == "none" else {"speculation": way}
                found = run(bench, rows, times, **how, **kind)
                if found["tokens_per_s"] > best.get(way, found)["tokens_per_s"] or way not in best:
                    best[way] = found
        plain = best["none"]["tokens_per_s"]
        for way, found in best.items():
            ratio = round(found["tokens_per_s"] / plain, 3)
            bench.say(case=f"rows:{rows} right:{share}", speculation=way, ratio=ratio, **found)
    proposer.script = proposer.wrong = None


def main() -> None:
    name, attention, *rows = sys.argv[1:]
    vocab = 10_000  # prompts and drafts are drawn from it
    proposer = Scripted(SpeculationConfig(), vocab)
    bench = Bench(name, attention, proposer=proposer)
    times = measured(bench)
    bench.say(case="step times", plain=times.plain, drafted=times.drafted)
    for number in map(int, rows):
        compare(bench, proposer, number, times)


if __name__ == "__main__":
    main()
