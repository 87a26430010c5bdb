"""Goodput over the rate of a load: requests per second that have their tokens in time.

    python -m benchmarks.goodput                                  simulated, under several policies
    python -m benchmarks.goodput --trace azure.csv --profile h200-qwen3-14b
    python -m benchmarks.goodput --url http://127.0.0.1:8000 --rates 1,2,4,8
    python -m benchmarks.goodput --url ... --peer http://127.0.0.1:8001      two servers in turn

A request is good if its first token came within `--ttft-target-ms` of its arrival, and all but a
hundredth of the gaps between its tokens were within `--itl-target-ms`. Rates of simulations are
shares of the rate at which the profile serves the same load if all of it is there at once. The
policy `hindsight` knows all arrivals: it searches for those that can be in time together.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.gpu_goodput import Bench, add_load_options
from paceline.core.system.host import usable_cores
from paceline.simulator.device.profile import Profile
from paceline.simulator.experiment import Workers
from paceline.simulator.loads import LoadSource, Phase, SyntheticLoad, TraceLoad, Workload
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.results.figures import COMPLETE, SimulationReport
from paceline.simulator.results.page import line_chart, page
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.workloads.call import LengthDistribution

SHARES = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
HINDSIGHT = "hindsight"
KNOWING = ("slo+refuse", "fcfs@512", "fcfs@640", "fcfs@768")  # of which it takes the best
SENT = (1.0, 0.9, 0.8, 0.7, 0.6)  # shares of the requests with which it begins
POLICIES = "fcfs,deadline,shortest,slo,slo+refuse"
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

    @property
    def load(self) -> Workload:
        return patient(self.source.workload().at_rate(self.rate), self.leaves_after_s)

    def run(self, policy: str, requests: Sequence[SimulatedRequest]) -> SimulatedRun:
        ttft, itl = self.targets_ms
        settings = {"ttft_target_ms": ttft, "itl_target_ms": itl, "max_model_len": 131_072}
        model = ServerModel(Profile.load(self.profile), settings | settings_of(policy))
        return SimulatedServer(model, requests).run()

    def line(self) -> Line:
        if self.policy == HINDSIGHT:
            return self._hindsight()
        report = SimulationReport.of(self.run(self.policy, self.load.requests), {})
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

    def _hindsight(self) -> Line:
        """The most requests that a search finds to be in time, if only some are sent: the shortest
        of all, and later those that were in time and the shortest others, and fewer of them."""
        asked = self.load.requests
        shortest = sorted(asked, key=lambda one: one.input_len + one.output_len)
        parts = [shortest[: round(share * len(asked))] for share in SENT]
        best = max((self._best(asked, {one.id for one in part}) for part in parts), key=len)
        more = len(asked) - len(best)
        while more:
            others = [one.id for one in shortest if one.id not in best]
            found = self._best(asked, best | set(others[:more]))
            best, more = (found, more) if len(found) > len(best) else (best, more // 2)
        kept = len(best) / len(asked)
        line = {"policy": HINDSIGHT, "rate": self.rate}
        return line | {"goodput": kept * self.rate, "attained": kept}

    def _best(self, asked: Sequence[SimulatedRequest], chosen: set[str]) -> set[str]:
        sent = [one for one in asked if one.id in chosen]
        return max((self._kept(policy, sent) for policy in KNOWING), key=len)

    def _kept(self, policy: str, requests: Sequence[SimulatedRequest]) -> set[str]:
        """The requests that a policy serves within their targets."""
        run = self.run(policy, requests)
        good = run.log.kept & np.isin(np.array(run.log.outcome, object), COMPLETE)
        return {one.id for one, is_good in zip(run.requests, good.tolist(), strict=True) if is_good}


def settings_of(policy: str) -> dict[str, Any]:
    """Of `slo`, `slo+refuse`, or `fcfs@1024`: with steps of so many tokens."""
    policy, _, budget = policy.partition("@")
    name, _, refuse = policy.partition("+")
    settings: dict[str, Any] = {"policy": name, "refuse_late": refuse == "refuse"}
    return settings | ({"max_num_batched_tokens": int(budget)} if budget else {})


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
    with Workers(options.jobs) as workers:
        for line in workers.map(Case.line, cases):
            yield line | {"share": line["rate"] / full}


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


def curves(lines: Sequence[Line]) -> str:
    """A page with goodput over the rate, a curve for each policy or server."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in sorted(lines, key=lambda line: line["rate"]):
        found.setdefault(line["policy"], []).append((line["rate"], line["goodput"]))
    found["all in time"] = [(line, line) for line in sorted({line["rate"] for line in lines})]
    chart = line_chart("Goodput over the rate", "requests/s", "in time", found)
    return page("Goodput", [chart])


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


def served(options: argparse.Namespace) -> Iterator[Line]:
    """Of real servers, which get the same load in turn."""
    for name, url in {"paceline": options.url, "peer": options.peer}.items():
        if url:
            parts = urlsplit(url)
            bench = Bench(options, parts.port or 80, parts.hostname or "127.0.0.1")
            bench.warm()
            yield from (line | {"policy": name} for line in bench.rates())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_load_options(parser)
    parser.set_defaults(max_input_len=32_000, max_output_len=2_000)
    parser.add_argument("--num-requests", type=int, default=600, help="of simulations")
    parser.add_argument("--profile", default="h200-qwen3-14b")
    parser.add_argument("--policies", default=POLICIES, help="also fcfs@1024: tokens of a step")
    parser.add_argument("--leaves-after", type=float, default=20.0, help="seconds; simulations")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--url", help="a real server instead of simulations; needs --rates")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a page with the curves")
    parser.add_argument("--peer", help="another one, which gets the same load")
    options = parser.parse_args()
    if options.url and not options.rates:
        parser.error("--url needs --rates, such as --rates 1,2,4")
    lines = list(served(options) if options.url else simulated(options, load_of(options)))
    print(table(lines))
    if options.html is not None:
        options.html.write_text(curves(lines))
    if options.json is not None:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
