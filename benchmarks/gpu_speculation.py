"""Time steps with drafts on a GPU, and show when they pay; prints JSON lines.

    python -m benchmarks.gpu_speculation
    python -m benchmarks.gpu_speculation qwen3-8b triton 1 8 64 --proposers ngram,suffix,scripted
    python -m benchmarks.gpu_speculation qwen3-8b triton 1 8 64 256 --proposers mtp

Weights are random, in the shapes of the named models: the speed is the same. What they sample is
known. It needs numpy, torch and triton alone.

    step times    of decode steps, and of steps with drafts, as an engine measures them
    quoting       runs by number of rows, in which outputs quote a passage of their prompt, and
                  differ from it in some places: without drafts, with `fixed`, and with `adaptive`
    right         the same with a scripted proposer, by the share of its drafts that are right;
                  `adaptive` has to notice what does not pay
    head          the same with an MTP head, whose drafts are computed and then replaced, so that
                  four of five are right. `no head` is the model alone, to which ratios refer
"""

import argparse
import gc
from dataclasses import replace
from random import Random
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import DEPTH, MAX_MODEL_LEN, ROWS, Bench, Counting, OneToken, drawn, submit
from paceline import Scheduler, StepResult
from paceline.core.capabilities import StepTimes
from paceline.core.plan import Plan
from paceline.core.settings.features import SpeculationConfig
from paceline.engine.loop.turn_times import TurnTimer
from paceline.runner.cuda.drafting.mtp import CudaMtp
from paceline.runner.draft_heads.mtp import MTPWeights
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.traits import MTPNames
from paceline.runner.proposer import DraftInput, Drafts, Proposer, load
from paceline.runner.proposers.ngram import Ngram
from paceline.wiring.device import MEASURED_S

CONTEXT, OUTPUT, DRAFTS = 512, 256, 4
SHARES, HEAD_SHARE = (0.0, 0.5, 0.9), 0.8
ROUNDS = 2
QUOTING_DRAFTS = 8
PASSAGE, EDITED, BEGINNING = 480, 24, 8  # tokens of a passage, between its edits, and quoted


class Script:
    """Says the token that the model always samples, or another where drafts are to be wrong. A
    request is known by the first token of its prompt."""

    def __init__(self) -> None:
        self.token = torch.zeros((), dtype=torch.int64, device="cuda")  # what the model samples
        # By the first token of the prompt; in place, because graphs read it.
        self.wrong = torch.zeros((ROWS, MAX_MODEL_LEN), dtype=torch.bool, device="cuda")

    def guess(self, first: Tensor, known: Tensor, most: int) -> Tensor:
        """Drafts [rows, most] behind so many known tokens [rows], by first tokens [rows]."""
        places = torch.arange(most, device=first.device)
        at = (known[:, None] + places).clamp(max=self.wrong.shape[1] - 1).long()
        return self.token + self.wrong[first[:, None].long().clamp(max=ROWS - 1), at]


class Scripted(Proposer):
    """Proposes what a script says, without reading on the host."""

    on_device = True

    def __init__(self, config: SpeculationConfig) -> None:
        super().__init__(config)
        self.script = Script()

    def propose(self, tokens: Tensor, known: Tensor, number: Tensor, most: int) -> Tensor:
        places = torch.arange(most, device=tokens.device)
        guess = self.script.guess(tokens[:, 0], known, most)
        return torch.where(places < number[:, None], guess, -1)


class ScriptedHead(CudaMtp):
    """Drafts with a head, and returns what a script says instead."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.script = Script()

    @staticmethod
    def of(name: str) -> "ScriptedHead":
        """With random weights, for a model of any shape."""
        config = ModelConfig.of_hf(Bench.shape(name))
        traits = replace(config.traits, mtp=MTPNames())
        config = replace(config, tied_embedding=False, traits=traits)
        weights = MTPWeights(OneToken(config, device="cuda"))
        head = ScriptedHead.load_head(weights, MAX_MODEL_LEN)
        speculation = SpeculationConfig(num_speculative_tokens=DRAFTS, proposer="mtp")
        return ScriptedHead(speculation, head, weights.target_ids(), None, torch.bfloat16)

    def draft(self, rows: DraftInput) -> Drafts:
        found = super().draft(rows).ids
        first = self.runner.columns.tokens[rows.slot.long(), 0]
        guess = self.script.guess(first, rows.known, found.shape[1])
        return Drafts(torch.where(found >= 0, guess, -1))


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


def decide(script: Script, rows: int, share: float) -> None:
    """Let a share of the drafts of each request be right."""
    random = torch.rand((rows, MAX_MODEL_LEN), generator=torch.Generator().manual_seed(1)).cuda()
    script.wrong.zero_()
    script.wrong[:rows] = random >= share


def follow_script(bench: Bench, script: Script, rows: int, times: StepTimes) -> None:
    """Drafts of which a given share is right."""
    for share in SHARES:
        decide(script, rows, share)
        for found in compare(bench, rows, times, DRAFTS):
            bench.say(case=f"rows:{rows} right:{share}", proposer="scripted", **found)
    script.wrong.zero_()


def head(name: str, attention: str, rows: list[int]) -> None:
    """A head of which most drafts are right, beside the model without it."""
    plain = Bench(name, attention, proposer=Ngram(SpeculationConfig()))
    unmeasured = StepTimes(((1, 1.0), (2, 1.0)), ((1, 1.0), (2, 1.0)))
    alone = {
        number: max(
            (run(plain, number, unmeasured) for _ in range(ROUNDS)),
            key=lambda found: found["tokens_per_s"],
        )
        for number in rows
    }
    del plain
    gc.collect()  # graphs and their buffers refer to each other
    torch.cuda.empty_cache()
    proposer = ScriptedHead.of(name)
    bench = Bench(name, attention, proposer=proposer)
    proposer.script.token.fill_(only_token(bench))
    times = measured(bench)
    bench.say(case="step times", plain=times.plain, drafted=times.drafted, least=times.least)
    for number, first in alone.items():
        case = {"case": f"rows:{number} right:{HEAD_SHARE}", "proposer": "mtp"}
        bench.say(**case, speculation="no head", **{**first, "ratio": 1.0})
        decide(proposer.script, number, HEAD_SHARE)
        for found in compare(bench, number, times, DRAFTS):
            ratio = round(found["tokens_per_s"] / first["tokens_per_s"], 3)
            bench.say(**case, **{**found, "ratio": ratio})
        proposer.script.wrong.zero_()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time steps with drafts; prints JSON lines.")
    parser.add_argument("model", nargs="?", default="qwen3-8b")
    parser.add_argument("attention", nargs="?", default="triton")
    parser.add_argument("rows", nargs="*", type=int, default=[1, 256])
    parser.add_argument("--proposers", default="ngram", help="ngram, suffix, scripted, mtp")
    options = parser.parse_args()
    for name in options.proposers.split(","):
        if name == "mtp":
            head(options.model, options.attention, options.rows)
            continue
        if name != "scripted":
            quote(options.model, options.attention, name, options.rows)
            continue
        proposer = Scripted(SpeculationConfig(num_speculative_tokens=DRAFTS))
        bench = Bench(options.model, options.attention, proposer=proposer)
        proposer.script.token.fill_(only_token(bench))
        times = measured(bench)
        bench.say(case="step times", plain=times.plain, drafted=times.drafted)
        for number in options.rows:
            follow_script(bench, proposer.script, number, times)


if __name__ == "__main__":
    main()
