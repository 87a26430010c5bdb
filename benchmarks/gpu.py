"""A model with random weights on a GPU under the real scheduler: the ground of `gpu_*.py`."""

import json
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import prod
from time import perf_counter
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from paceline import Request, Scheduler, StepResult
from paceline.core.masks import TokenMasks
from paceline.core.plan import Plan
from paceline.core.sampling import Sampling
from paceline.core.settings.features import SpeculationConfig
from paceline.runner.attention_backend import load
from paceline.runner.cuda.adapters import AdapterSizes
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import ModelConfig
from paceline.runner.models.describe import describe, manifest
from paceline.runner.models.experts import MoESpec
from paceline.runner.proposer import Drafter
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from paceline.wiring.memory import state_bytes

DEPTH = 2
ROWS, BUDGET, MAX_MODEL_LEN = 256, 16384, 2048
ROW_TOKENS = 1536  # with KV, on average
STEP_BYTES = 16 << 30  # for the largest step, graphs and libraries
BYTES_PER_S, FLOPS = 4.3e12, 790e12  # what a copy moves and a product computes on an H200
BF16_BYTES = 2
# Of linears in layers, by format.
WEIGHT_BYTES = {"": 2, "fp8": 1, "int8": 1, "int4": 0.5, "modelopt": 0.5625, "mxfp4": 0.5625}


@dataclass(frozen=True)
class Floor:
    """What a step cannot avoid: every weight once, every context, every state, every operation.
    Experts are chosen at random."""

    weight_bytes: float  # without experts
    expert_bytes: float
    chosen: float  # share of the experts that one position chooses
    token_bytes: int  # of KV
    state_bytes: int  # of a sequence, read and written
    token_flops: float  # of products, without the head
    head_flops: int

    @staticmethod
    def of(
        config: ModelConfig, quantization: str = "", kv_dtype: torch.dtype = torch.bfloat16
    ) -> "Floor":
        shapes = manifest(config)
        layers = sum(prod(shape) for name, shape in shapes.items() if ".layers." in name)
        experts = sum(prod(shape) for name, shape in shapes.items() if ".experts." in name)
        specs = describe(config).layers
        moe = next((one.mlp for one in specs if isinstance(one.mlp, MoESpec)), None)
        chosen = 1.0 if moe is None else moe.routing.chosen / len(moe.experts)
        each, head = WEIGHT_BYTES[quantization], config.vocab * config.width
        attention = sum(one.state is None for one in specs)
        return Floor(
            each * (layers - experts) + BF16_BYTES * head,
            each * experts,
            chosen,
            attention * config.cell.values * kv_dtype.itemsize,
            2 * state_bytes(config, BF16_BYTES),
            2 * (layers - experts + chosen * experts),
            2 * head,
        )

    def seconds(self, plan: Plan) -> float:
        contexts = int(plan.start.sum()) + plan.total
        experts = 1 - (1 - self.chosen) ** plan.total  # of them, at least one position chooses
        read = self.weight_bytes + experts * self.expert_bytes
        read += contexts * self.token_bytes + len(plan.rows) * self.state_bytes
        computed = plan.total * self.token_flops + int(plan.rows.samples.sum()) * self.head_flops
        return max(read / BYTES_PER_S, computed / FLOPS)


@dataclass
class Times:
    """Where the time went, in seconds."""

    host: float = 0.0  # planning, launching, committing
    waiting: float = 0.0
    floor: float = 0.0
    steps: int = 0
    mixed: int = 0  # steps with rows of more than one position
    positions: int = 0  # of those steps
    wall: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})  # by mixed

    def told(self) -> dict[str, Any]:
        return {
            "host_s": round(self.host, 3),
            "waiting_s": round(self.waiting, 3),
            "steps": self.steps,
            "mixed_steps": self.mixed,
            "mixed_positions": self.positions,
            "mixed_s": round(self.wall[True], 3),
            "decode_s": round(self.wall[False], 3),
        }


class OneToken(Dummy):
    """Random weights, but for the head: it gives all tokens the same logit."""

    def read(self, name: str) -> Tensor:
        weight = super().read(name)
        return weight.zero_() if name == "lm_head.weight" else weight


OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")  # of mixers and MLPs


class Counting(Dummy):
    """Random weights of a model that samples the id after the latest one, whatever else it reads:
    layers add nothing to the embedding, and the head looks for the embedding of the id before."""

    def read(self, name: str) -> Tensor:
        if name == "lm_head.weight":
            return super().read("model.embed_tokens.weight").roll(1, 0)
        weight = super().read(name)
        return weight.zero_() if name.endswith(OUTPUTS) else weight


class Bench:
    """A model on the GPU, and a scheduler for each workload."""

    def __init__(
        self,
        name: str,
        attention: str,
        block_size: int = 16,
        proposer: Drafter | None = None,
        masks: TokenMasks | None = None,
        weights: type[Dummy] = OneToken,
        *,
        room: AdapterSizes | None = None,
        warms: bool = True,
        kv_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """With a proposer, the graphs for drafts are captured too, and by these weights samples are
        known: the drafts of a benchmark are right where it says so, whatever a step rounds. Without
        `warms`, a graph is captured when it is first used."""
        shape, _, quantization = name.partition(":")
        raw = self.shape(shape)
        begin = perf_counter()
        self.name, self.attention = name, attention
        self.config = ModelConfig.of_hf(raw).loaded_as(quantization or "auto")
        if proposer:
            self.config = replace(self.config, tied_embedding=False)
        self.floor = Floor.of(self.config, quantization, kv_dtype)
        kind = weights if proposer else Dummy
        source = kind(self.config, device="cuda")
        self.model = CudaModel.load(source, MAX_MODEL_LEN, adapters=room)
        torch.cuda.synchronize()
        self.load_s = perf_counter() - begin
        proposes = proposer or Ngram(SpeculationConfig())
        self.block_size, tokens = block_size, self._room(proposes)
        self.blocks = min(tokens, ROWS * ROW_TOKENS) // block_size
        kv = KVStore(self.config, self.blocks + 1, block_size, kv_dtype, "cuda")
        for block in kv.content:
            block.copy_(torch.randn(block.shape, device="cuda"))
        sizes = RunnerSizes(ROWS, MAX_MODEL_LEN, BUDGET)
        self.runner = CudaRunner(self.model, kv, load(attention), proposes, sizes, masks)
        begin = perf_counter()
        if warms:
            self.runner.warm(drafts=proposer is not None)
        torch.cuda.synchronize()
        self.capture_s = perf_counter() - begin

    def _room(self, proposer: Drafter) -> int:
        """Tokens whose KV fits beside the weights, with what the proposer keeps of them."""
        free, _ = torch.cuda.mem_get_info()
        states = (ROWS + 1) * state_bytes(self.config, BF16_BYTES)
        each = self.floor.token_bytes + proposer.cell_bytes
        return max(free - STEP_BYTES - states, 0) // each

    @staticmethod
    def shape(name: str) -> dict[str, Any]:
        """The configuration of the model that gives the shape."""
        text = (files("paceline.runner.models") / f"shapes/{name}.json").read_text()
        return json.loads(text)

    def scheduler(self, **settings: Any) -> Scheduler:
        if settings.get("swap_space"):
            self.runner.reserve_host(settings["swap_space"])
        return Scheduler.create(
            max_num_seqs=ROWS,
            max_num_batched_tokens=settings.pop("budget", BUDGET),
            max_model_len=MAX_MODEL_LEN,
            num_blocks=settings.pop("blocks", self.blocks),
            block_size=self.block_size,
            state_blocks=-(-state_bytes(self.config, BF16_BYTES) // self.runner.kv_block_bytes),
            **settings,
        )

    def drive(self, scheduler: Scheduler, until: Callable[[Plan], bool] | None = None) -> Times:
        """Turn the loop until all is done, or `until` a plan says so."""
        times, flight = Times(), deque[Plan]()
        before = perf_counter()
        while not scheduler.idle:
            begin = perf_counter()
            plan = scheduler.plan(begin)
            self.runner.launch(plan)
            launched = perf_counter()
            times.host += launched - begin
            if not plan.empty:
                flight.append(plan)
                times.steps += 1
            if plan.empty and not flight:
                scheduler.commit(plan, StepResult.of(plan, {}), launched)
            elif plan.empty or len(flight) == DEPTH:
                result = self.runner.wait()
                landed = perf_counter()
                times.waiting += landed - launched
                self._account(times, flight[0], landed - before)
                before = landed
                scheduler.commit(flight.popleft(), result, landed)
                times.host += perf_counter() - landed
            if until is not None and until(plan):
                break
        while flight:
            scheduler.commit(flight.popleft(), self.runner.wait(), perf_counter())
        if scheduler.idle:
            self.runner.launch(scheduler.plan(perf_counter()))  # tells the runner who has left
        torch.cuda.synchronize()
        return times

    def _account(self, times: Times, plan: Plan, taken: float) -> None:
        is_mixed = plan.total > len(plan.rows)
        times.wall[is_mixed] += taken
        times.floor += self.floor.seconds(plan)
        times.mixed += is_mixed
        times.positions += plan.total if is_mixed else 0

    def say(self, **figures: Any) -> None:
        about = {
            "model": self.name,
            "attention": self.attention,
            "block_size": self.block_size,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "card": torch.cuda.get_device_name(),
            "commit": commit(),
            "load_s": round(self.load_s, 1),
            "capture_s": round(self.capture_s, 1),
        }
        print(json.dumps(about | figures), flush=True)


def commit() -> str:
    told = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


def submit(scheduler: Scheduler, prompts: list[list[int]], outs: list[int], heat: float) -> None:
    sampling = Sampling(temperature=heat)
    for number, (prompt, out) in enumerate(zip(prompts, outs, strict=True)):
        fields: dict[str, Any] = {"ignore_eos": True, "sampling": sampling, "seed": number}
        request = Request(id=f"r{number}", prompt=prompt, max_tokens=out, **fields)  # pyright: ignore[reportArgumentType]
        scheduler.submit(request, now=perf_counter())


def drawn(rows: int, length: int) -> list[list[int]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 10_000, length).tolist() for _ in range(rows)]
