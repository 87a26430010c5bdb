"""Sends a load to a real engine, each request at its time, and notes when its tokens come."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any
from zlib import crc32

import numpy as np

from paceline.core.arrays import F64, I32
from paceline.engine.streaming import StreamingEngine
from paceline.simulator.calibration.served_times import TimedClient
from paceline.simulator.requests import SimulatedRequest
from paceline.workloads.call import Segment

LEAD_S = 0.05  # before the first request


@dataclass(frozen=True, slots=True, eq=False)
class RealRun:
    """A load as its clients saw it; times are in seconds since `begun`.

    requests    with the times at which they were really sent
    begun       on the system's clock
    times       when the tokens of each request came
    ended       when each had ended
    queued      seconds of each from its arrival in the engine to its admission
    prefilled   seconds from there to its first token in the engine
    cached, preemptions   of each
    """

    name: str
    share: float  # of the capacity
    requests: Sequence[SimulatedRequest]
    begun: float
    times: Sequence[F64]
    ended: F64
    queued: F64
    prefilled: F64
    cached: I32
    preemptions: I32

    def arrays(self) -> dict[str, Any]:
        """For a file of numpy."""
        about = {"name": self.name, "share": self.share, "begun": self.begun}
        content = [[(part.key, part.tokens) for part in one.content] for one in self.requests]
        return {
            "about": json.dumps(about),
            "content": json.dumps(content),
            "sent": np.array([one.at_s for one in self.requests]),
            "output_len": np.array([one.output_len for one in self.requests]),
            "counts": np.array([len(one) for one in self.times]),
            "times": np.concatenate([*self.times, np.empty(0)]).astype(np.float32),
            "ended": self.ended,
            "queued": self.queued,
            "prefilled": self.prefilled,
            "cached": self.cached,
            "preemptions": self.preemptions,
        }

    @staticmethod
    def of(arrays: Mapping[str, Any]) -> "RealRun":
        about = json.loads(str(arrays["about"]))
        content = json.loads(str(arrays["content"]))
        columns = content, arrays["sent"].tolist(), arrays["output_len"].tolist()
        requests = [
            SimulatedRequest(str(number), at_s, tuple(Segment(*part) for part in parts), output)
            for number, (parts, at_s, output) in enumerate(zip(*columns, strict=True))
        ]
        ends = np.cumsum(arrays["counts"])[:-1]
        times = np.split(arrays["times"].astype(np.float64), ends)
        rest = (arrays[name] for name in ("ended", "queued", "prefilled", "cached", "preemptions"))
        return RealRun(about["name"], about["share"], requests, about["begun"], times, *rest)


def token_ids(one: SimulatedRequest, vocabulary: int) -> I32:
    """The prompt of a request: each key of a segment stands for random tokens."""
    assert isinstance(one.content, tuple)
    parts = [
        np.random.default_rng(crc32(part.key.encode())).integers(vocabulary, size=part.tokens)
        for part in one.content
    ]
    return np.concatenate(parts).astype(np.int32)


async def send(
    engine: StreamingEngine, name: str, share: float, requests: Sequence[SimulatedRequest]
) -> RealRun:
    """Send all requests, each `at_s` after the first, and wait for their ends."""
    vocabulary = engine.get_tokenizer().vocab_size
    prompts = [token_ids(one, vocabulary).tolist() for one in requests]
    begun = monotonic() + LEAD_S
    clients: list[TimedClient] = []
    for one, prompt in zip(requests, prompts, strict=True):
        await asyncio.sleep(begun + one.at_s - monotonic())
        clients.append(TimedClient(engine, prompt, one.output_len))
    outputs = [await client.ended() for client in clients]
    if wrong := [one.error for one in outputs if one.error]:
        raise SystemExit(f"{len(wrong)} requests of the load {name} failed: {wrong[0]}")
    timings = [one.timings for one in outputs]
    return RealRun(
        name,
        share,
        [
            replace(one, id=str(number), at_s=client.sent - begun)
            for number, (one, client) in enumerate(zip(requests, clients, strict=True))
        ],
        begun,
        [np.array(client.times) - begun for client in clients],
        np.array([client.times[-1] - begun for client in clients]),
        np.array([one.queue_s for one in timings]),
        np.array([one.prefill_s for one in timings]),
        np.array([one.usage.cached_tokens for one in outputs], np.int32),
        np.array([one.preemptions for one in timings], np.int32),
    )


def flat(runs: Sequence[RealRun]) -> Iterator[tuple[str, Any]]:
    """The arrays of all runs, under the number of each."""
    for number, run in enumerate(runs):
        for name, value in run.arrays().items():
            yield f"{number}.{name}", value
