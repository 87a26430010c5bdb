"""Measure the scheduler, beside vLLM's on the same requests, and beside ours in vLLM; one JSON line
per case.

Run `python benchmarks/scheduler.py --peer VENV/bin/python`; without --peer it measures ours alone.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cases import ALONE, FAMILY, NAMES, PER_STEP, QUEUED, TOTALS
from worker import Figures, Line, Worker

HERE = Path(__file__).resolve().parent
OURS = HERE / "ours.py"
PEER = HERE / "peers" / "vllm_scheduler" / "bench.py"
PLUGIN = PEER.with_name("plugin.py")
RSS_SPEC = "steady:1024"


def medians(runs: list[Figures]) -> Figures:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def alternate(spec: str, workers: dict[str, Worker], repeat: int) -> dict[str, list[Figures]]:
    """Run the sides in turns, so that a busy spell of the machine meets all."""
    runs: dict[str, list[Figures]] = {side: [] for side in workers}
    for _ in range(repeat):
        for side, worker in workers.items():
            runs[side].append(worker.run(spec))
    return runs


def line(spec: str, runs: dict[str, list[Figures]]) -> Line:
    """The medians of all sides in one record: `ours_us`, `peer_us`, `ratio` and so on."""
    name, _, number = spec.partition(":")
    head: Line = {"case": name}
    if name in PER_STEP:
        queued = name.startswith("waiting")
        head |= {"running": 64, "waiting": int(number)} if queued else {"running": int(number)}
    unit = "us" if name in PER_STEP else "ms"
    named = {side: medians(figures) for side, figures in runs.items()}
    head |= {f"{side}_{unit}": round(figures[unit], 2) for side, figures in named.items()}
    if "peer" in named:
        head |= ratios(runs, unit)
        head["plugin_ratio"] = round(named["peer"][unit] / named["plugin"][unit], 2)
    for side, figures in named.items():
        rest = {key: value for key, value in figures.items() if not key.startswith("rss")}
        head |= {f"{side}_{key}": tidy(value) for key, value in rest.items() if key != unit}
    return head


def tidy(value: float) -> float:
    return int(value) if value == int(value) else round(value, 4)


def ratios(runs: dict[str, list[Figures]], unit: str) -> Line:
    """How many times faster ours is: by the medians, by the fastest, and over pairs of runs."""
    ours, peer = ([run[unit] for run in runs[side]] for side in ("ours", "peer"))
    pairs = [theirs / own for own, theirs in zip(ours, peer, strict=True)]
    return {
        "ratio": round(statistics.median(peer) / statistics.median(ours), 2),
        "ratio_best": round(min(peer) / min(ours), 2),
        "ratio_low": round(min(pairs), 2),
        "ratio_high": round(max(pairs), 2),
    }


def rss_line(pythons: dict[str, tuple[str, Path]]) -> Line:
    """Growth of the peak resident memory, each side in a fresh process."""
    head: Line = {"case": "rss", "running": 1024}
    for side, (python, script) in pythons.items():
        command = [python, str(script), RSS_SPEC]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        figures = json.loads(output.splitlines()[-1])
        head[f"{side}_build_mib"] = round(figures["rss_build_mib"], 1)
        head[f"{side}_mib"] = round(figures["rss_mib"], 1)
    return head


def specs(names: list[str], running: list[int]) -> Iterator[str]:
    for name in names:
        if name in ("steady", "async"):
            yield from (f"{name}:{count}" for count in running)
        elif name == "families":
            yield from (f"{name}:{count}" for count in running if count >= FAMILY)
        elif name in PER_STEP:
            yield from (f"{name}:{count}" for count in QUEUED)
        else:
            yield name


def context(workers: dict[str, Worker]) -> Line:
    """What every line says about where it comes from."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    named = {"peer": workers["peer"].about["peer"]} if "peer" in workers else {}
    return {"commit": commit or None, "machine": machine(), **workers["ours"].about, **named}


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (text.partition(":")[2].strip() for text in lines if text.startswith("model name"))
    return next(names, platform.machine())


def pin() -> None:
    """Keep this process and the ones it starts on one core, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="python of an environment made by the peer's setup.sh")
    parser.add_argument("--cases", type=listed(NAMES), default=list(NAMES), help=",".join(NAMES))
    parser.add_argument("--running", type=listed(), default=["1", "16", "64", "256", "1024"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rss", action="store_true", help="also measure resident memory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the lines here as well")
    return parser.parse_args()


def listed(choices: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    """A comma-separated argument, each part one of `choices` if there are any."""

    def split(text: str) -> list[str]:
        parts = text.split(",")
        unknown = [part for part in parts if choices and part not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return parts

    return split


def main() -> None:
    args = arguments()
    pin()
    pythons = {"ours": (sys.executable, OURS)}
    if args.peer:
        pythons |= {"peer": (args.peer, PEER), "plugin": (args.peer, PLUGIN)}
    workers = {side: Worker(*command) for side, command in pythons.items()}
    where = context(workers)
    if args.json:
        args.json.write_text("")

    def emit(record: Line) -> None:
        text = json.dumps(record | where)
        print(text, flush=True)
        if args.json:
            with args.json.open("a") as file:
                print(text, file=file)

    for spec in specs(args.cases, [int(count) for count in args.running]):
        sides = {"ours": workers["ours"]} if spec.partition(":")[0] in ALONE else workers
        emit(line(spec, alternate(spec, sides, args.repeat)))
        if spec in TOTALS:
            reserved, alone = f"{spec}_reserved", {"ours": workers["ours"]}
            emit(line(reserved, alternate(reserved, alone, args.repeat)))
    for worker in workers.values():
        worker.close()
    if args.rss:
        emit(rss_line(pythons))


if __name__ == "__main__":
    main()
