"""Time one batch on a CPU, alone and beside busy loops on the same cores; one JSON line per case.

    python benchmarks/neighbours.py MODEL.gguf --llama FOLDER --json results.jsonl

Every side has the same cores, prompts of the same length and the same number of new tokens. The
sides take turns, `--rounds` times.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Protocol

SEQUENCES, PROMPT, OUTPUT = 8, 64, 32
LOOP = "while True: pass"
Line = dict[str, Any]


class Side(Protocol):
    def batch(self) -> float:
        """Seconds of one batch."""
        ...


class Ours:
    """`LLM`, after torch has been imported or before."""

    def __init__(self, model: str, threads: int, settings: dict[str, Any]) -> None:
        from paceline import LLM, SamplingParams

        fixed = {"max_model_len": 256, "kv_cache_gib": 0.5, "enable_prefix_caching": False}
        self._llm = LLM(model, threads=threads, device="cpu", **fixed, **settings)
        self._params = SamplingParams(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True)

    def batch(self) -> float:
        random = Random(0)
        prompts = [[random.randrange(9, 40_000) for _ in range(PROMPT)] for _ in range(SEQUENCES)]
        begin = perf_counter()
        self._llm.generate(prompts, self._params, progress=False)
        return perf_counter() - begin


class LlamaCpp:
    """llama-batched-bench on the Q8_0 file; its own times, without loading."""

    def __init__(self, folder: Path, threads: int) -> None:
        options = ["-npp", PROMPT, "-ntg", OUTPUT, "-npl", SEQUENCES, "-t", threads, "-tb", threads]
        options += ["-c", SEQUENCES * (PROMPT + OUTPUT), "--output-format", "jsonl"]
        program = folder / "build" / "bin" / "llama-batched-bench"
        self._command = [program, "-m", folder / "model-q8_0.gguf", *options]

    def batch(self) -> float:
        done = subprocess.run(
            [str(word) for word in self._command], capture_output=True, text=True, check=True
        )
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
        return json.loads(line)["t"]


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def cpu_s() -> float:
    """CPU seconds of this process and of the finished ones that it started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(sides: dict[str, Side], loops: list[int], rounds: int) -> Iterator[Line]:
    """Rounds with neighbours follow rounds without them, so that all see the same minutes."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for count in loops:
            for name, side in sides.items():
                before = cpu_s()
                with busy_loops(count):
                    seconds = side.batch()
                    used = cpu_s() - before  # the loops are not finished yet
                found.setdefault((name, count), []).append((seconds, used))
    for (name, count), times in found.items():
        walls = [wall for wall, _ in times]
        alone = statistics.median(wall for wall, _ in found[name, loops[0]])
        yield {
            "side": name,
            "busy_loops": count,
            "batch_s": round(statistics.median(walls), 3),
            "batch_best_s": round(min(walls), 3),
            "batch_worst_s": round(max(walls), 3),
            "cpu_s": round(statistics.median(cpu for _, cpu in times), 3),
            "times_alone": round(statistics.median(walls) / alone, 2),
        }


def sides_of(options: argparse.Namespace) -> dict[str, Side]:
    if options.torch_first:
        import torch

        torch.ones(1 << 20).sum()  # starts its threads
    sides: dict[str, Side] = {}
    for weights in options.weights.split(","):
        settings = {"weights": weights, "load_format": options.load_format}
        sides[f"ours {weights}"] = Ours(options.model, options.cores, settings)
    if options.llama:
        sides["llama.cpp Q8_0"] = LlamaCpp(options.llama, options.cores)
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", help="a .gguf file or a folder")
    parser.add_argument("--llama", type=Path, help="the folder that setup.sh filled")
    parser.add_argument("--weights", default="int8", help="of ours: int8,float32")
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"])
    parser.add_argument("--torch-first", action="store_true", help="import torch before paceline")
    parser.add_argument("--loops", default="0,1", help="busy loops beside the batch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="save the lines as well")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    sides = sides_of(options)
    for side in sides.values():
        side.batch()  # warms the code paths
    about = {
        "torch_first": options.torch_first,
        "cores": options.cores,
        "cpu": platform.processor() or platform.machine(),
    }
    lines: list[str] = []
    loops = [int(count) for count in options.loops.split(",")]
    for line in measured(sides, loops, options.rounds):
        lines.append(json.dumps(line | about))
        print(lines[-1], flush=True)
    if options.json:
        options.json.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
