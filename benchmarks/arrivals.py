"""Gaps between the tokens of running streams while many prompts arrive; one JSON line per run.

    python -m benchmarks.arrivals --clients 256 --prompts 1000 --step-ms 20

The server is `paceline serve` with the null device, whose steps take `--step-ms`. First the prompts
arrive while nothing runs: `arrival_us` is the CPU time of one in each role. Then `--clients`
streams decode for some seconds, and as many prompts arrive again at once. `alone` has the gaps
of the streams before that, `burst` those until the last prompt has its answer: p50, p99 and the
longest, in milliseconds. Each prompt has about 1,000 tokens of English and asks for 4 tokens.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pydoc_data.topics import topics
from time import monotonic, sleep
from typing import Any

from benchmarks.null_device import STEP_MS
from benchmarks.processes import by_role, cpu_s
from benchmarks.raw_client import Load, RawRequest, Script, load, ms, quantile
from benchmarks.servers import started
from paceline.hub.catalogue import DEFAULT

QUIET_S = 3.0  # in which the streams run alone; the first second is not counted
BURST_S = 12.0  # at most, in which they run while the prompts are answered
CHARACTERS = 4500  # of a prompt: about 1,000 tokens
NEW_TOKENS = 4  # of each prompt
MAX_MODEL_LEN = 4096


def prompts_of(count: int, run: int) -> list[Script]:
    """Pieces of Python's help texts; each begins with its own numbers, so that none is cached."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    starts = [number * 7919 % (len(text) - CHARACTERS) for number in range(count)]
    texts = [
        f"{run}.{number}. {text[start : start + CHARACTERS]}" for number, start in enumerate(starts)
    ]
    return [[RawRequest.completion(one, NEW_TOKENS)] for one in texts]


def measured(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures of each run."""
    flags = {"max-num-seqs": options.clients + options.prompts, "max-model-len": MAX_MODEL_LEN}
    if options.api_server_count:
        flags["api-server-count"] = options.api_server_count
    command = [sys.executable, "-m", "benchmarks.null_server", "serve", options.model]
    command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with started(command, **{STEP_MS: str(options.step_ms)}) as (pid, port):
        load(port, prompts_of(16, -1), 1)  # warms the code paths
        for run in range(options.repeat):
            before = cpu_s(pid)
            load(port, prompts_of(options.prompts, 2 * run), 1)
            roles = by_role(pid, before, cpu_s(pid))
            costs = {name: round(1e6 * spent / options.prompts) for name, spent in roles.items()}
            yield {"arrival_us": costs} | gaps(
                port, options, prompts_of(options.prompts, 2 * run + 1)
            )


def gaps(port: int, options: argparse.Namespace, prompts: Sequence[Script]) -> dict[str, Any]:
    """What the streams see before the prompts arrive and while they are answered."""
    tokens = min(int((QUIET_S + BURST_S) * 1e3 / options.step_ms), MAX_MODEL_LEN - 16)
    scripts = [[RawRequest.completion("The", tokens)] for _ in range(options.clients)]
    with ThreadPoolExecutor(1) as thread:
        streams = thread.submit(load, port, scripts, 1)
        sleep(QUIET_S)
        begin = monotonic()
        answers = load(port, prompts, 1)
        end = monotonic()
        seen = streams.result()
    first = sorted(one.reads[0] - one.sent for one in answers.streams if one.reads)
    return {
        "answered": sum(not one.error for one in answers.streams),
        "ttft_p50_ms": ms(quantile(first, 0.5)),
        "alone": spread(seen, begin - QUIET_S + 1.0, begin),
        "burst": spread(seen, begin, end),
    }


def spread(seen: Load, begin: float, end: float) -> dict[str, float]:
    """Gaps that end in a span of time."""
    pairs = (pair for one in seen.streams for pair in pairwise(one.reads))
    found = sorted(after - before for before, after in pairs if begin <= after < end)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    return {name: ms(quantile(found, share)) for name, share in shares.items()}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT, help="whose tokenizer is used")
    parser.add_argument("--clients", type=int, default=256, help="streams that decode")
    parser.add_argument("--prompts", type=int, default=1000, help="prompts that arrive at once")
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of a step")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--api-server-count", type=int, default=0, help="0: the server's default")
    options = parser.parse_args(given)
    about = {"machine": os.uname().machine, "cores": os.cpu_count()} | vars(options)
    for figures in measured(options):
        print(json.dumps(about | figures), flush=True)


if __name__ == "__main__":
    main()
