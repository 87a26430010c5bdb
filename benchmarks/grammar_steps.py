"""What the host does for a step under a grammar, on a device that takes no time; prints JSON lines.

    python -m benchmarks.grammar_steps 64 --backend xgrammar

Times are CPU times of the engine's thread and of all threads, for one step of so many rows at depth
2, as medians: what is not hidden behind the device is at most that. What stands in for the device
samples among the allowed tokens once, and repeats these tokens when it is timed. The last line has
the steps of a schema with long keys where tokens are bytes: with tokens that are forced, and if
each is sampled.
"""

import argparse
import json
import platform
from collections import deque
from statistics import median
from time import process_time_ns, thread_time_ns
from typing import Any

import numpy as np

from benchmarks.grammar_cases import CASES, LONG_KEYS, CompilesAtOnce, vocabulary
from paceline import Request, Scheduler
from paceline.core.capabilities import Capabilities
from paceline.core.constraint import Constraint
from paceline.core.masks import MaskRows
from paceline.core.plan import Plan, StepResult
from paceline.core.sampling import Sampling
from paceline.engine.grammar.constrained_requests import ConstrainedRequests
from paceline.engine.loop.engine import Engine
from paceline.structured.backend import BACKENDS

VOCAB, PROMPT, OUTPUT, DEPTH, ROUNDS = 151_936, 8, 96, 2, 5
BYTES_AND_END = 257
EDGE = 8  # steps at the start and at the end that are not counted


class SamplesAtOnce:
    """A device that has sampled as soon as it has its masks. Without a script it writes one: the
    ids of each step."""

    capabilities = Capabilities(constraints=True, logprobs=True)

    def __init__(self, masks: ConstrainedRequests, script: list[np.ndarray] | None) -> None:
        self._masks, self._random = masks, np.random.default_rng(0)
        self._flight: deque[Plan | StepResult] = deque()
        self._script = None if script is None else iter(script)
        self.written: list[np.ndarray] = []

    def launch(self, plan: Plan) -> None:
        self._sample_latest()
        if not plan.empty:
            self._flight.append(plan)

    def wait(self) -> StepResult:
        if len(self._flight) == 1:
            self._sample_latest()
        found = self._flight.popleft()
        assert isinstance(found, StepResult)
        return found

    def _sample_latest(self) -> None:
        plan = self._flight[-1] if self._flight else None
        if isinstance(plan, Plan):
            wanted = np.flatnonzero(plan.rows.samples)
            masks = self._masks.fill(plan, wanted) if self._masks.wants(plan) else None
            ids = self._sampled(plan, wanted, masks) if self._script is None else next(self._script)
            self._flight[-1] = StepResult(ids, plan.rows.samples.astype(np.int32))

    def _sampled(self, plan: Plan, wanted: np.ndarray, masks: MaskRows | None) -> np.ndarray:
        ids = np.full((len(plan.rows), 1), -1, np.int32)
        ids[wanted, 0] = 97
        if masks is not None:
            for line, row in zip(masks.line.tolist(), masks.rows, strict=True):
                ids[wanted[line], 0] = self._allowed(row)
        self.written.append(ids)
        return ids

    def _allowed(self, row: np.ndarray) -> int:
        """A token of a random word of the mask that allows one."""
        word = int(self._random.choice(np.flatnonzero(row)))
        bits = int(np.uint32(row[word]))
        return 32 * word + int(self._random.choice([b for b in range(32) if bits >> b & 1]))

    def is_lost(self) -> bool:
        return False

    def close(self) -> None:
        """There is nothing to release."""


def times() -> tuple[int, int]:
    return thread_time_ns(), process_time_ns()


def run(
    masks: ConstrainedRequests, rows: int, runner: SamplesAtOnce, **fields: Any
) -> dict[str, Any]:
    """Microseconds of a step, of the engine's thread and of all threads, and how many steps."""
    settings = {"max_num_seqs": rows, "max_num_batched_tokens": rows * PROMPT, "block_size": 16}
    size = PROMPT + OUTPUT
    scheduler = Scheduler.create(max_model_len=size, num_blocks=rows * size // 4, **settings)
    engine = Engine(scheduler, runner, depth=DEPTH, constrained=masks)
    for number in range(rows):
        asked = {"max_tokens": OUTPUT, "ignore_eos": True, **fields}
        engine.submit(Request(f"r{number}", [number + 1] * PROMPT, **asked))
    taken: list[list[int]] = []
    while not engine.idle:
        begin = times()
        delivery = engine.turn()
        taken.append([after - before for before, after in zip(begin, times(), strict=True)])
        assert delivery is None or not any(one.message for one in delivery.ended), delivery.ended[0]
    own, every = (round(median(part) / 1e3, 1) for part in zip(*taken[EDGE:-EDGE], strict=True))
    return {"engine_us": own, "all_threads_us": every, "steps": len(taken)}


def step_us(masks: ConstrainedRequests, rows: int, constraint: Constraint | None) -> dict[str, Any]:
    """The best of several runs with the same tokens."""
    first = SamplesAtOnce(masks, None)
    run(masks, rows, first, constraint=constraint)
    found = [
        run(masks, rows, SamplesAtOnce(masks, first.written), constraint=constraint)
        for _ in range(ROUNDS)
    ]
    return min(found, key=lambda one: one["engine_us"])


def steps(options: argparse.Namespace) -> dict[str, int]:
    """Steps under a schema with long keys; log-probabilities are wanted of tokens that a step has
    sampled, so that none is forced."""
    table = vocabulary(BYTES_AND_END)
    masks = ConstrainedRequests(CompilesAtOnce(table, options.backend), table.words, table.eos)
    found: dict[str, int] = {}
    for name, logprobs in (("steps", None), ("steps_if_sampled", 0)):
        fields = {"constraint": LONG_KEYS, "sampling": Sampling(logprobs=logprobs)}
        found[name] = run(masks, options.rows, SamplesAtOnce(masks, None), **fields)["steps"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the host's part of constrained steps.")
    parser.add_argument("rows", type=int, nargs="?", default=64)
    parser.add_argument("--backend", choices=list(BACKENDS), default="xgrammar")
    options = parser.parse_args()
    table = vocabulary(VOCAB)
    masks = ConstrainedRequests(CompilesAtOnce(table, options.backend), table.words, table.eos)
    for case, constraint in {"free": None, **CASES}.items():
        best = step_us(masks, options.rows, constraint)
        named = {"case": case, "backend": options.backend, "rows": options.rows}
        print(json.dumps({**named, **best, "machine": platform.machine()}), flush=True)
    print(json.dumps({"case": "long keys", "backend": options.backend, **steps(options)}))


if __name__ == "__main__":
    main()
