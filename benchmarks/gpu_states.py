"""The time of the kernels of layers with states, in the shapes of Qwen3.6-35B-A3B; prints
JSON lines.

    python -m benchmarks.gpu_states                    decodes, prompts, and each kernel of a prompt
    python -m benchmarks.gpu_states decode 1 8 64 256
    python -m benchmarks.gpu_states prompt 1x65536 16x512
    python -m benchmarks.gpu_states mamba2             the same of Granite 4.0 H Small
    python -m benchmarks.gpu_states kda                the same of Kimi-Linear
    python -m benchmarks.gpu_states drafts 1 64        rows of four positions, and what accepts them
    python -m benchmarks.gpu_states variants           with other numbers of warps, values, stages

A decode is all that a layer does between its linears. `floor_us` is the time to read and write each
state once; states take turns, so that no cache holds them. `kernels` are the times of the kernels
of a prompt. With fla-core installed, `fla_us` is the time of its kernels for a prompt, without
convolution and norm.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from benchmarks.gpu import BYTES_PER_S
from benchmarks.gpu_linears import CACHE_BYTES, microseconds
from paceline.runner.batch import Batch
from paceline.runner.cuda.states import chunk_inputs, chunked, convolution, recurrence
from paceline.runner.cuda.states.chunk_inputs import inverted, with_decays
from paceline.runner.cuda.states.chunked import advance, carry, read
from paceline.runner.cuda.states.convolution import Convolution
from paceline.runner.cuda.states.drafted import advance_accepted, step_with_drafts
from paceline.runner.cuda.states.finish import GroupNorm, OutputGates, finish
from paceline.runner.cuda.states.recurrence import Decay, RecurrenceSizes, step
from paceline.runner.cuda.states.rows import CudaStateRows
from paceline.runner.models.states.state_layout import StateLayout
from paceline.runner.models.states.state_sizes import StateTensor, StateUpdate
from paceline.runner.state_store import RowStates, StateStore

DTYPE, TAPS = torch.bfloat16, 4
DELTA = RecurrenceSizes(
    *(32, 2, 128, 128),
    query=0,
    key=2048,
    value=4096,
    decay=12_320,
    rate=12_288,
    corrects=True,
)
KDA = RecurrenceSizes(  # Kimi-Linear
    *(32, 1, 128, 128),
    query=0,
    key=4096,
    value=8192,
    decay=16_416,
    rate=16_384,
    corrects=True,
    by_key=True,
)
MAMBA2 = RecurrenceSizes(
    *(128, 128, 128, 64),
    query=8320,
    key=8192,
    value=0,
    decay=16_640,
    rate=16_640,
    corrects=False,
)

SIZES = {"mamba2": MAMBA2, "kda": KDA}


class Layer:
    """A layer with random weights, between its linears."""

    def __init__(self, sizes: RecurrenceSizes, device: str = "cuda") -> None:
        self.sizes, self.device = sizes, device
        heads, inner = sizes.heads, sizes.heads * sizes.value_dim
        groups = heads // sizes.shared * sizes.key_dim
        decays = heads * sizes.decays
        self.channels = inner + 2 * groups
        self.inputs = self.channels + inner + heads + decays
        weight = self.drawn(TAPS, self.channels)
        vectors = {"unit": 2 * groups, "width": sizes.key_dim} if sizes.corrects else {}
        first = 0 if sizes.corrects else inner
        self.convolution = Convolution(weight, None, first, **vectors)
        speed, bias = (torch.randn(size, device=device) for size in (heads, decays))
        self.decay = Decay(-speed.exp(), bias, skip=None if sizes.corrects else bias)
        factor = torch.ones(inner, device=device)
        norm = GroupNorm(factor, heads if sizes.corrects else 1, 1e-3, not sizes.corrects)
        self.gates = OutputGates(norm, self.channels if sizes.corrects else 0)
        state = StateTensor((heads, sizes.key_dim, sizes.value_dim), is_recurrent=True)
        tail = StateTensor((TAPS - 1, self.channels), is_recurrent=False)
        update = StateUpdate(decays, groups, inner)
        self.layout = StateLayout(((state, tail),), DTYPE.itemsize, update)

    def drawn(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=DTYPE)

    def rows(self, store: StateStore, first: int, counts: list[int], longer: int) -> CudaStateRows:
        """Rows behind 9 positions, in the slots from `first` on."""
        ints = {"dtype": torch.int32, "device": self.device}
        start = torch.tensor([0, *counts], **ints).cumsum(0, dtype=torch.int32)
        slot = torch.arange(first, first + len(counts), **ints)
        tokens = torch.zeros(sum(counts), **ints)
        context = torch.tensor(counts, **ints) + 9
        batch = Batch(
            *(tokens, tokens, start, context, tokens, tokens, tokens),
            states=RowStates(store, slot, longer),
        )
        rows = CudaStateRows.of(batch)
        assert rows is not None
        return rows

    def decode(self, inputs: Tensor, rows: CudaStateRows) -> Tensor:
        out = inputs.new_empty(len(inputs), self.sizes.heads * self.sizes.value_dim)
        state, tails = rows.of_layer(0)
        step(inputs, rows, (state, tails), self.convolution, self.sizes, self.decay, out)
        finish(out, inputs, rows, self.gates, self.convolution, 0)
        return out

    def prompt(self, inputs: Tensor, rows: CudaStateRows) -> dict[str, Callable[[], object]]:
        """The kernels of a prompt by name, and together those that fla has."""
        sizes, decay, mixes = self.sizes, self.decay, self.convolution
        states, tails = rows.of_layer(0)
        out = inputs.new_empty(len(inputs), sizes.heads * sizes.value_dim)
        mixed = mixes.empty(inputs)
        mixes.chunks(inputs, rows, tails, mixed)
        chunks = with_decays(inputs, mixed, rows, sizes, decay)
        inverse = inverted(chunks) if sizes.corrects else None
        carried = carry(chunks, states, inverse)
        found: dict[str, Callable[[], object]] = {
            "recurrence": partial(advance, inputs, mixed, rows, states, sizes, decay, out),
            "convolution": partial(mixes.chunks, inputs, rows, tails, mixed),
            "decays": partial(with_decays, inputs, mixed, rows, sizes, decay),
            "carry": partial(carry, chunks, states, inverse),
            "read": partial(read, chunks, carried, decay, out),
            "finish": partial(finish, out, inputs, rows, self.gates, mixes, 0),
        }
        return found | ({"inverted": partial(inverted, chunks)} if sizes.corrects else {})


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def decodes(layer: Layer, rows: int) -> None:
    each = rows * layer.layout.bytes
    sets = -(-CACHE_BYTES // each) + 1
    store = StateStore(layer.layout, sets * rows, DTYPE, layer.device)
    inputs = layer.drawn(rows, layer.inputs)
    chosen = [layer.rows(store, one * rows, [1] * rows, 0) for one in range(sets)]
    found = microseconds([partial(layer.decode, inputs, one) for one in chosen])
    floor = 1e6 * 2 * each / BYTES_PER_S
    say(case=f"decode:{rows}", us=round(found, 1), floor_us=round(floor, 1))


def prompts(layer: Layer, rows: int, positions: int) -> None:
    store = StateStore(layer.layout, rows, DTYPE, layer.device)
    inputs = layer.drawn(rows * positions, layer.inputs)
    its = layer.rows(store, 0, [positions] * rows, rows)
    kernels = layer.prompt(inputs, its)
    times = {name: round(microseconds([call])) for name, call in kernels.items()}
    line = {"us": times.pop("recurrence"), "kernels": times}
    if layer.sizes.corrects and find_spec("fla"):
        line["fla_us"] = round(microseconds([partial(of_fla, *fla_inputs(layer, rows, positions))]))
    say(case=f"prompt:{rows}x{positions}", **line)


def drafts(layer: Layer, rows: int, most: int = 3) -> None:
    """Rows with drafts, which are all accepted."""
    store = StateStore(layer.layout, rows, DTYPE, layer.device)
    store.keep_drafts(most)
    inputs = layer.drawn(rows * (1 + most), layer.inputs)
    its = layer.rows(store, 0, [1 + most] * rows, 0)
    number = torch.full_like(its.slot, most)
    its = replace(its, drafts=number, end=its.row_start[-1:].clone())
    out = inputs.new_empty(len(inputs), layer.sizes.heads * layer.sizes.value_dim)

    def step() -> None:
        step_with_drafts(inputs, its, 0, layer.convolution, layer.sizes, layer.decay, out)
        finish(out, inputs, its, layer.gates, layer.convolution, 0)

    known = its.context - most
    accept = partial(advance_accepted, store, its.slot, known, number, its.context)
    times = {"us": microseconds([step]), "advance_us": microseconds([accept])}
    floor = 1e6 * rows * layer.layout.bytes / BYTES_PER_S
    rounded = {name: round(found, 1) for name, found in times.items()}
    say(case=f"drafts:{rows}", **rounded, read_floor_us=round(floor, 1))


# By module: constants, their values now, and others to try one at a time.
VARIANTS: dict[ModuleType, dict[str, tuple[int, ...]]] = {
    recurrence: {"NARROW": (16, 64), "WIDE": (32, 128), "STEP_WARPS": (2, 8)},
    convolution: {"TILE": (8, 32, 64)},
    chunk_inputs: {"REGISTERS": (128, 255), "HEADS_AT_ONCE": (8, 16)},
    chunked: {
        "CARRIED": (16, 64),
        "CARRY_WARPS": (4,),
        "CARRY_STAGES": (1, 3),
        "READ": (64,),
        "READ_WARPS": (8,),
    },
}


def variants(layer: Layer) -> None:
    """Decodes and prompts with each constant changed."""
    for module, constants in VARIANTS.items():
        for name, others in constants.items():
            before = getattr(module, name)
            for value in (before, *others):
                setattr(module, name, value)
                say(variant=f"{name}={value}", now=value == before)
                if module is recurrence:
                    for rows in (1, 64, 256):
                        decodes(layer, rows)
                else:
                    prompts(layer, 1, 65_536)
                    prompts(layer, 16, 512)
            setattr(module, name, before)


def fla_inputs(layer: Layer, rows: int, positions: int) -> tuple[Tensor, ...]:
    sizes, shape = layer.sizes, (1, rows * positions)
    query, key, value = (layer.drawn(*shape, sizes.heads, sizes.key_dim) for _ in range(3))
    decay, rate = (layer.drawn(*shape, sizes.heads).float().sigmoid() for _ in range(2))
    starts = torch.arange(rows + 1, device=layer.device) * positions
    return query, key, value, decay.log(), rate.to(DTYPE), starts


def of_fla(*inputs: Tensor) -> None:
    from fla.ops.gated_delta_rule import (  # pyright: ignore[reportMissingImports]
        chunk_gated_delta_rule,
    )

    *first, starts = inputs
    chunk_gated_delta_rule(
        *first, cu_seqlens=starts, output_final_state=True, use_qk_l2norm_in_kernel=True
    )


def main() -> None:
    words = sys.argv[1:]
    chosen = [SIZES[word] for word in words if word in SIZES]
    layer = Layer(chosen[0] if chosen else DELTA)
    named = [word for word in words if word not in SIZES]
    kind, *sizes = named or ("all",)
    with torch.inference_mode():
        if kind in ("all", "decode"):
            for rows in map(int, sizes or ("1", "8", "64", "256")):
                decodes(layer, rows)
        if kind == "drafts":
            for rows in map(int, sizes or ("1", "8", "64", "256")):
                drafts(layer, rows)
        if kind == "variants":
            variants(layer)
        if kind in ("all", "prompt"):
            for size in sizes or ("1x65536", "16x512"):
                prompts(layer, *map(int, size.split("x")))


if __name__ == "__main__":
    main()
