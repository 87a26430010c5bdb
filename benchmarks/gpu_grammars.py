"""Decoding under a JSON schema on a GPU, against decoding without one; prints JSON lines.

    python -m benchmarks.gpu_grammars qwen3-0.6b 64

All requests run together, at depth 2. Weights are random, and so are the documents; the vocabulary
has the size of the model's, made of bytes and words. It needs xgrammar.
"""

import sys
from concurrent.futures import Future
from itertools import islice, pairwise, product
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.gpu import DEPTH, Bench, drawn
from paceline import Request
from paceline.core.constraint import Constraint
from paceline.core.sampling import Sampling
from paceline.engine.core.constrained_requests import ConstrainedRequests
from paceline.engine.core.engine import Engine
from paceline.runner.models.config import ModelConfig
from paceline.structured.backend import Grammar, load_backend
from paceline.structured.compiler import GrammarCounts
from paceline.structured.token_table import TokenTable

ROUNDS, PROMPT, OUTPUT = 5, 64, 128
END = 256  # behind the bytes
LETTERS = b"etaoinshrdlucmfwypvbgkqjxz"
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "code": {"type": "string", "pattern": "^[0-9]{5}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["reader", "writer", "editor"]},
        "tags": {"type": "array", "items": {"type": "boolean"}},
    },
    "required": ["code", "age", "kind", "tags"],
}
SCHEMA = Constraint.json({"type": "array", "items": ITEM, "minItems": 99})


def vocabulary(size: int) -> TokenTable:
    """All bytes, an end token, and words of letters, short ones first, with a space or without."""
    spelled = [bytes([byte]) for byte in range(256)] + [b""]
    words = (bytes(word) for length in range(2, 9) for word in product(LETTERS, repeat=length))
    pairs = (one for word in words for one in (word, b" " + word))
    spelled += islice(pairs, size - len(spelled))
    return TokenTable(tuple(spelled), (END,))


class CompilesAtOnce:
    """Compiles each constraint once, on the caller's thread."""

    counts = GrammarCounts()

    def __init__(self, table: TokenTable) -> None:
        self._backend = load_backend("xgrammar", table)
        self._known: dict[Constraint, Future[Grammar]] = {}

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        if constraint not in self._known:
            self._known[constraint] = Future()
            self._known[constraint].set_result(self._backend.compile(constraint))
        return self._known[constraint]

    def close(self) -> None:
        """There is no other thread."""


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
    cases: dict[str, dict[str, Any]] = {"free": {}, "schema": {"constraint": SCHEMA}}
    for fields in cases.values():
        step_s(bench, masks, int(rows), **fields)
    taken: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case, fields in cases.items():
            taken[case].append(step_s(bench, masks, int(rows), **fields))
    free, held = (min(taken[case]) for case in cases)
    steps = {f"{case}_ms": [round(1e3 * one, 3) for one in taken[case]] for case in cases}
    bench.say(case="grammars", rows=int(rows), ratio=round(held / free, 3), **steps)


if __name__ == "__main__":
    main()
