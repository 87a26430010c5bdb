"""What a tier of KV beyond the device saves.

`python -m benchmarks.kv_tiers` measures the time to the first token of a prefix of 4k tokens: when
it is computed, loaded from host memory, and loaded from disk. With `--trace`, it also replays the
conversations of Mooncake's trace on a virtual clock, with a tenth of the memory that their prompts
need, with and without a host tier. One JSON line per result.
"""

import argparse
import json
import platform
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from paceline import LLM, Plan, Request, SamplingParams, Scheduler, StepResult
from paceline.core.settings.features import ConnectorConfig
from paceline.hub.catalogue import DEFAULT
from paceline.kv.connector import Connector, Transfer, TransferEnd
from paceline.testing.loop import Loop
from paceline.testing.runner import SimulatedDevice, VirtualClock

BLOCK = 16  # tokens
ONE = SamplingParams(temperature=0.0, max_tokens=1)


def report(**result: Any) -> None:
    print(
        json.dumps({"benchmark": "kv_tiers", "machine": platform.machine(), **result}), flush=True
    )


# -- a real model -------------------------------------------------------------


def measure(model: str, device: str, prefix: int, load_format: str) -> None:
    """Every tier in turn. The device has room for one prefix, so another one evicts it."""
    blocks = (prefix + 64) // BLOCK + 4
    settings: dict[str, Any] = {
        "device": device,
        "load_format": load_format,
        "max_model_len": prefix + 64,
        "num_gpu_blocks_override": blocks,
        "max_num_seqs": 2,
    }
    with TemporaryDirectory() as folder:
        disk = {"kv_connector": "disk", "kv_connector_extra_config": {"path": folder}}
        for name, own in (
            ("host", {"kv_connector": "host"}),
            ("disk", {"kv_transfer_config": disk}),
        ):
            with LLM(model, **settings, **own) as llm:
                prompts = [
                    [(7 * at + start) % 4000 + 100 for at in range(prefix)] for start in (0, 1)
                ]
                computed = [ttft(llm, prompt) for prompt in prompts]
                loaded = [ttft(llm, prompt) for prompt in (*prompts, *prompts)]
                hits = llm.get_metrics().counters["external_prefix_cache_hits"]
            report(
                tier=name,
                model=model,
                device=device,
                prefix_tokens=prefix,
                computed_s=round(min(computed), 4),
                loaded_s=round(median(loaded), 4),
                loaded_tokens=int(hits),
            )


def ttft(llm: LLM, prompt: list[int]) -> float:
    begin = perf_counter()
    llm.generate({"prompt_token_ids": prompt}, ONE, use_tqdm=False)
    return perf_counter() - begin


# -- a trace on a virtual clock -------------------------------------------------

HASHED = 512  # tokens of one id in the trace, and of a block here
KV_BYTES = 128 << 10  # of a token: 8 billion parameters, 8 KV heads
STEP_S, PREFILL_TOKENS_PER_S, HOST_BYTES_PER_S = 0.012, 20_000.0, 25e9
SHARE = 0.1  # of the blocks that all prompts need, on the device
MOST_OUTPUT = 32  # tokens; what is decoded does not change what is found


class VirtualHost(Connector):
    """Host memory whose copies take their time on a virtual clock."""

    def __init__(self, clock: VirtualClock, blocks: int) -> None:
        super().__init__(ConnectorConfig("host"))
        self._clock, self._blocks, self._free_at = clock, blocks, 0.0
        self._kept: OrderedDict[bytes, None] = OrderedDict()
        self._underway: list[tuple[float, Transfer]] = []

    def offer(self, request: Request, keys: Sequence[bytes], have: int) -> int | None:
        return self.keep(keys[have:])

    def keep(self, keys: Sequence[bytes]) -> int:
        there = next((at for at, key in enumerate(keys) if key not in self._kept), len(keys))
        for key in reversed(keys[:there]):
            self._kept.move_to_end(key)
        return there

    def fetch(self, transfer: Transfer) -> None:
        self._begin(transfer)

    def store(self, transfer: Transfer) -> None:
        self._kept |= dict.fromkeys(reversed(transfer.keys))
        while len(self._kept) > self._blocks:
            self._kept.popitem(last=False)
        self._begin(transfer)

    def _begin(self, transfer: Transfer) -> None:
        taken = len(transfer.blocks) * HASHED * KV_BYTES / HOST_BYTES_PER_S
        self._free_at = max(self._free_at, self._clock()) + taken
        self._underway.append((self._free_at, transfer))

    def poll(self) -> list[TransferEnd]:
        done = [one for time, one in self._underway if time <= self._clock()]
        self._underway = [one for one in self._underway if one[0] > self._clock()]
        return [TransferEnd(one.ticket) for one in done]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One request of the trace."""

    at_s: float
    ids: tuple[int, ...]
    output: int


def conversations(trace: Path, number: int, longest: int) -> list[Conversation]:
    found: list[Conversation] = []
    with trace.open() as lines:
        for line in lines:
            row = json.loads(line)
            ids = tuple(row["hash_ids"][: row["input_length"] // HASHED])
            if 0 < len(ids) <= longest:
                output = min(row["output_length"], MOST_OUTPUT)
                found.append(Conversation(row["timestamp"] / 1000, ids, output))
            if len(found) == number:
                break
    return found


def replay(calls: list[Conversation], tier: bool, speed: float) -> None:
    need = len({one for call in calls for one in call.ids})
    longest = max(len(call.ids) for call in calls) + 1
    blocks = max(int(SHARE * need), longest + 1)
    scheduler = Scheduler.create(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        max_model_len=longest * HASHED,
        block_size=HASHED,
        num_blocks=blocks,
    )
    loop = Loop(scheduler, SimulatedDevice(sample, step_s))
    if tier:
        scheduler.connect(VirtualHost(loop.clock, need))
    first: dict[str, float] = {}
    arrived: dict[str, float] = {}
    waiting = [(call.at_s / speed, number, call) for number, call in enumerate(calls)]
    while waiting or not scheduler.idle:
        if scheduler.idle:
            loop.clock.advance_to(waiting[0][0])
        while waiting and waiting[0][0] <= loop.clock():
            at, number, call = waiting.pop(0)
            name = f"c{number}"
            arrived[name] = at
            prompt = np.repeat(np.array(call.ids, np.int32), HASHED)
            scheduler.submit(
                Request(id=name, prompt=prompt[:-1], max_tokens=call.output), loop.clock()
            )
        turn = loop.turn()
        for name, given in turn.outputs.to_dict().items() if turn.outputs is not None else ():
            if given["tokens"]:
                first.setdefault(name, turn.time)
    stats, asked = scheduler.stats, sum(len(call.ids) * HASHED - 1 for call in calls)
    waits = sorted(first[name] - at for name, at in arrived.items())
    report(
        trace="mooncake-conversation",
        requests=len(calls),
        host_tier=tier,
        device_blocks=blocks,
        needed_blocks=need,
        hit_rate=round((stats.prefix_hits + stats.external_hits) / asked, 3),
        from_host=round(stats.external_hits / asked, 3),
        mean_ttft_s=round(mean(waits), 3),
        p50_ttft_s=round(median(waits), 3),
        p99_ttft_s=round(waits[int(0.99 * len(waits))], 3),
    )


def step_s(plan: Plan) -> float:
    return STEP_S + int(plan.rows.count.sum()) / PREFILL_TOKENS_PER_S


def sample(plan: Plan) -> StepResult:
    ids = np.full((len(plan.rows), 1), 7, np.int32)
    return StepResult(ids, plan.rows.samples.astype(np.int32))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--load-format", default="auto", help="dummy: random weights")
    parser.add_argument("--prefix", type=int, default=4096, help="tokens")
    parser.add_argument("--trace", type=Path, help="mooncake-conversation.jsonl")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--speed", type=float, default=0.35, help="of arrivals; 1: as recorded")
    parser.add_argument("--trace-only", action="store_true")
    given = parser.parse_args()
    if not given.trace_only:
        measure(given.model, given.device, given.prefix, given.load_format)
    if given.trace is not None:
        calls = conversations(given.trace, given.requests, longest=64)
        for tier in (False, True):
            replay(calls, tier, given.speed)


if __name__ == "__main__":
    main()
