"""What is measured: each case names its requests, the limits of the scheduler, and the pool."""

from collections.abc import Callable
from dataclasses import dataclass

import workloads
from workloads import Work

BLOCK_SIZE = 16
MAX_MODEL_LEN = 131072
STEPS, WARM_STEPS = 200, 20  # of the cases that measure a step
QUEUED = (0, 100, 1_000, 10_000)
TOTALS = ("churn", "pressure", "pressure_long", "nano")
FAMILY = 4
ALONE = ("families",)  # cases that the peer has nothing like
PER_STEP = ("steady", "families", "async", "waiting", "waiting_blocks")
NAMES = ("steady", "families", "async", *TOTALS, "waiting", "waiting_blocks")


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement. `num_blocks` counts the null block that the peer sets aside.

    With `running > 0` the measurement is one step, taken when that many requests decode and
    nothing else can run; with `running == 0` it is everything until the last request ended.
    """

    spec: str
    work: Callable[[], list[Work]]
    num_blocks: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    running: int = 0
    depth: int = 1  # steps in flight
    as_peer: bool = True  # settings under which ours plans what the peer plans
    samples: int = 1  # sequences of each request

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - 1


def parse(spec: str) -> Case:
    """`steady:64`, `async:64`, `waiting:1000`, `churn`, `churn_reserved` and so on."""
    name, _, number = spec.partition(":")
    if name in ("steady", "async", "families"):
        samples = FAMILY if name == "families" else 1
        return _steady(spec, int(number), depth=2 if name == "async" else 1, samples=samples)
    if name in ("waiting", "waiting_blocks"):
        return _waiting(spec, int(number), short_of_blocks=name == "waiting_blocks")
    return _total(spec)


def _steady(spec: str, running: int, depth: int, samples: int) -> Case:
    blocks_each = (512 + STEPS + WARM_STEPS + 128) // BLOCK_SIZE + 2
    return Case(
        spec,
        work=lambda: workloads.steady(running // samples),
        num_blocks=running * blocks_each + 64,
        max_num_seqs=running,
        running=running,
        depth=depth,
        samples=samples,
    )


def _waiting(spec: str, queued: int, short_of_blocks: bool) -> Case:
    """A full batch before a queue; or a free place in it, and a first request that needs
    more blocks than the 64 running ones leave: 1,024 of 3,071, of which they hold 2,112 or more.
    """
    running, blocks_each = 64, 48
    return Case(
        spec,
        work=lambda: workloads.waiting(running, queued, first=16384 if short_of_blocks else 64),
        num_blocks=running * blocks_each,
        max_num_seqs=running + short_of_blocks,
        max_num_batched_tokens=32768,
        running=running,
    )


def _total(spec: str) -> Case:
    name = spec.removesuffix("_reserved")
    work, num_blocks = {
        "churn": (workloads.churn, 65536),
        "pressure": (workloads.pressure, 6144),
        "pressure_long": (workloads.pressure_long, 6144),
        "nano": (workloads.nano, 32768 + 64),
    }[name]
    return Case(spec, work, num_blocks, as_peer=name == spec)
