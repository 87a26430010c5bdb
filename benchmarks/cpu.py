"""Measure a model on a CPU beside llama.cpp and transformers; one JSON line per case.

    benchmarks/peers/llama_cpp/setup.sh FOLDER MODEL.gguf                  once
    python benchmarks/cpu.py MODEL.gguf --llama FOLDER --json results.jsonl

The sides take turns, `--rounds` times; medians, and the best of each side, are printed.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from math import exp
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import cpu_served as served
import torch
from cpu_sides import LlamaCpp, Ours, Side, Transformers

from paceline.runner.attention_backend import load
from paceline.runner.batch import Batch
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.linear_choice import KERNELS
from paceline.runner.models.model import Model
from paceline.runner.weights.files import open_checkpoint
from paceline.text.tokenizer import Tokenizer

AT_ONCE = (1, 8, 32)
CASES = ("prefill", *(f"decode:{count}" for count in AT_ONCE))
SERVED = tuple(f"served:{count}" for count in AT_ONCE)
PERPLEXITY = "perplexity"
WINDOW, WINDOWS = 512, 8  # tokens of a text that is scored, and how many
Line = dict[str, Any]


def told(case: str, rates: dict[str, list[float]]) -> Line:
    """Rates in tokens a second by side, as a line: ratios above 1 say that ours is faster."""
    line: Line = {"case": case}
    for name, found in rates.items():
        line |= {f"{name}_tps": round(statistics.median(found), 1)}
        line |= {f"{name}_best": round(max(found), 1)}
    for name, found in rates.items():
        if name != "ours":
            pairs = [our / their for our, their in zip(rates["ours"], found, strict=True)]
            line[f"ratio_{name}"] = round(statistics.median(pairs), 2)
            line[f"ratio_{name}_best"] = round(max(rates["ours"]) / max(found), 2)
            line[f"ratio_{name}_low"], line[f"ratio_{name}_high"] = (
                round(end(pairs), 2) for end in (min, max)
            )
    return line


def in_turns(rounds: int, sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            rates[name].append(side())
    return rates


def offline(options: argparse.Namespace, cases: list[str]) -> Iterator[Line]:
    sides: dict[str, Side] = {
        "ours": Ours(options.model, options.threads, options.weights),
        "transformers": Transformers(options.model),
    }
    if options.llama:
        sides["llama_cpp"] = LlamaCpp(options.llama, options.threads)
    for side in sides.values():
        side.decode(1)  # warms the code paths
    for case in cases:
        count = case.partition(":")[2]
        runs: dict[str, Callable[[], float]] = {
            name: partial(side.decode, int(count)) if count else side.prefill
            for name, side in sides.items()
        }
        yield told(case, in_turns(options.rounds, runs))


def over_http(options: argparse.Namespace, cases: list[str]) -> Iterator[Line]:
    ports = {"ours": served.free_port()}
    model, threads = options.model, options.threads
    commands = {"ours": served.ours(model, threads, options.weights, ports["ours"])}
    if options.llama:
        ports["llama_cpp"] = served.free_port()
        commands["llama_cpp"] = served.llama_cpp(options.llama, threads, ports["llama_cpp"])
    with ExitStack() as stack:
        for name, command in commands.items():
            stack.enter_context(served.running(command, ports[name]))
            served.output_rate(ports[name], 2)
        for case in cases:
            clients = int(case.partition(":")[2])
            runs: dict[str, Callable[[], float]] = {
                name: partial(served.output_rate, port, clients) for name, port in ports.items()
            }
            yield told(case, in_turns(options.rounds, runs))


def perplexity(path: Path, kind: str) -> float:
    """Of the help texts of Python, in windows that begin anew."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = torch.tensor(Tokenizer.load(path).encode(text)[: WINDOW * WINDOWS])
    model = Model.load(open_checkpoint(path), weights=kind)
    kv, attention = KVStore(model.config, 1, WINDOW), load("native")
    place, lost = torch.arange(WINDOW), 0.0
    for tokens in ids.view(-1, WINDOW):
        ends, block = torch.tensor([0, WINDOW]), torch.zeros(1, 1, dtype=torch.int64)
        batch = Batch(tokens, place, ends, ends[1:], block, place, place)
        scores = model.logits(model.forward(batch, kv, attention))[:-1].log_softmax(-1)
        lost -= float(scores.gather(1, tokens[1:, None]).sum())
    return exp(lost / (WINDOWS * (WINDOW - 1)))


def perplexities(path: Path) -> Line:
    found = {f"{kind}_perplexity": round(perplexity(path, kind), 4) for kind in KERNELS}
    return {"case": PERPLEXITY} | found


def main() -> None:
    known = [*CASES, *SERVED, PERPLEXITY]
    parser = argparse.ArgumentParser(description="Measure a model on a CPU; prints JSON lines.")
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--llama", type=Path, help="the folder that setup.sh filled")
    parser.add_argument("--cases", default=",".join(known), help="of " + ", ".join(known))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--weights", default="int8")
    parser.add_argument("--json", type=Path, help="save the lines as well")
    options = parser.parse_args()
    wanted = options.cases.split(",")
    if unknown := sorted(set(wanted) - set(known)):
        parser.error(f"unknown cases {unknown}; there are {', '.join(known)}")
    torch.set_num_threads(options.threads)
    lines: list[Line] = []
    about = {
        "threads": options.threads,
        "weights": options.weights,
        "cpu": platform.processor() or platform.machine(),
    }
    for line in measured(options, wanted):
        lines.append(line | about)
        print(json.dumps(lines[-1]), flush=True)
        if options.json:
            options.json.write_text("".join(json.dumps(one) + "\n" for one in lines))


def measured(options: argparse.Namespace, wanted: list[str]) -> Iterator[Line]:
    if PERPLEXITY in wanted:
        yield perplexities(options.model)
    if cases := [case for case in wanted if case in CASES]:
        yield from offline(options, cases)
    if cases := [case for case in wanted if case in SERVED]:
        yield from over_http(options, cases)


if __name__ == "__main__":
    main()
