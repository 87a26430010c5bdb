"""Blocks that move while steps run: not a byte is lost, whichever stream is late."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import Request, Scheduler
from paceline.core.arrays import NO_I32
from paceline.core.plan import NO_ROWS, Pairs, Plan, StepResult
from paceline.core.sampling import Sampling
from paceline.runner.cuda.residents import BlockCopies
from paceline.runner.kv_store import KVStore
from tests.gpu.support import ON_GPU
from tests.gpu.test_runner import both, gpu_runner, on_gpu
from tests.runner.driving import SETTINGS, TIGHT, drive, for_states
from tests.runner.support import tiny

pytestmark = ON_GPU

BLOCKS, HOST_BLOCKS, ROUNDS = 20, 16, 60
A_WHILE, LONG = 2_000_000, 400_000_000  # cycles: 1 ms, longer than a launch takes, and 0.2 s
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
late = pytest.mark.parametrize("late", ["nobody", "steps", "copies", "steps and copies"])


def hold_up(late: str, moves: BlockCopies, random: Random) -> None:
    """Let one of the streams sleep for a while, or both, or none."""
    for name, stream in (("steps", torch.cuda.current_stream()), ("copies", moves.stream)):
        if name in late and random.random() < 0.5:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(A_WHILE)


def some(random: Random, ends: int, others: int, most: int) -> Pairs:
    """Blocks of one kind to blocks of the other, each at most once."""
    count = random.randint(0, most)
    pairs = zip(random.sample(range(ends), count), random.sample(range(others), count), strict=True)
    return tuple(pairs)


class Mirror:
    """What ought to lie where: the number of a content for each block, moved one by one."""

    def __init__(self) -> None:
        self.gpu, self.host = [0] * BLOCKS, [0] * HOST_BLOCKS

    def carry_out(self, plan: Plan) -> None:
        before = self.gpu.copy()
        for source, target in plan.copies:
            self.gpu[target] = before[source]
        for source, target in plan.swap_out:
            self.host[target] = self.gpu[source]
        for source, target in plan.swap_in:
            self.gpu[target] = self.host[source]


def wrong(found: Tensor, expected: list[int], contents: Tensor) -> list[str]:
    """Blocks that do not hold what they ought to, and what they hold instead."""
    told: list[str] = []
    for block, number in enumerate(expected):
        if not torch.equal(found[block], contents[number]):
            same = [at for at, one in enumerate(contents) if torch.equal(found[block], one)]
            told.append(f"block {block} holds {same or 'a mixture'} instead of {number}")
    return told


@late
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_moves_keep_every_byte(dtype: torch.dtype, late: str) -> None:
    """Blocks are written again at once when they have gone out. Pieces are few and small, and
    moves go the same way for a while, so that pieces are needed again before they are free."""
    random = Random(f"{dtype} {late}")
    kv = KVStore(tiny(), BLOCKS, 4, dtype, "cuda")
    moves = BlockCopies(kv, HOST_BLOCKS, piece_bytes=2 * kv.block_bytes)
    moves.host.zero_()
    contents = torch.randint(0, 256, (64, kv.block_bytes), dtype=torch.uint8)
    contents[0] = 0  # what a store begins with
    written = contents.cuda()
    store, mirror = kv.content.flatten(1).view(torch.uint8), Mirror()
    ways = [way for way in random.choices("<>x", k=ROUNDS) for _ in range(random.randint(1, 8))]
    for step, way in enumerate(ways):
        hold_up(late, moves, random)
        plan = Plan(
            step,
            NO_ROWS,
            NO_I32,
            copies=some(random, BLOCKS, BLOCKS, 3),
            swap_out=() if way == "<" else some(random, BLOCKS, HOST_BLOCKS, 9),
            swap_in=() if way == ">" else some(random, HOST_BLOCKS, BLOCKS, 9),
        )
        moves.carry_out(plan)
        mirror.carry_out(plan)
        for block in random.sample(range(BLOCKS), 6):  # as a step does
            number = random.randrange(64)
            store[block].copy_(written[number])
            mirror.gpu[block] = number
    torch.cuda.synchronize()
    assert not wrong(store.cpu(), mirror.gpu, contents), "on the GPU"
    assert not wrong(moves.host.view(torch.uint8), mirror.host, contents), "on the host"


def moving(blocks: int = 8) -> tuple[BlockCopies, Pairs]:
    kv = KVStore(tiny(), blocks, 4, torch.float32, "cuda")
    return BlockCopies(kv, blocks), tuple((block, block) for block in range(blocks))


def test_a_step_does_not_wait_for_what_goes_to_the_host() -> None:
    moves, pairs = moving()
    is_gone = False
    for _ in range(2):  # memory is set up the first time, for which the GPU may come to rest
        torch.cuda.synchronize()
        with torch.cuda.stream(moves.stream):
            torch.cuda._sleep(LONG)
        moves.out(pairs)
        torch.cuda.current_stream().synchronize()
        is_gone = moves.stream.query()
    assert not is_gone, "the stream of the steps waited for a copy to the host"


def test_what_comes_from_the_host_does_not_wait_for_the_steps_before() -> None:
    moves, pairs = moving()
    has_ended = False
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        moves.back(pairs)
        moves.stream.synchronize()
        has_ended = torch.cuda.current_stream().query()
    assert not has_ended, "the copy from the host waited for the steps before it"


def test_a_step_waits_for_what_it_reads() -> None:
    moves, pairs = moving()
    moves.host.fill_(7)
    with torch.cuda.stream(moves.stream):
        torch.cuda._sleep(LONG)
    moves.back(pairs)
    read = moves._store.clone()
    assert bool((read == 7).all()), "it read blocks before they had come"


class Watched(BlockCopies):
    """Remembers what each block was when it left, and what it is when it has come back."""

    def __init__(self, kv: KVStore, host_blocks: int) -> None:
        super().__init__(kv, host_blocks, piece_bytes=2 * kv.block_bytes)
        self.left: dict[int, Tensor] = {}  # by host block
        self.came: list[tuple[int, int, Tensor, Tensor]] = []

    def out(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        for device, host in pairs:
            self.left[host] = self._words(memory)[device].clone()
        super().out(pairs, memory)

    def back(self, pairs: Sequence[tuple[int, int]], memory: Tensor | None = None) -> None:
        super().back(pairs, memory)
        for host, device in pairs:
            here = self._words(memory)[device].clone()
            self.came.append((host, device, self.left[host], here))


class Late:
    """A runner whose streams are held up now and then."""

    def __init__(self, runner: Any, late: str, random: Random) -> None:
        self._runner, self._late, self._random = runner, late, random

    def launch(self, plan: Plan) -> None:
        hold_up(self._late, self._runner._moves, self._random)
        self._runner.launch(plan)

    def wait(self) -> StepResult:
        return self._runner.wait()


def random_requests(random: Random, temperature: float) -> list[Request]:
    prompts = [[random.randrange(3, 60) for _ in range(random.randint(1, 20))] for _ in range(8)]
    return [
        Request(
            id=f"r{place}",
            prompt=prompt,  # pyright: ignore[reportArgumentType]
            max_tokens=random.randint(8, 28),
            sampling=Sampling(temperature=temperature),
            seed=place,
        )
        for place, prompt in enumerate(prompts)
    ]


@late
@pytest.mark.parametrize(
    ("family", "seed"), [*(("Llama", seed) for seed in range(3)), ("Qwen3_5", 3)]
)
def test_sequences_come_back_as_they_went(family: str, seed: int, late: str) -> None:
    """With their states, whose chunks differ with the schedule in the last bits."""
    random = Random(seed)
    model, _ = both(family)
    asked = random_requests(random, 0.9 if model.config.states is None else 0.0)
    plain = for_states(SETTINGS, model.config)
    settings = {**plain, **TIGHT, "preemption_mode": "swap", "swap_space": 40}
    scheduler = Scheduler.create(**settings)
    runner: Any = gpu_runner(model, scheduler)
    moves = runner._moves = Watched(runner._kv, 40)
    got = drive(scheduler, Late(runner, late, random), asked, depth=1 + seed)
    assert scheduler.stats.swapped_in_blocks, "nothing was swapped"
    changed = [(host, at) for host, at, left, here in moves.came if not torch.equal(left, here)]
    assert not changed, f"{len(changed)} of {len(moves.came)} blocks (host, GPU) came back changed"
    plainly, _ = on_gpu(model, asked, **plain)
    assert got == plainly


def test_measuring_leaves_the_store_as_it_was() -> None:
    model, _ = both("Llama")
    scheduler = Scheduler.create(**SETTINGS, preemption_mode="swap", swap_space=12)
    runner: Any = gpu_runner(model, scheduler)
    content = runner._kv.content
    content.normal_()
    before = content[:-1].clone()  # the last block is nobody's
    runner.warm()
    assert runner.positions_per_s() > 0
    assert runner.blocks_per_s() > 0
    assert torch.equal(content[:-1], before)
