"""Measure the simulator: requests and simulated seconds per second of CPU time, and memory.

    python benchmarks/simulator.py TRACE --requests 100000
    python benchmarks/simulator.py TRACE --requests 100000 --speed 15

The trace is repeated until there are so many requests; no two prompts share anything. Prints one
JSON line.
"""

import argparse
import json
import resource
import subprocess
from dataclasses import replace
from pathlib import Path
from time import process_time

from scheduler import machine

from paceline.simulator.device.profile import Profile
from paceline.simulator.loads import TraceLoad
from paceline.simulator.requests import SimulatedRequest
from paceline.simulator.results.figures import SimulationReport
from paceline.simulator.server import ServerModel, SimulatedServer
from paceline.workloads.call import Segment

HERE = Path(__file__).resolve().parent


def repeated(trace: list[SimulatedRequest], count: int) -> list[SimulatedRequest]:
    """The requests of a trace again and again, each with a prompt of its own."""
    length = trace[-1].at_s * (1 + 1 / len(trace))
    found: list[SimulatedRequest] = []
    for number in range(count):
        again, place = divmod(number, len(trace))
        one, name = trace[place], str(number)
        at, content = one.at_s + again * length, (Segment(name, one.input_len),)
        found.append(replace(one, id=name, at_s=at, content=content))
    return found


def megabytes() -> float:
    """The most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(args: argparse.Namespace) -> dict[str, object]:
    begun = process_time()
    trace = TraceLoad(args.trace, None, args.speed).workload().requests
    load = repeated(list(trace), args.requests)
    loaded, empty = process_time(), megabytes()
    model = ServerModel(Profile.load(args.profile))
    run = SimulatedServer(model, load).run()
    simulated = process_time()
    total = SimulationReport.of(run, {}).total
    took = simulated - loaded
    return {
        "case": "simulator",
        "profile": args.profile,
        "speed": args.speed,
        "requests": total.requests,
        "completed": total.completed,
        "steps": run.stats.steps,
        "simulated_s": round(total.duration_s, 1),
        "running_at_most": max(run.timeline.to_dict()["running"]),
        "load_cpu_s": round(loaded - begun, 2),
        "cpu_s": round(took, 2),
        "report_cpu_s": round(process_time() - simulated, 2),
        "requests_per_cpu_s": round(total.requests / took),
        "simulated_s_per_cpu_s": round(total.duration_s / took),
        "cpu_min_per_million": round(took / total.requests * 1e6 / 60, 1),
        "load_mb": round(empty),
        "mb": round(megabytes()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace")
    parser.add_argument("--profile", default="h200-qwen3-0.6b")
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    where = {"commit": commit or None, "machine": machine()}
    print(json.dumps(measured(parser.parse_args()) | where))


if __name__ == "__main__":
    main()
