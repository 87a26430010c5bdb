"""The time of every kernel that accepts the linears or the experts of a layer; prints JSON lines.

    python -m benchmarks.gpu_linears qwen3-14b 1 64 256 8192
    python -m benchmarks.gpu_linears qwen3-14b:fp8 1 64 256          quantized on load
    python -m benchmarks.gpu_linears qwen3-14b:modelopt 1 64 256     NVFP4
    python -m benchmarks.gpu_linears qwen3-14b:benchmarks.coded_formats.Q4K 1 64 256
    python -m benchmarks.gpu_linears qwen3-30b-a3b:fp8 1 64 256

Results are compared with those of decoded weights in float32: `off` is their distance. `load_s` is
the time to arrange weights, and to compile kernels if they are not compiled beside it; `floor_us`
the time to read the weights once, or to compute. Copies of the weights take turns, so that no cache
holds them.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu import BYTES_PER_S, FLOPS
from paceline.runner.cuda.experts.choice import choose_experts
from paceline.runner.cuda.experts.moe import KERNELS as EXPERT_KERNELS
from paceline.runner.cuda.experts.moe import expert_weights
from paceline.runner.cuda.gemm.linear_kernel import (
    ExpertChoice,
    ExpertKernel,
    ExpertWeights,
    LinearKernel,
    LinearWeights,
    Use,
)
from paceline.runner.cuda.kernels.layers import divide
from paceline.runner.cuda.linears import KERNELS, CudaLinear
from paceline.runner.layers.factory import LayerFactory
from paceline.runner.layers.linear import LinearParts
from paceline.runner.models.architecture import LayerSpec, MLPSpec
from paceline.runner.models.describe import config_in, describe
from paceline.runner.models.experts import MoESpec
from paceline.runner.weights.dummy import Dummy
from paceline.runner.weights.matrix import Matrix

DTYPE, FLOOR = torch.bfloat16, 1e-3
CACHE_BYTES = 200 << 20  # of the GPU, and some more
REPEATS, RUNS = 8, 5
MOST_OFF = 0.1  # a kernel beyond this is wrong


def bytes_of(*matrices: Matrix) -> int:
    return sum(tensor.nbytes for matrix in matrices for tensor in matrix.tensors)


def microseconds(calls: Sequence[Callable[[], object]]) -> float:
    """Of one call, in a graph of several runs of them all."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            for call in calls:
                call()
    times: list[float] = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / (REPEATS * len(calls)))
    return median(times)


def uses(layer: LayerSpec) -> Iterator[tuple[str, Use]]:
    """The linears of a layer with a plain MLP, by their fields, and what is around them."""
    yield "qkv", Use.NORMED
    yield "output", Use.ADDED
    if isinstance(layer.mlp, MLPSpec):
        yield "gate_up", Use.GATED
        yield "down", Use.ADDED


def parts_of(factory: LayerFactory[CudaLinear], layer: LayerSpec, name: str) -> LinearParts:
    attention, mlp = layer.attention, layer.mlp
    if name in ("qkv", "output"):
        before = attention.norm if name == "qkv" else None
        return factory.parts(getattr(attention, name), before)
    return factory.parts(getattr(mlp, name), mlp.norm if name == "gate_up" else None)


def linears(factory: LayerFactory[CudaLinear], layer: LayerSpec, rows: Sequence[int]) -> None:
    for name, use in uses(layer):
        parts = parts_of(factory, layer, name)
        read = LinearWeights.of(parts)
        outputs, inputs = read.matrix.shape
        given = [torch.randn(count, inputs, device="cuda", dtype=DTYPE) for count in rows]
        cases = [(x, due_of(read, use, x)) for x in given]
        del read
        for kind in KERNELS:
            with told(f"{name} {outputs}x{inputs}", kind.name):
                time_linear(kind, parts, use, name, cases)
            torch.cuda.empty_cache()


def time_linear(
    kind: type[LinearKernel],
    parts: LinearParts,
    use: Use,
    name: str,
    cases: Sequence[tuple[Tensor, Tensor]],
) -> None:
    weights, begin = LinearWeights.of(parts), perf_counter()
    if kind.of(weights, use) is None:
        return
    torch.cuda.synchronize()
    outputs, inputs = weights.matrix.shape
    say(f"{name} {outputs}x{inputs}", weights.matrix, kind.name, load_s=perf_counter() - begin)
    size = bytes_of(weights.matrix)
    copies = [weights, *(LinearWeights.of(parts) for _ in range(CACHE_BYTES // size))]
    kernels = [kernel for one in copies if (kernel := kind.of(one, use)) is not None]
    for x, due in cases:
        count = len(x)
        if count > kernels[0].most_rows:
            continue
        total = torch.zeros(count, outputs, device="cuda", dtype=DTYPE)
        error = distance(result_of(kernels[0], use, x), due)
        calls = [call_of(kernel, use, x, total) for kernel in kernels]
        floor = max(size / BYTES_PER_S, 2 * count * outputs * inputs / FLOPS)
        times = {"us": microseconds(calls), "floor_us": 1e6 * floor}
        say(f"{name} {outputs}x{inputs}", weights.matrix, kind.name, rows=count, **times, off=error)


def due_of(weights: LinearWeights, use: Use, x: Tensor) -> Tensor:
    """What a linear computes, in float32 from decoded weights."""
    values = x.float()
    if use is not Use.ADDED:
        values = values / values.square().sum(dim=1, keepdim=True).add(FLOOR**2).sqrt()
    if weights.factor is not None:
        values = values * weights.factor
    found = values @ weights.matrix.dense().t()
    if weights.bias is not None:
        found += weights.bias.float()
    if use is not Use.GATED:
        return found
    gate, up = found.chunk(2, dim=1)
    return F.silu(gate) * up


def result_of(kernel: LinearKernel, use: Use, x: Tensor) -> Tensor:
    if use is Use.GATED:
        return kernel.gated(x, FLOOR, True)
    if use is Use.ADDED:
        return kernel.plain(x)
    found, late = kernel.normed(x, FLOOR)
    if late.width:
        divide(found, late)
    return found


def distance(found: Tensor, due: Tensor) -> float:
    """How far results are from float32, as a share of their length."""
    off = float((found.float() - due).norm() / due.norm())
    if not off < MOST_OFF:
        raise ArithmeticError(f"results are {off} off")
    return off


def call_of(kernel: LinearKernel, use: Use, x: Tensor, total: Tensor) -> Callable[[], object]:
    if use is Use.NORMED:
        return partial(kernel.normed, x, FLOOR)
    if use is Use.GATED:
        return partial(kernel.gated, x, FLOOR, True)
    return partial(kernel.add_to, total, x)


def experts(factory: LayerFactory[CudaLinear], spec: MoESpec, rows: Sequence[int]) -> None:
    weights = expert_weights(factory, spec)
    inputs = weights.gate_up.shape[1]
    cases: list[ExpertCase] = []
    for count in rows:
        x = torch.randn(count, inputs, device="cuda", dtype=DTYPE)
        # Each set of choices reads other experts.
        scores = [torch.randn(count, len(spec.experts), device="cuda") for _ in range(8)]
        choice = [choose_experts(one, spec.routing) for one in scores]
        expert = [one.topk(spec.routing.chosen).indices for one in scores]
        due = sum_of_experts(weights, x, expert[0], choice[0].share)
        used = sum(int(one.unique().numel()) for one in expert)
        cases.append((x, choice, used / len(expert) / len(spec.experts), due))
    for kind in EXPERT_KERNELS:
        with told("experts", kind.name):
            time_experts(kind, weights, cases)
        torch.cuda.empty_cache()


# Inputs, choices of experts, the share of experts that each needs, and the results of the first.
ExpertCase = tuple[Tensor, list[ExpertChoice], float, Tensor]


def time_experts(
    kind: type[ExpertKernel], weights: ExpertWeights, cases: Sequence[ExpertCase]
) -> None:
    begin = perf_counter()
    if (kernel := kind.of(weights)) is None:
        return
    torch.cuda.synchronize()
    gate_up, down = kernel.weights.gate_up, kernel.weights.down
    say("experts", gate_up, kind.name, load_s=perf_counter() - begin)
    size, (outputs, inputs) = bytes_of(gate_up, down), gate_up.shape
    for x, choices, share, due in cases:
        count = len(x)
        if not kernel.least_rows <= count <= kernel.most_rows:
            continue
        total = torch.zeros_like(x)
        kernel.add_to(total, x, choices[0])
        error = distance(total, due)
        calls = [partial(kernel.add_to, total, x, one) for one in choices]
        each = 2 * choices[0].chosen * (outputs + down.shape[1]) * inputs
        floor = max(share * size / BYTES_PER_S, count * each / FLOPS)
        times = {"us": microseconds(calls), "floor_us": 1e6 * floor}
        say("experts", gate_up, kind.name, rows=count, **times, off=error)


def sum_of_experts(weights: ExpertWeights, x: Tensor, expert: Tensor, share: Tensor) -> Tensor:
    """What experts compute, in float32 from decoded weights."""

    def linear(matrix: Matrix, bias: Tensor | None, own: int, values: Tensor) -> Tensor:
        weight = matrix.with_tensors(tensor[own] for tensor in matrix.tensors).dense()
        found = values @ weight.t()
        return found if bias is None else found + bias[own]

    values = x.float() if weights.factor is None else x.float() * weights.factor
    total, clamp = torch.zeros_like(x, dtype=torch.float32), weights.gate.clamp
    for own in range(len(weights.gate_up.tensors[0])):
        row, rank = (expert == own).nonzero(as_tuple=True)
        gate, up = linear(weights.gate_up, weights.gate_up_bias, own, values[row]).chunk(2, dim=1)
        if clamp is None:
            inner = F.silu(gate) * up
        else:
            gate, up = gate.clamp(max=clamp.limit), up.clamp(-clamp.limit, clamp.limit)
            inner = gate * torch.sigmoid(clamp.alpha * gate) * (up + 1)
        found = linear(weights.down, weights.down_bias, own, inner)
        total.index_add_(0, row, found * share[row, rank].unsqueeze(1))
    return total


@contextmanager
def told(name: str, kernel: str) -> Iterator[None]:
    """An error of one kernel is a line, and others follow."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"[:500]
        print(json.dumps({"linear": name, "kernel": kernel, "error": text}), flush=True)


def say(name: str, matrix: Matrix, kernel: str, **numbers: float) -> None:
    line = {"linear": name, "weights": matrix.form, "kernel": kernel}
    print(json.dumps(line | {key: round(one, 4) for key, one in numbers.items()}), flush=True)


def main() -> None:
    name, *rows = sys.argv[1:]
    shape, _, quantization = name.partition(":")
    config = config_in(shape).loaded_as(quantization or "auto")
    layer = describe(config).layers[-1]
    factory = LayerFactory(Dummy(config, device="cuda"), DTYPE, "cuda", CudaLinear)
    counts = [int(one) for one in rows or ("1", "64", "256")]
    linears(factory, layer, counts)
    if isinstance(layer.mlp, MoESpec):
        experts(factory, layer.mlp, counts)


if __name__ == "__main__":
    main()
