"""What an open live page costs an engine: CPU time of its step loop with a page and without.

For example `python -m benchmarks.live_page --running 1024`. Two engines with a device that takes
no time do the same, in turns on one thread; one of them is asked for frames as a server asks for a
page. It prints one JSON line per case. Steps of a real device take longer, and the share is
smaller.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import monotonic, thread_time_ns

import msgspec
import numpy as np

from benchmarks.null_device import NullRunner
from paceline.core.request import Request
from paceline.core.settings.config import Config
from paceline.engine.live.feed import FRAME_S, LiveFeed
from paceline.engine.live.frames import FrameAnswer, FrameQuestion
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.messages import Question
from paceline.engine.loop.ports import NOT_OBSERVED
from paceline.sched.scheduler import Scheduler

BLOCK_SIZE, PROMPT, LONGEST = 16, 64, 8192
WARM_STEPS, OUTLIER = 100, 3.0
QUICK = 10  # per cent of the steps, the ones that were disturbed least: none of them has a record
DEPTH = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that run at once. Each is replaced when it ends."""

    running: int
    outputs: tuple[int, int]  # tokens, from and to

    def requests(self, seed: int) -> Iterator[Request]:
        random, number = Random(seed), 0
        while True:
            prompt = [random.randrange(1000) for _ in range(PROMPT)]
            outputs = random.randint(*self.outputs)
            yield Request(id=f"r{number}", prompt=prompt, max_tokens=outputs, ignore_eos=True)
            number += 1


class MeasuredEngine:
    """An engine under a load. Its clock has the CPU time of its turns, so that a busy machine does
    not have it record more of fewer steps."""

    def __init__(self, load: Load) -> None:
        blocks = load.running * (PROMPT + load.outputs[1]) // BLOCK_SIZE + load.running
        config = Config.of(
            max_num_seqs=load.running,
            max_num_batched_tokens=8192,
            max_model_len=LONGEST,
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
        )
        self.now = 0.0
        clock, runner = (lambda: self.now), NullRunner(np.arange(1 << 16))
        self._engine = Engine(Scheduler(config), runner, clock, depth=DEPTH)
        feed = LiveFeed(self._engine.scheduler, clock, NOT_OBSERVED, self._engine.observe)
        self._engine.feed = feed
        self._page = FrameQuestion()
        self._requests = load.requests(seed=1)
        for _ in range(load.running):
            self._engine.submit(next(self._requests))
        while self._engine.scheduler.view.running < load.running:
            self._engine.turn()

    def turn(self) -> int:
        """Nanoseconds of CPU time that a turn took."""
        begun = thread_time_ns()
        delivery = self._engine.turn()
        took = thread_time_ns() - begun
        self.now += took / 1e9
        for _ in delivery.ended if delivery else ():
            self._engine.submit(next(self._requests))
        return took

    def ask(self) -> tuple[int, int]:
        """Nanoseconds of CPU time to answer a page, and the size of the answer."""
        begun = thread_time_ns()
        answer = self._engine.answer(Question("frames", self._page.argument()))
        took = thread_time_ns() - begun
        found = msgspec.msgpack.decode(answer, type=FrameAnswer)
        self._page = FrameQuestion(0, found.run, found.number)
        return took, len(answer)


def compared(name: str, load: Load, seconds: float) -> dict[str, object]:
    """Both engines do the same in each step, one right after the other, so that steps are compared
    in pairs; pairs that something else on the machine disturbed are left out."""
    closed, opened = MeasuredEngine(load), MeasuredEngine(load)
    answers: list[tuple[int, int]] = []
    pairs: list[tuple[int, int]] = []
    asked, end = -FRAME_S, monotonic() + seconds
    while monotonic() < end:
        if opened.now - asked >= FRAME_S:
            asked = opened.now
            answers.append(opened.ask())
        if len(pairs) % 2:
            pairs.append((closed.turn(), opened.turn()))
        else:
            later = opened.turn()
            pairs.append((closed.turn(), later))
    times = np.array(pairs[WARM_STEPS:]) / 1e3
    calm = times[(times < OUTLIER * np.median(times, axis=0)).all(axis=1)]
    without, with_page = calm.mean(axis=0).tolist()
    quick, quick_with_page = np.percentile(calm, QUICK, axis=0).tolist()
    answer_ms = statistics.mean(took for took, _ in answers[1:]) / 1e6
    step_share, frame_share = with_page / without - 1, answer_ms / 1e3 / FRAME_S
    return {
        "case": name,
        "running": load.running,
        "closed_us": round(without, 1),
        "open_us": round(with_page, 1),
        "closed_quick_us": round(quick, 2),
        "open_quick_us": round(quick_with_page, 2),
        "answer_ms": round(answer_ms, 2),
        "answer_bytes": round(statistics.mean(size for _, size in answers[1:])),
        "share_of_steps": round(step_share, 4),
        "share_of_frames": round(frame_share, 4),
        "share": round(step_share + frame_share, 4),
        "pairs": len(calm),
        "left_out": len(times) - len(calm),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure what an open live page costs.")
    parser.add_argument("--running", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each case")
    given = parser.parse_args()
    print(json.dumps({"machine": platform.machine(), "python": platform.python_version()}))
    cases = {
        "decode": Load(given.running, (4096, 6144)),
        "come and go": Load(given.running, (64, 448)),
    }
    for name, load in cases.items():
        print(json.dumps(compared(name, load, given.seconds)), flush=True)
