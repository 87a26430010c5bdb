"""What is computed again, and how long users wait, by the order in which cached blocks are reused.

For example `python benchmarks/sessions.py`, or `python benchmarks/sessions.py --trace
mooncake-conversation.jsonl --requests 3000 --blocks 100000`. Without a trace, agents, chats and
single requests are made up: an agent pauses for tools, which takes seconds and now and then
minutes, and a chat for its user. Memory is then a third of what the sessions have that are under
way. The engine runs on a virtual clock with step times of an H200. `optimum` knows when every
prefix is asked for next (Belady); `named` is `sessions` where clients name their sessions.
"""

import argparse
import json
import sys
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from paceline.core import request as core
from paceline.core.arrays import F64
from paceline.core.settings.config import CacheConfig
from paceline.kv.eviction import Clock
from paceline.kv.evictions.lines import Line, Session
from paceline.kv.evictions.sessions import OPEN, Sessions
from paceline.simulator.device.profile import Profile
from paceline.simulator.requests import OUTPUT, SimulatedRequest
from paceline.simulator.server import ServerModel, SimulatedRun, SimulatedServer
from paceline.workloads.call import Segment
from paceline.workloads.traces import read

WAYS = ("lru", "sessions", "named", "optimum")
PLENTY = 4_000_000  # blocks
MOST_TOKENS = 40_000  # of a conversation


@dataclass
class Future:
    """When content is asked for next.

    pause_s   seconds from the end of a request to the one that follows it, if one does
    times     arrivals of all requests that begin with some segments
    segments  of each request of a trace
    """

    pause_s: dict[str, float] = field(default_factory=dict[str, float])
    times: dict[tuple[str, ...], list[float]] = field(
        default_factory=lambda: defaultdict[tuple[str, ...], list[float]](list)
    )
    segments: dict[str, tuple[Segment, ...]] = field(default_factory=dict[str, tuple[Segment, ...]])

    @staticmethod
    def of(load: Sequence[SimulatedRequest]) -> "Future":
        found = Future()
        for one in load:
            if one.follows >= 0:
                found.pause_s[load[one.follows].id] = one.at_s
            assert isinstance(one.content, tuple)
            found.segments[one.id] = one.content
            keys = tuple(segment.key for segment in one.content)
            for depth in range(len(keys)):
                found.times[keys[: depth + 1]].append(one.at_s)
        return found

    def next_at(self, request: str, tokens: int, now: float) -> float:
        """When a request of a trace comes that has the first `tokens` of this one."""
        keys: list[str] = []
        for one in self.segments[request]:
            keys.append(one.key)
            tokens -= one.tokens
            if tokens <= 0:
                break
        times = self.times[tuple(keys)]
        at = bisect_right(times, now)
        return times[at] if tokens <= 0 and at < len(times) else inf


class Optimum(Sessions):
    """Reuses first what is asked for last."""

    future = Future()  # of the load that is served

    def __init__(self, config: CacheConfig, clock: Clock) -> None:
        super().__init__(config, clock)
        self._next_at: dict[Session, float] = {}
        self._request: dict[int, str] = {}  # that left a line, of a trace

    def ended(self, sequence: core.Sequence) -> None:
        opened = self._open.get(sequence.id)
        if opened is not None and self.future.pause_s:
            pause = self.future.pause_s.get(sequence.id, inf)
            self._next_at[opened.session] = self.clock.now + pause
        super().ended(sequence)

    def left(self, sequence: core.Sequence, blocks: list[int]) -> None:
        super().left(sequence, blocks)
        line, _ = self.follow(blocks)
        while line is not None:
            self._request[line.number] = sequence.id
            line = line.parent

    def scores(self, lines: list[Line]) -> F64:
        return np.array([self._closeness(line) for line in lines])

    def _closeness(self, line: Line) -> float:
        now, session = self.clock.now, line.session
        if line.is_dead:
            return 0.0
        if self.future.pause_s:
            at = now if session.open else self._next_at.get(session, now)
        elif session.open:
            return OPEN
        else:
            tokens = line.end * self.config.block_size
            at = self.future.next_at(self._request[line.number], tokens, now)
        return 1.0 / (max(at - now, 0.0) + 1e-3)


# -- loads ------------------------------------------------------------------


@dataclass(frozen=True)
class Character:
    """Most pauses are about as long as others of the session: `pace_s` is the median of a session,
    which differs by a factor of e to the `spread`. Some are long ones. All are lognormal."""

    pace_s: float
    spread: float
    long: float  # share of long pauses
    long_s: float  # median
    turns: float  # on average
    own_tokens: float  # median of what a turn adds
    output: float  # median


AGENT = Character(5, 1.3, 0.06, 150, turns=14, own_tokens=700, output=150)
CHAT = Character(45, 0.7, 0.1, 400, turns=5, own_tokens=200, output=250)
SINGLE = Character(1, 0.1, 0, 1, turns=1, own_tokens=1500, output=150)
SHARES = (0.5, 0.25, 0.25)


def made_up(count: int, rate: float, seed: int) -> list[SimulatedRequest]:
    """Sessions of agents, chats and single requests, each with one of six system prompts."""
    random = np.random.default_rng(seed)
    systems = [Segment(f"system {one}", int(random.integers(800, 4000))) for one in range(6)]
    starts = np.cumsum(random.exponential(1 / rate, count)).tolist()
    load: list[SimulatedRequest] = []
    for number, start in enumerate(starts):
        kind = (AGENT, CHAT, SINGLE)[int(random.choice(3, p=SHARES))]
        content, at = (systems[int(random.integers(6))],), start
        turns, pace = int(random.geometric(1 / kind.turns)), random.normal(0, kind.spread)
        for turn in range(turns):
            own = int(random.lognormal(log(kind.own_tokens), 0.9)) + 20
            output = int(random.lognormal(log(kind.output), 0.6)) + 5
            content += (Segment(f"{number}.{turn}", own * (3 if turn == 0 else 1)),)
            if sum(one.tokens for one in content) + output > MOST_TOKENS:
                break
            follows = len(load) - 1 if turn else -1
            name = f"{number}.{turn}"
            load.append(
                SimulatedRequest(name, at, content, output, follows=follows, session=f"{number}")
            )
            content += (Segment(OUTPUT, output),)
            is_long = random.random() < kind.long
            median = log(kind.long_s) if is_long else log(kind.pace_s) + pace
            at = float(random.lognormal(median, 0.7))
    return load


def of_trace(path: Path, count: int, speed: float) -> list[SimulatedRequest]:
    """The requests of a trace. A prompt that ends within a segment is the beginning of a later one
    that goes on behind the same segments, as prompts of a conversation do."""
    calls = read(path, count)
    later: dict[tuple[str, ...], str] = {}
    load: list[SimulatedRequest] = []
    for number, call in reversed(list(enumerate(calls))):
        cut = call.cut(MOST_TOKENS - 500, 500)
        keys = [one.key for one in cut.segments]
        for depth in range(len(keys) - 1):
            later[tuple(keys[:depth])] = keys[depth]
        last = replace(cut.segments[-1], key=later.get(tuple(keys[:-1]), keys[-1]))
        content = (*cut.segments[:-1], last)
        load.append(
            SimulatedRequest(f"{number}", cut.at_s / speed, content, max(cut.output_len, 1))
        )
    return load[::-1]


# -- runs -------------------------------------------------------------------


def run(
    load: Sequence[SimulatedRequest], way: str, blocks: int, options: argparse.Namespace
) -> SimulatedRun:
    Optimum.future = Future.of(load)
    eviction = {"named": "sessions", "optimum": f"{__name__}.Optimum"}.get(way, way)
    settings: dict[str, object] = {"num_blocks": blocks, "eviction": eviction}
    if options.seqs:
        settings["max_num_seqs"] = options.seqs
    settings["policy"] = options.policy
    if way != "named":
        load = [replace(one, session="") for one in load]
    model = ServerModel(Profile.load(options.profile), settings)
    return SimulatedServer(model, load).run()


def working_set(load: Sequence[SimulatedRequest], run: SimulatedRun, block_size: int) -> int:
    """Blocks that sessions under way have, on average over the middle half of the time. Shared
    system prompts count once for each."""
    began, ended, peak = dict[str, float](), dict[str, float](), dict[str, float]()
    for number, one in enumerate(load):
        name = one.session
        began.setdefault(name, float(run.log.arrival[number]))
        ended[name] = float(run.log.ended[number])
        peak[name] = (one.input_len + one.output_len) / block_size
    last = max(began.values())
    moments = np.linspace(last / 4, 3 * last / 4, 200)
    sizes = [
        sum(0.6 * peak[name] for name in began if began[name] <= at < ended[name])
        for at in moments.tolist()
    ]
    return int(np.mean(sizes))


def figures(load: Sequence[SimulatedRequest], run: SimulatedRun, least: int) -> dict[str, float]:
    log, stats = run.log, run.stats
    asked = stats.prefix_queries + stats.resumed_queries
    computed = asked - stats.prefix_hits - stats.resumed_hits
    ttft = log.first - log.arrival
    per_token = (log.ended - log.arrival) / np.maximum(log.tokens, 1)
    return {
        "computed": computed,
        "recomputed": computed - least if least else 0,
        "hit_rate": round(1 - computed / asked, 4),
        "ttft_p50_s": round(float(np.nanpercentile(ttft, 50)), 3),
        "ttft_p90_s": round(float(np.nanpercentile(ttft, 90)), 3),
        "tpot_with_waiting_p90_ms": round(1e3 * float(np.nanpercentile(per_token, 90)), 1),
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "virtual_s": round(float(np.nanmax(log.ended))),
    }


def results(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    if options.trace:
        load, name = of_trace(options.trace, options.requests, options.speed), options.trace.stem
    else:
        load, name = made_up(options.sessions, options.rate, options.seed), "sessions"
    least, blocks = 0, options.blocks
    for way in ("plenty", *options.ways.split(",")):
        began = time.process_time()
        done = run(load, "lru" if way == "plenty" else way, blocks if least else PLENTY, options)
        told = figures(load, done, least)
        if way == "plenty":
            least = int(told["computed"])
            blocks = blocks or working_set(load, done, 16) // options.part
        head = {"load": name, "requests": len(load), "eviction": way, "blocks": done.total_blocks}
        yield {**head, **told, "cpu_s": round(time.process_time() - began, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=3000, help="of the trace")
    parser.add_argument("--speed", type=float, default=1.0, help="of the trace")
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--rate", type=float, default=1.0, help="new sessions per second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blocks", type=int, default=0, help="0: by --part")
    parser.add_argument("--part", type=int, default=3, help="of the working set, as a divisor")
    parser.add_argument("--seqs", type=int, default=0, help="max_num_seqs; 0: the profile's")
    parser.add_argument("--policy", default="fcfs")
    parser.add_argument("--profile", default="h200-qwen3-8b")
    parser.add_argument("--ways", default=",".join(WAYS))
    for one in results(parser.parse_args()):
        print(json.dumps(one), flush=True)
