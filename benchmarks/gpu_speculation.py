"""Time steps with drafts on a GPU, and show when they pay; prints JSON lines.

    python -m benchmarks.gpu_speculation
    python -m benchmarks.gpu_speculation qwen3-8b triton 1 8 64 --proposers ngram,suffix,scripted

Weights are random, in the shapes of the named models: the speed is the same. What they sample is
known. It needs numpy, torch and triton alone.

    step times    of decode steps, and of steps with drafts, as an engine measures them
    quoting       runs by number of rows, in which outputs quote a passage of their prompt, and
                  differ from it in some places: without drafts, with `fixed`, and with `adaptive`
    right         the same with a scripted proposer, by the share of its drafts that are right;
                  `adaptive` has to notice what does not pay
"""

import argparse
from random import Random
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import DEPTH, MAX_MODEL_LEN, ROWS, Bench, Counting, drawn, submit
from paceline import Scheduler, StepResult
from paceline.core.capabilities import StepTimes
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.engine.loop.turn_times import TurnTimer
from paceline.runner.proposer import Proposer, load
from paceline.wiring.device import MEASURED_S

CONTEXT, OUTPUT, DRAFTS = 512, 256, 4
SHARES = (0.0, 0.5, 0.9)
ROUNDS = 2
QUOTING_DRAFTS = 8
PASSAGE, EDITED, BEGINNING = 480, 24, 8  # tokens of a passage, between its edits, and quoted


class Scripted(Proposer):
    """Proposes the token that the model always samples, or another where it is to be wrong,
    without reading on the host.

    A slot is known by the first token of its prompt.
    """

    on_device = True

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self.token = torch.zeros((), dtype=torch.int64, device="cuda")  # what the model samples
        # By the first token of the prompt; in place, because graphs read it.
        self.wrong = torch.zeros((ROWS, MAX_MODEL_LEN), dtype=torch.bool, device="cuda")

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        places = torch.arange(most, device=tokens.device)
        at = (known[:, None] + places).clamp(max=self.wrong.shape[1] - 1)
        prompt = tokens[:, :1].long().clamp(max=ROWS - 1)
        guess = self.token + self.wrong[prompt, at]
        return torch.where(places < number[:, None], guess, -1)


def prompts_of(rows: int) -> list[list[int]]:
    """Prompts whose first token is their number."""
    return [[number, *prompt[1:]] for number, prompt in enumerate(drawn(rows, CONTEXT))]


def quotes_of(rows: int, vocab: int) -> list[list[int]]:
    """Prompts whose output quotes a passage in them, but for one token in some. The model counts,
    so its output is the passage without what was changed in it, from where the prompt ends."""
    random, found = Random(1), list[list[int]]()
    for _ in range(rows):
        first = random.randrange(vocab - PASSAGE)
        passage = [*range(first, first + PASSAGE)]
        beginning = passage[:BEGINNING]
        for at in range(BEGINNING, PASSAGE, EDITED):
            passage[random.randrange(at, min(at + EDITED, PASSAGE))] = random.randrange(vocab)
        found.append([*passage, *beginning])
    return found


def measured(bench: Bench, drafts: int = DRAFTS) -> StepTimes:
    """As an engine measures when it starts."""
    speculation = {"num_speculative_tokens": drafts}
    config = bench.scheduler(**speculation).config
    times = TurnTimer(bench.runner, config, DEPTH).measure(MEASURED_S)
    assert times is not None
    return times


def run(
    bench: Bench,
    rows: int,
    times: StepTimes,
    prompts: list[list[int]] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Decode all rows to their end; prompts are not timed."""
    scheduler = bench.scheduler(enable_prefix_caching=False, **settings)
    scheduler.measure_steps(times)
    submit(scheduler, prompts or prompts_of(rows), [OUTPUT] * rows, heat=0.0)
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


def only_token(bench: Bench) -> int:
    """The token that the model samples, whatever it reads."""
    scheduler = bench.scheduler(enable_prefix_caching=False)
    submit(scheduler, prompts_of(2), [8] * 2, heat=0.0)
    found: set[int] = set()
    while not scheduler.idle:
        plan: Plan = scheduler.plan(perf_counter())
        bench.runner.launch(plan)
        result = StepResult.of(plan, {}) if plan.empty else bench.runner.wait()
        for new in scheduler.commit(plan, result, perf_counter()).to_dict().values():
            found.update(new["tokens"])
    bench.runner.launch(scheduler.plan(perf_counter()))
    (token,) = found
    return token


def compare(
    bench: Bench, rows: int, times: StepTimes, drafts: int, prompts: list[list[int]] | None = None
) -> list[dict[str, Any]]:
    """Without drafts, with `fixed` and with `adaptive`, in turns; the best of some rounds."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for way in ("none", "fixed", "adaptive"):
            how = {"num_speculative_tokens": drafts, "speculation": way} if way != "none" else {}
            found = run(bench, rows, times, prompts, **how)
            if way not in best or found["tokens_per_s"] > best[way]["tokens_per_s"]:
                best[way] = found
    plain = best["none"]["tokens_per_s"]
    return [
        {"speculation": way, "ratio": round(found["tokens_per_s"] / plain, 3), **found}
        for way, found in best.items()
    ]


def quote(name: str, attention: str, proposer: str, rows: list[int]) -> None:
    """Outputs that quote their prompts, with a proposer of an engine."""
    config = SpeculationConfig(
        num_speculative_tokens=QUOTING_DRAFTS,
        proposer=proposer,
        suffix_decoding_max_cached_requests=0,  # rounds have the same outputs
    )
    bench = Bench(name, attention, proposer=load(config), weights=Counting)
    times = measured(bench, QUOTING_DRAFTS)
    bench.say(case="step times", proposer=proposer, plain=times.plain, drafted=times.drafted)
    for number in rows:
        prompts = quotes_of(number, bench.config.vocab)
        for found in compare(bench, number, times, QUOTING_DRAFTS, prompts):
            bench.say(case=f"quoting rows:{number}", proposer=proposer, **found)


def script(bench: Bench, proposer: Scripted, rows: int, times: StepTimes) -> None:
    """Drafts of which a given share is right."""
    random = torch.rand((rows, MAX_MODEL_LEN), generator=torch.Generator().manual_seed(1)).cuda()
    for share in SHARES:
        proposer.wrong[:rows] = random >= share
        for found in compare(bench, rows, times, DRAFTS):
            bench.say(case=f"rows:{rows} right:{share}", proposer="scripted", **found)
    proposer.wrong.zero_()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time steps with drafts; prints JSON lines.")
    parser.add_argument("model", nargs="?", default="qwen3-8b")
    parser.add_argument("attention", nargs="?", default="triton")
    parser.add_argument("rows", nargs="*", type=int, default=[1, 256])
    parser.add_argument("--proposers", default="ngram", help="ngram, suffix, scripted")
    options = parser.parse_args()
    for name in options.proposers.split(","):
        if name != "scripted":
            quote(options.model, options.attention, name, options.rows)
            continue
        proposer = Scripted(SpeculationConfig(num_speculative_tokens=DRAFTS))
        bench = Bench(options.model, options.attention, proposer=proposer)
        proposer.token.fill_(only_token(bench))
        times = measured(bench)
        bench.say(case="step times", plain=times.plain, drafted=times.drafted)
        for number in options.rows:
            script(bench, proposer, number, times)


if __name__ == "__main__":
    main()
