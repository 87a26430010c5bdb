"""Decoding under a JSON schema on a GPU, against decoding without one; prints JSON lines.

    python -m benchmarks.gpu_grammars qwen3-0.6b 64

All requests run together, at depth 2. Weights are random, and so are the documents; the vocabulary
has the size of the model's, made of bytes and words. It needs xgrammar.
"""

import sys
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.gpu import DEPTH, Bench, drawn
from benchmarks.grammar_cases import CASES, CompilesAtOnce, vocabulary
from paceline import Request
from paceline.core.sampling import Sampling
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.engine import Engine
from paceline.runner.models.config import ModelConfig

ROUNDS, PROMPT, OUTPUT = 5, 64, 128


def step_s(bench: Bench, masks: ConstrainedRequests, rows: int, **fields: Any) -> float:
    """The median seconds of a decode step."""
    engine = Engine(bench.scheduler(), bench.runner, depth=DEPTH, constrained=masks)
    for number, prompt in enumerate(drawn(rows, PROMPT)):
        sampling = Sampling(temperature=1.0)
        asked = {"ignore_eos": True, "sampling": sampling, "seed": number, **fields}
        engine.submit(Request(f"r{number}", prompt, max_tokens=OUTPUT, **asked))
    times = [perf_counter()]
    while not engine.idle:
        if (delivery := engine.turn()) is not None:
            assert not any(end.message for end in delivery.ended), delivery.ended
            times.append(perf_counter())
    engine.turn(while_idle=True)  # the runner learns which slots were released
    taken = [end - begin for begin, end in pairwise(times)]
    return median(taken[8:-8])


def main() -> None:
    name, rows = (sys.argv[1:] + ["qwen3-0.6b", "64"][len(sys.argv) - 1 :])[:2]
    table = vocabulary(ModelConfig.of_hf(Bench.shape(name)).vocab)
    masks = ConstrainedRequests(CompilesAtOnce(table), table.words, table.eos)
    bench = Bench(name, "triton", masks=masks)
    cases: dict[str, dict[str, Any]] = {"free": {}}
    cases |= {case: {"constraint": constraint} for case, constraint in CASES.items()}
    for fields in cases.values():
        step_s(bench, masks, int(rows), **fields)
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case, fields in cases.items():
            taken[case].append(step_s(bench, masks, int(rows), **fields))
    free = min(taken["free"])
    for case in CASES:
        steps = {f"{one}_ms": [round(1e3 * s, 3) for s in taken[one]] for one in ("free", case)}
        bench.say(case=case, rows=int(rows), ratio=round(min(taken[case]) / free, 3), **steps)


if __name__ == "__main__":
    main()
