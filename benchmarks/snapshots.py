"""Prompt tokens that models with states compute, by the policy that keeps snapshots.

For example `python benchmarks/snapshots.py --trace mooncake-conversation.jsonl --requests 2000`.
Without a trace, conversations are made up: each turn continues the one before it, with its answer.
The scheduler runs on a virtual clock, without a device. `full` is a model without states that has
as many blocks.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from paceline import Request, Scheduler, StepResult
from paceline.core.arrays import I32
from paceline.workloads.traces import read

POLICIES = ("full", "none", "block", "last", "auto")
ANSWER = 0  # the token of every output
STEP_S, POSITION_S = 0.01, 50e-6


@dataclass(frozen=True)
class Turn:
    at_s: float
    prompt: I32
    most: int
    follows: int = -1  # the turn whose end it waits for, `at_s` later


def of_trace(path: Path, count: int, most: int) -> list[Turn]:
    """The prompts of a trace. One that ends within a segment is the beginning of a later prompt
    that goes on behind the same segments, as prompts of a conversation do."""
    ids: dict[str, int] = {}
    later: dict[tuple[str, ...], str] = {}
    turns: list[Turn] = []
    for call in reversed(read(path, count)):
        keys = [one.key for one in call.segments]
        for depth in range(len(keys) - 1):
            later[tuple(keys[:depth])] = keys[depth]
        keys[-1] = later.get(tuple(keys[:-1]), keys[-1])
        tokens = [ids.setdefault(key, len(ids) + 1) for key in keys]
        sizes = [one.tokens for one in call.segments]
        prompt = np.repeat(np.array(tokens, np.int32), sizes)
        turns.append(Turn(call.at_s, prompt, min(call.output_len, most)))
    return turns[::-1]


def conversations(count: int, most: int, seed: int = 0) -> list[Turn]:
    """Chats with one of four system prompts, whose users think for some seconds."""
    r = Random(seed)
    systems = [[10 + one] * r.randint(300, 3000) for one in range(4)]
    turns: list[Turn] = []
    for _ in range(count // 5):
        text, before = list(r.choice(systems)), -1
        at = r.uniform(0, count * 0.4)
        for _ in range(r.randint(1, 9)):
            text += [100 + len(turns)] * r.randint(20, 1500)
            turns.append(Turn(at, np.array(text, np.int32), r.randint(20, most), before))
            before, at = len(turns) - 1, r.uniform(2, 60)
            text += [ANSWER] * turns[-1].most
    return turns


def serve(turns: list[Turn], policy: str, options: argparse.Namespace) -> dict[str, float]:
    longest = max(len(one.prompt) + one.most for one in turns) + 1
    scheduler = Scheduler.create(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        max_model_len=longest,
        num_blocks=options.blocks,
        block_size=16,
        state_blocks=0 if policy == "full" else options.state_blocks,
        snapshots="auto" if policy == "full" else policy,
    )
    coming: list[tuple[float, int]] = []
    then: dict[int, list[int]] = {}
    for number, one in enumerate(turns):
        if one.follows < 0:
            heappush(coming, (one.at_s, number))
        else:
            then.setdefault(one.follows, []).append(number)
    now, began = 0.0, time.process_time()
    while coming or not scheduler.idle:
        if scheduler.idle:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            number = heappop(coming)[1]
            one = turns[number]
            scheduler.submit(Request(str(number), one.prompt, max_tokens=one.most), now)
        plan = scheduler.plan(now)
        now += STEP_S + POSITION_S * plan.total
        samples = plan.rows.samples
        result = StepResult(np.zeros((len(samples), 1), np.int32), samples.astype(np.int32))
        for end in scheduler.commit(plan, result, now).finished:
            for number in then.get(int(end.request_id), ()):
                heappush(coming, (now + turns[number].at_s, number))
    stats = scheduler.stats
    asked = stats.prefix_queries + stats.resumed_queries
    found = stats.prefix_hits + stats.resumed_hits
    return {
        "computed": asked - found,
        "hit_rate": round(found / asked, 4),
        "steps": stats.steps,
        "preemptions": stats.preemptions,
        "virtual_s": round(now),
        "cpu_s": round(time.process_time() - began, 1),
    }


def results(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    if options.trace:
        turns = of_trace(options.trace, options.requests, options.most)
    else:
        turns = conversations(options.requests, options.most)
    least = 0.0
    for policy in options.policies.split(","):
        told = serve(turns, policy, options)
        least = least or told["computed"]
        load = options.trace.name if options.trace else "conversations"
        more = round(told["computed"] / least - 1, 4)
        yield {"load": load, "snapshots": policy, "more_than_first": more, **told}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--most", type=int, default=200, help="most tokens of an output")
    parser.add_argument("--blocks", type=int, default=50_000)
    parser.add_argument("--state-blocks", type=int, default=100)
    parser.add_argument("--policies", default=",".join(POLICIES))
    for one in results(parser.parse_args()):
        print(json.dumps(one), flush=True)
