"""Goodput of servers on one GPU: loads that come at their own rate, served under several settings.

    python -m benchmarks.gpu_goodput rates --trace azure.csv --model qwen3-14b --rates 8,11,15
    python -m benchmarks.gpu_goodput tenants --tenants 3,40
    python -m benchmarks.gpu_goodput --tiny            # a tiny model on any device, to try it

Parts: `rates` (a trace, or prompts of 600 tokens, at each rate) and `tenants` (one at the first
rate of `--tenants`, alone, and beside another one at the second rate). A side is `NAME=FLAGS` of
`paceline serve`; it has targets if NAME begins with `slo`. The servers of all sides start together,
on one GPU, and get the same requests in turn. A request is good if its first token and all but a
hundredth of the gaps came in time, as far as it was seen: a run ends `--drain` seconds after its
last request.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

from benchmarks.gpu_served import emit, model_folder
from benchmarks.raw_client import CUT, Load, RawRequest, RawStream, load, ms, quantile
from benchmarks.servers import started
from benchmarks.tables import table
from paceline.sched.service.promises import LATE_GAPS
from paceline.simulator.loads import Clients, LoadSource, SyntheticLoad, TraceLoad
from paceline.workloads.call import Call, LengthDistribution, token_ids

PARTS = ("rates", "tenants")
SIDES = ("slo=", "fcfs=--policy fcfs", "fcfs 1024=--policy fcfs --max-num-batched-tokens 1024")
VOCAB, SEED = 10_000, 0
QUIET, FLOOD = "quiet", "flood"
COLUMNS = {
    "side": "side",
    "goodput": "goodput/s",
    "attained": "attained",
    "ttft_p50_ms": "TTFT p50 ms",
    "ttft_p99_ms": "TTFT p99",
    "itl_p99_ms": "ITL p99",
    "tokens_per_s": "tokens/s",
    "requests": "requests",
    "refused": "failed",
}
Line = dict[str, Any]
Targets = tuple[float, float]  # milliseconds: of the first token, and between two


def is_good(stream: RawStream, targets: Targets) -> bool:
    ttft, itl = targets
    if stream.error not in ("", CUT) or not stream.reads:
        return False
    gaps = [1e3 * (after - before) for before, after in pairwise(stream.reads)]
    late = sum(gap > itl for gap in gaps)
    return 1e3 * (stream.reads[0] - stream.sent) <= ttft and late * LATE_GAPS <= len(gaps)


def figures(streams: Sequence[RawStream], rate: float, targets: Targets) -> Line:
    """What the clients saw."""
    seen = [one for one in streams if one.reads]
    first = sorted(one.reads[0] - one.sent for one in seen)
    gaps = sorted(after - before for one in seen for before, after in pairwise(one.reads))
    good = sum(is_good(one, targets) for one in streams) / max(len(streams), 1)
    begin = min((one.sent for one in seen), default=0.0)
    seconds = max((one.reads[-1] for one in seen), default=1.0) - begin
    return {
        "rate": rate,
        "goodput": round(rate * good, 2),
        "attained": round(good, 3),
        "ttft_p50_ms": ms(quantile(first, 0.5)),
        "ttft_p99_ms": ms(quantile(first, 0.99)),
        "itl_p99_ms": ms(quantile(gaps, 0.99)),
        "tokens_per_s": round(sum(one.events for one in seen) / seconds),
        "requests": len(streams),
        "refused": sum(one.error not in ("", CUT) for one in streams),
    }


# -- loads --------------------------------------------------------------------


def requests_of(
    source: LoadSource, rate: float, seed: int, most: tuple[int, int], **fields: Any
) -> list[RawRequest]:
    """The requests of a load, so many per second; each seed has other prompts. `most` are tokens in
    and out."""
    found: list[RawRequest] = []
    for one in source.workload().at_rate(rate).requests:
        assert isinstance(one.content, tuple)
        call = Call(one.at_s, one.content, one.output_len).cut(*most)
        prompt = token_ids(call, VOCAB, seed)
        found.append(RawRequest.completion(prompt, call.output_len, call.at_s, **fields))
    return found


def source_of(options: argparse.Namespace, rate: float, seed: int = 0) -> LoadSource:
    """As many requests as come in `--seconds`."""
    count = max(round(rate * options.seconds), 2)
    if options.trace is not None:
        return TraceLoad(options.trace, count)
    input_len = LengthDistribution.parse(options.input_len)
    output_len = LengthDistribution.parse(options.output_len)
    clients = Clients(seed=seed)
    return SyntheticLoad(count, input_len=input_len, output_len=output_len, clients=clients)


class Bench:
    """Sends loads to a server."""

    def __init__(self, options: argparse.Namespace, port: int, host: str = "127.0.0.1") -> None:
        self._options, self._port, self._host = options, port, host
        self._targets = options.ttft_target_ms, options.itl_target_ms
        self._most = options.max_input_len, options.max_output_len
        self._seeds = iter(range(SEED, sys.maxsize))

    def warm(self) -> None:
        """Run steps of several sizes, and teach the server its step times."""
        length = LengthDistribution("even", 16, self._options.max_input_len // 4)
        source = SyntheticLoad(round(16 * self._options.warm), input_len=length)
        self._sent(requests_of(source, 16.0, next(self._seeds), self._most), self._options.warm)

    def rates(self) -> Iterator[Line]:
        for rate in self._options.rates:
            source = source_of(self._options, rate)
            asked = requests_of(source, rate, next(self._seeds), self._most)
            streams = self._sent(asked, self._options.seconds).streams
            yield figures(streams, rate, self._targets)

    def tenants(self) -> Iterator[Line]:
        """Of the first tenant: alone, and beside the second one."""
        quiet, flood = self._options.tenants[:2]
        for others in (0.0, flood):
            asked: list[RawRequest] = []
            for name, rate, seed in ((QUIET, quiet, 1), (FLOOD, others, 2)):
                if rate:
                    source, prompts = source_of(self._options, rate, seed), next(self._seeds)
                    more = {"name": name, "user": name}
                    asked += requests_of(source, rate, prompts, self._most, **more)
            streams = self._sent(asked, self._options.seconds).streams
            own = [one for one in streams if one.name == QUIET]
            yield figures(own, quiet, self._targets) | {"rate": f"{quiet:g} beside {others:g}"}

    def _sent(self, requests: list[RawRequest], seconds: float) -> Load:
        until_s = seconds + self._options.drain
        found = load(
            self._port,
            [[one] for one in requests],
            self._options.client_processes,
            self._host,
            until_s,
        )
        failed = [one.error for one in found.streams if one.error not in ("", CUT)]
        if failed:
            print(f"{len(failed)} requests failed; the first: {failed[0]}", file=sys.stderr)
        sleep(self._options.pause)  # what was cut has ended
        return found


# -- servers ------------------------------------------------------------------


def command(folder: Path, flags: str, options: argparse.Namespace, has_targets: bool) -> list[str]:
    words = [sys.executable, "-m", "paceline", "serve", str(folder), "--load-format", "dummy"]
    words += ["--max-num-seqs", str(options.max_num_seqs)]
    words += ["--max-model-len", str(options.max_input_len + options.max_output_len)]
    if has_targets:
        words += ["--ttft-target-ms", str(options.ttft_target_ms)]
        words += ["--itl-target-ms", str(options.itl_target_ms)]
    return [*words, *shlex.split(options.serve_flags), *shlex.split(flags)]


def served(options: argparse.Namespace, folder: Path) -> Iterator[Line]:
    """A line for each part, load and side."""
    sides = dict(one.partition("=")[::2] for one in options.sides)
    with ExitStack() as stack, ThreadPoolExecutor(len(sides)) as threads:
        begin = perf_counter()
        starts = {
            name: started(command(folder, flags, options, name.startswith("slo")))
            for name, flags in sides.items()
        }
        entered = [threads.submit(stack.enter_context, one) for one in starts.values()]
        ports = [one.result()[1] for one in entered]
        print(f"{len(ports)} servers: {perf_counter() - begin:.1f} s", file=sys.stderr)
        benches = {name: Bench(options, port) for name, port in zip(sides, ports, strict=True)}
        list(threads.map(Bench.warm, benches.values()))
        for part in options.parts or PARTS:
            runs = {name: getattr(bench, part)() for name, bench in benches.items()}
            while found := [(name, next(lines, None)) for name, lines in runs.items()]:
                if found[0][1] is None:
                    break
                yield from ({"case": part, "side": name} | (line or {}) for name, line in found)


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """What is sent, and what is good."""
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--input-len", default="lognormal:600:1.0")
    parser.add_argument("--output-len", default="lognormal:120:0.7")
    parser.add_argument("--max-input-len", type=int, default=8000)
    parser.add_argument("--max-output-len", type=int, default=400)
    parser.add_argument("--rates", type=numbers, help="requests per second, such as 5,10,20")
    parser.add_argument("--ttft-target-ms", type=float, default=500.0)
    parser.add_argument("--itl-target-ms", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=8.0, help="in which requests come")
    parser.add_argument("--drain", type=float, default=2.5, help="seconds behind them")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two runs")
    parser.add_argument("--warm", type=float, default=3.0, help="seconds in which a server warms")
    parser.add_argument("--client-processes", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the lines as well")


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--model", default="qwen3-14b", help="a shape, or a folder")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, and few requests")
    parser.add_argument("--side", dest="sides", action="append", metavar="NAME=FLAGS")
    parser.add_argument("--serve-flags", default="", help="of all sides")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--tenants", type=numbers, default=[4.0, 40.0], help="requests per second")
    add_load_options(parser)
    options = parser.parse_args()
    options.sides, options.rates = options.sides or list(SIDES), options.rates or [4.0, 40.0]
    if options.tiny:
        options.model, options.max_input_len, options.max_output_len = "tiny", 2000, 20
        options.seconds, options.client_processes, options.max_num_seqs = 4.0, 1, 64
    return options


def main() -> None:
    options = arguments()
    lines: list[Line] = []
    with TemporaryDirectory() as parent:
        for line in served(options, model_folder(Path(parent), options.model)):
            lines.append(line)
            emit(line, options.json)
    for part in dict.fromkeys(line["case"] for line in lines):
        rows = [line | {"case": f"{part} {line['rate']}"} for line in lines if line["case"] == part]
        print(f"\n{table(rows, COLUMNS)}", flush=True)


if __name__ == "__main__":
    main()
