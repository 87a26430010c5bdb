"""The time of every kernel that accepts the linears or the experts of a layer; prints JSON lines.

    python -m benchmarks.gpu_linears qwen3-14b 1 64 256 8192
    python -m benchmarks.gpu_linears qwen3-14b:fp8 1 64 256          quantized on load
    python -m benchmarks.gpu_linears qwen3-14b:modelopt 1 64 256     NVFP4
    python -m benchmarks.gpu_linears qwen3-14b:benchmarks.coded_formats.Q4K 1 64 256
    python -m benchmarks.gpu_linears qwen3-30b-a3b:fp8 1 64 256

`floor` is the time to read the weights once, or to compute. Copies of the weights take turns, so
that no cache holds them.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.gpu import BYTES_PER_S, FLOPS
from paceline.runner.cuda.experts.choice import choose_experts
from paceline.runner.cuda.experts.moe import KERNELS as EXPERT_KERNELS
from paceline.runner.cuda.experts.moe import expert_weights
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
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
        for kind in KERNELS:
            weights = LinearWeights.of(parts)
            if kind.of(weights, use) is None:
                continue
            size = bytes_of(weights.matrix)
            copies = [weights]
            copies += [LinearWeights.of(parts) for _ in range(CACHE_BYTES // size)]
            kernels = [kernel for one in copies if (kernel := kind.of(one, use)) is not None]
            outputs, inputs = weights.matrix.shape
            for count in (one for one in rows if one <= kernels[0].most_rows):
                x = torch.randn(count, inputs, device="cuda", dtype=DTYPE)
                total = torch.zeros(count, outputs, device="cuda", dtype=DTYPE)
                calls = [call_of(kernel, use, x, total) for kernel in kernels]
                floor = max(size / BYTES_PER_S, 2 * count * outputs * inputs / FLOPS)
                say(f"{name} {outputs}x{inputs}", weights.matrix, kind.name, count, calls, floor)
            del copies, kernels


def call_of(kernel: LinearKernel, use: Use, x: Tensor, total: Tensor) -> Callable[[], object]:
    if use is Use.NORMED:
        return partial(kernel.normed, x, FLOOR)
    if use is Use.GATED:
        return partial(kernel.gated, x, FLOOR, True)
    return partial(kernel.add_to, total, x)


def experts(factory: LayerFactory[CudaLinear], spec: MoESpec, rows: Sequence[int]) -> None:
    weights = expert_weights(factory, spec)
    for kind in EXPERT_KERNELS:
        if (kernel := kind.of(weights)) is None:
            continue
        gate_up, down = kernel.weights.gate_up, kernel.weights.down
        inputs, size = gate_up.shape[1], bytes_of(gate_up, down)
        each = 2 * spec.routing.chosen * (gate_up.shape[0] + down.shape[1]) * inputs
        for count in (one for one in rows if kernel.least_rows <= one <= kernel.most_rows):
            x, total = (torch.randn(count, inputs, device="cuda", dtype=DTYPE) for _ in range(2))
            # Each set of choices reads other experts.
            sets = [choices(spec, count) for _ in range(8)]
            choice = [choose_experts(one, spec.routing) for one in sets]
            calls = [partial(kernel.add_to, total, x, one) for one in choice]
            used = sum(int(one.topk(spec.routing.chosen).indices.unique().numel()) for one in sets)
            share = used / len(sets) / len(spec.experts)
            floor = max(share * size / BYTES_PER_S, count * each / FLOPS)
            say("experts", gate_up, kind.name, count, calls, floor)


def choices(spec: MoESpec, count: int) -> Tensor:
    return torch.randn(count, len(spec.experts), device="cuda")


def say(
    name: str,
    matrix: Matrix,
    kernel: str,
    rows: int,
    calls: Sequence[Callable[[], object]],
    floor: float,
) -> None:
    found = microseconds(calls)
    line = {"linear": name, "weights": matrix.form, "kernel": kernel, "rows": rows}
    line |= {"us": round(found, 1), "floor_us": round(1e6 * floor, 1)}
    print(json.dumps(line), flush=True)


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
