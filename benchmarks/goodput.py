"""Goodput over the rate of a load: requests per second that have their tokens in time.

    python -m benchmarks.goodput                                  simulated, under several policies
    python -m benchmarks.goodput --trace azure.csv --profile h200-qwen3-14b
    python -m benchmarks.goodput --url http://127.0.0.1:8000 --rates 1,2,4,8
    python -m benchmarks.goodput --url ... --peer http://127.0.0.1:8001      two servers in turn

A request is good if its first token came within `--ttft-target-ms` of its arrival, and all but a
hundredth of the gaps between its tokens were within `--itl-target-ms`. Rates of simulations are
shares of the rate at which the profile serves the same load if all of it is there at once.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.client import Load, Target, client, run
from paceline.bench.samples import MS, Sample
from paceline.cli.http_client import first_model
from paceline.core.system.host import usable_cores
from paceline.sched.service.promises import LATE_GAPS
from paceline.simulator.device.profile import Profile
from paceline.simulator.experiment import in_processes
from paceline.simulator.loads import LoadSource, Phase, SyntheticLoad, TraceLoad, Workload
from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.workloads.call import Call, LengthDistribution

SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
POLICIES = "fcfs,deadline,shortest,slo,slo+refuse"
VOCAB, SEED = 30_000, 0
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One policy at one rate."""

    source: LoadSource
    profile: str
    policy: str
    rate: float
    targets_ms: tuple[float, float]
    leaves_after_s: float

    def line(self) -> Line:
        name, _, refuse = self.policy.partition("+")
        ttft, itl = self.targets_ms
        settings = {"ttft_target_ms": ttft, "itl_target_ms": itl, "policy": name}
        model = ServerModel(
            Profile.load(self.profile),
            settings | {"refuse_late": refuse == "refuse", "max_model_len": 131_072},
        )
        load = patient(self.source.workload().at_rate(self.rate), self.leaves_after_s)
        report = SimulationReport.of(SimulatedServer(model, load.requests).run(), {})
        total, kept = report.total, report.total.attained or 0.0
        return {
            "policy": self.policy,
            "rate": self.rate,
            "goodput": kept * self.rate,
            "attained": kept,
            "ttft_p99_ms": total.ttft_ms and total.ttft_ms.p99,
            "itl_p99_ms": total.itl_ms and total.itl_ms.p99,
            "longest_queue": max(report.timeline["waiting"]),
            "missed": {
                name.removeprefix("slo_missed_"): count
                for name, count in report.stats.items()
                if name.startswith("slo_missed_") and count
            },
        }


def patient(load: Workload, leaves_after_s: float) -> Workload:
    """The same load, whose clients leave after some time."""
    requests = [replace(one, leaves_after_s=leaves_after_s) for one in load.requests]
    return Workload(requests, load.outputs)


def capacity(source: LoadSource, profile: str) -> float:
    """Requests per second if all of them are there at once."""
    load = source.workload()
    together = Workload([replace(one, at_s=0.0) for one in load.requests], load.outputs)
    model = ServerModel(Profile.load(profile), {"max_model_len": 131_072})
    run = SimulatedServer(model, together.requests).run()
    return SimulationReport.of(run, {}).total.requests_per_s


def simulated(options: argparse.Namespace, source: LoadSource) -> Iterator[Line]:
    full = capacity(source, options.profile)
    rates = options.rates or [share * full for share in SHARES]
    targets = options.ttft_target_ms, options.itl_target_ms
    cases = [
        Case(source, options.profile, policy, rate, targets, options.leaves_after)
        for policy in options.policies.split(",")
        for rate in rates
    ]
    for line in in_processes(Case.line, cases, options.jobs):
        yield line | {"share": line["rate"] / full}


# -- a real server ------------------------------------------------------------


def is_good(sample: Sample, targets_ms: tuple[float, float]) -> bool:
    ttft, itl = targets_ms
    if sample.error or sample.ttft_s * MS > ttft:
        return False
    late = sum(gap * MS > itl for gap in sample.itl_s)
    return late * LATE_GAPS <= len(sample.itl_s)


async def served(
    options: argparse.Namespace, source: LoadSource, name: str, url: str
) -> list[Line]:
    """The same load at each rate."""
    found: list[Line] = []
    targets = options.ttft_target_ms, options.itl_target_ms
    async with client(url, options.api_key, timeout_s=600.0) as http:
        target = Target(await first_model(http), "completions", options.vocab, SEED, True)
        for place, rate in enumerate(options.rates):
            load = source.workload().at_rate(rate)
            calls = [
                Call(one.at_s, one.content, one.output_len)  # pyright: ignore[reportArgumentType]
                for one in load.requests
            ]
            done = await run(
                http, replace(target, seed=SEED + place), Load(calls, warmup=place == 0)
            )
            samples = done.samples
            good = sum(is_good(one, targets) for one in samples)
            first = np.array([one.ttft_s * MS for one in samples if not one.error] or [inf])
            gaps = np.array([gap * MS for one in samples for gap in one.itl_s] or [inf])
            found.append(
                {
                    "policy": name,
                    "rate": rate,
                    "goodput": rate * good / len(samples),
                    "attained": good / len(samples),
                    "ttft_p99_ms": float(np.percentile(first, 99)),
                    "itl_p99_ms": float(np.percentile(gaps, 99)),
                    "refused": sum(bool(one.error) for one in samples),
                }
            )
    return found


# -- output -------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """Goodput by rate, one column for each policy or server."""
    names = list(dict.fromkeys(line["policy"] for line in lines))
    rates = sorted({line["rate"] for line in lines})
    by_case = {(line["policy"], line["rate"]): line for line in lines}
    shares = {line["rate"]: line.get("share") for line in lines}
    rows = [["requests/s", "of capacity", *names]]
    for rate in rates:
        share = shares[rate]
        cells = [by_case[name, rate] for name in names]
        found = [f"{one['goodput']:.2f} ({100 * one['attained']:.0f} %)" for one in cells]
        rows.append([f"{rate:.2f}", "-" if share is None else f"{100 * share:.0f} %", *found])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def load_of(options: argparse.Namespace) -> LoadSource:
    if options.trace is not None:
        return TraceLoad(
            options.trace,
            options.num_requests,
            max_input_len=options.max_input_len,
            max_output_len=options.max_output_len,
        )
    input_len = LengthDistribution.parse(options.input_len)
    output_len = LengthDistribution.parse(options.output_len)
    return SyntheticLoad(options.num_requests, (Phase(1.0),), 1.0, input_len, output_len)


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--num-requests", type=int, default=600)
    parser.add_argument("--input-len", default="lognormal:600:1.0")
    parser.add_argument("--output-len", default="lognormal:120:0.7")
    parser.add_argument("--max-input-len", type=int, default=32_000)
    parser.add_argument("--max-output-len", type=int, default=2_000)
    parser.add_argument("--profile", default="h200-qwen3-14b")
    parser.add_argument("--policies", default=POLICIES)
    parser.add_argument("--rates", type=numbers, help="requests per second, such as 5,10,20")
    parser.add_argument("--ttft-target-ms", type=float, default=500.0)
    parser.add_argument("--itl-target-ms", type=float, default=40.0)
    parser.add_argument("--leaves-after", type=float, default=20.0, help="seconds; simulations")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--url", help="a real server instead of simulations; needs --rates")
    parser.add_argument("--peer", help="another one, which gets the same load")
    parser.add_argument("--api-key")
    parser.add_argument("--vocab", type=int, default=VOCAB)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    source = load_of(options)
    if options.url is None:
        lines = list(simulated(options, source))
    elif options.rates is None:
        parser.error("--url needs --rates, such as --rates 1,2,4")
    else:
        servers = {"paceline": options.url} | ({"peer": options.peer} if options.peer else {})
        lines = [
            line
            for name, url in servers.items()
            for line in asyncio.run(served(options, source, name, url.removesuffix("/v1")))
        ]
    print(table(lines))
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
