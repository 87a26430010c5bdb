"""Measure a model on a CPU with speculation and without; one JSON line per case.

    python benchmarks/speculation.py --json results.jsonl

The two sides take turns, `--rounds` times, on one engine; each begins every other round. Speeds are
output tokens per second, by the CPU time of the process and by the clock on the wall; medians are
printed, and the median of the ratios of a round, above 1 where speculation is faster. Prompts are
computed before and cached: they take the same time with speculation and without.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from pydoc_data.topics import topics
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

from paceline import LLM, SamplingParams
from paceline.core.request import Sequence
from paceline.runner.proposers.suffix import PastOutputs, Suffix
from paceline.sched.lifecycle.arrivals import Arrivals
from paceline.text.tokenizer import Tokenizer

# Temperatures. "recurring" is prose that the proposer has seen as the output of another request.
KINDS = {
    "random": 1.5,
    "drawn": 1.0,
    "prose": 0.0,
    "copying": 0.0,
    "editing": 0.0,
    "recurring": 0.0,
}
AT_ONCE = (1, 4, 12, 32)
CASES = [f"{kind}:{count}" for kind in KINDS for count in AT_ONCE]
PROMPT, PASSAGE = 96, 64  # tokens
OUTPUT = 96  # tokens
BLOCK = 16  # tokens, of the KV cache
MACHINE = {"cpu": platform.machine()}
PROSE = 0.96  # share of letters, spaces and commas in a text without formulas
EXAMPLE = (
    "Every object has a type. The type of an object says which operations the object supports, "
    "and it does not change while the object exists."
)
Line = dict[str, Any]


class Run(NamedTuple):
    """How fast one side was, once, and what became of its drafts."""

    cpu_tps: float
    wall_tps: float
    drafted: int
    accepted: int


def no_drafts(_arrivals: Arrivals, _sequence: Sequence) -> int:
    """The most drafts of a sequence in an engine without speculation."""
    return 0


class Engine:
    """One engine for both sides, so that weights, caches and memory are the same."""

    def __init__(self, options: argparse.Namespace, proposer: str) -> None:
        self._llm = LLM(
            options.model,
            threads=options.threads,
            max_num_seqs=max(AT_ONCE),
            max_model_len=512,
            speculative_config={
                "method": proposer,
                "model": options.draft_model,
                "num_speculative_tokens": options.drafts,
            },
        )
        self.tokenizer = self._llm._frontend.tokenizer

    def forget_outputs(self) -> None:
        """Begin with a proposer that has seen no output."""
        runner: Any = self._llm._engine._runner
        drafter = runner._drafter
        if isinstance(drafter, Suffix):
            drafter._read()
            drafter._past = PastOutputs(drafter._past.most_outputs)

    def close(self) -> None:
        self._llm.close()

    @property
    def _stats(self) -> dict[str, int]:
        return self._llm._engine.scheduler.stats.to_dict()

    def run(self, prompts: list[list[int]], temperature: float, may_draft: bool) -> Run:
        """Without `may_draft`, as an engine without speculation: no sequence may have drafts."""
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=OUTPUT, ignore_eos=True)
        first = SamplingParams(temperature=0.0, max_tokens=1)
        self._llm.generate(prompts, first, progress=False)  # computes the prompts
        with patch.object(Arrivals, "drafts", Arrivals.drafts if may_draft else no_drafts):
            before, wall, cpu = self._stats, time.perf_counter(), time.process_time()
            outputs = self._llm.generate(prompts, params, progress=False)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        after = self._stats
        tokens = sum(output.usage.completion_tokens for output in outputs)
        drafted, accepted = (after[name] - before[name] for name in ("drafted", "accepted"))
        return Run(tokens / cpu, tokens / wall, drafted, accepted)


def passages(tokenizer: Tokenizer) -> list[list[int]]:
    """Pieces of Python's help texts, each of its own."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = list(tokenizer.encode(text))
    return [ids[at : at + PROMPT] for at in range(0, len(ids) - PROMPT, 4 * PROMPT)]


def prompts_of(kind: str, count: int, seed: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Random tokens, which a high temperature continues; or a text that goes on; or a passage three
    times and its beginning once more, which most models continue by copying it; or an example of
    an edit, and a passage that is to be quoted with the same edit. All but one token fill whole
    blocks."""
    found = texts_of(kind, count, seed, tokenizer)
    return [one[(len(one) - 1) % BLOCK :] for one in found]


def texts_of(kind: str, count: int, seed: int, tokenizer: Tokenizer) -> list[list[int]]:
    random = Random(seed)
    if kind == "random":
        return [[random.randrange(1000, 40_000) for _ in range(PROMPT)] for _ in range(count)]
    found = random.sample(passages(tokenizer), count)
    if kind == "editing":
        texts = [" ".join(tokenizer.decode(one).split()) for one in passages(tokenizer)]
        plain = [one for one in texts if sum(map(is_plain, one)) > PROSE * len(one)]
        return [list(tokenizer.encode(edited(one))) for one in random.sample(plain, count)]
    if kind != "copying":
        return found
    return [[*one[:PASSAGE], *one[:PASSAGE], *one[:PASSAGE], *one[:8]] for one in found]


def is_plain(letter: str) -> bool:
    return letter.isalpha() or letter in " ,."


def edited(text: str) -> str:
    """An example of an edit, and a text of which the same edit is to come."""
    done = EXAMPLE.replace("object", "OBJECT")
    return f"Original: {EXAMPLE}\nEdited: {done}\n\nOriginal: {text}\nEdited:"


def line_of(case: str, plain: list[Run], drafted: list[Run]) -> Line:
    line: Line = {"case": case}
    for name in ("cpu", "wall"):
        ours, others = ([getattr(run, f"{name}_tps") for run in runs] for runs in (drafted, plain))
        ratios = [one / other for one, other in zip(ours, others, strict=True)]
        line[f"{name}_plain_tps"] = round(statistics.median(others), 1)
        line[f"{name}_drafted_tps"] = round(statistics.median(ours), 1)
        line[f"{name}_ratio"] = round(statistics.median(ratios), 3)
        line[f"{name}_ratio_low"], line[f"{name}_ratio_high"] = (
            round(end(ratios), 3) for end in (min, max)
        )
    line["drafted"] = sum(run.drafted for run in drafted)
    line["accepted"] = sum(run.accepted for run in drafted)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure speculation; prints JSON lines.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--proposers", default="ngram,suffix")
    parser.add_argument("--draft-model", help="of draft_model and eagle3")
    parser.add_argument("--json", type=Path, help="save the lines as well")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    if unknown := sorted(set(wanted) - set(CASES)):
        parser.error(f"unknown cases {unknown}; there are {', '.join(CASES)}")
    lines: list[Line] = []
    for proposer in options.proposers.split(","):
        about = {"proposer": proposer, "threads": options.threads, "drafts": options.drafts}
        engine = Engine(options, proposer)
        for may_draft in (False, True):  # warms the code paths
            engine.run(prompts_of("copying", 1, 0, engine.tokenizer), 0.0, may_draft)
        for case in wanted:
            lines.append(compared(engine, case, options.rounds) | about | MACHINE)
            print(json.dumps(lines[-1]), flush=True)
            if options.json:
                options.json.write_text("".join(json.dumps(one) + "\n" for one in lines))
        engine.close()


def compared(engine: Engine, case: str, rounds: int) -> Line:
    kind, _, count = case.partition(":")
    runs: dict[bool, list[Run]] = {False: [], True: []}
    for seed in range(rounds):
        prompts = prompts_of(kind, int(count), seed, engine.tokenizer)
        for may_draft in (seed % 2 == 1, seed % 2 == 0):
            if kind != "recurring":
                engine.forget_outputs()
            elif seed % 2 == 0 and may_draft:  # this side begins, and there is no output yet
                engine.run(prompts, KINDS[kind], False)
            runs[may_draft].append(engine.run(prompts, KINDS[kind], may_draft))
    return line_of(case, runs[False], runs[True])


if __name__ == "__main__":
    main()
