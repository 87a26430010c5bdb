"""Linears of weights of 4 to 8 bits by the kernels of humming, an optional package."""

# The package has no stubs, and is imported when weights are accepted.
# pyright: standard

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.cuda.gemm.fp8_codes import quantized_rows
from paceline.runner.cuda.gemm.library import deferred
from paceline.runner.cuda.gemm.linear_kernel import LinearKernel, LinearWeights, Use
from paceline.runner.cuda.kernels.layers import DeferredNorm, gated, normalized
from paceline.runner.weights.fp4 import Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import (
    FP8,
    INT4_BITS,
    CodedMatrix,
    GroupedMatrix,
    ScaledMatrix,
)

PACKAGE = "humming"
LINES = 128  # outputs are padded to a multiple
INPUTS = 64  # must be a multiple
ROWS = (8, 16, 32, 64, 128, 256, 2048)  # each range has a kernel of its own
MOST = 1 << 30  # rows
LOCKS = 2048  # counters of programs that share a sum
BLOCK = 128  # inputs that share a scale, if they are quantized
SIGN = 128  # of bytes
IS_SERIAL = "HUMMING_DISABLE_PARALLEL_BUILD"


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Weights as the package takes them before it arranges them: its names of their format, and
    tensors with experts before outputs."""

    names: dict[str, Any]
    tensors: dict[str, Tensor]

    @staticmethod
    def of(matrix: Matrix, dtype: torch.dtype) -> "Packed | None":
        """None: the package has no such weights."""
        match matrix:
            case GroupedMatrix(weight, scale, zero):
                packed = _in_groups("uint4", weight, scale.to(dtype))
                packed.tensors["zero_point"] = zeros(zero)
                packed.names["has_zero_point"] = True
                return packed
            case CodedMatrix(weight, step) if matrix.offset is None or matrix.bits == INT4_BITS:
                return _coded(matrix, weight, step, dtype)
            case ScaledMatrix(weight, scale) if weight.dtype == FP8:
                if matrix.is_by_row:
                    return Packed({"b_dtype": "float8e4m3"}, _named(weight, scale.to(dtype)))
                names = {"b_dtype": "float8e4m3", "weight_scale_group_size_n": matrix.block[0]}
                names["weight_scale_group_size"] = matrix.block[1]
                is_whole = not any(size % BLOCK for size in matrix.shape)
                return Packed(names, _named(weight, scale)) if is_whole else None
            case Mxfp4Matrix(weight, exponent):
                scale = exponent.view(torch.float8_e8m0fnu)
                return _in_groups("float4e2m1", weight, scale, "float8e8m0")
            case Nvfp4Matrix(weight, scale, whole):
                packed = _in_groups("float4e2m1", weight, scale, "float8e4m3")
                packed.tensors["weight_scale_2"] = whole.to(dtype)
                packed.names["weight_scale_2_type"] = "channel"
                return packed
            case _:
                return None


def _named(weight: Tensor, scale: Tensor) -> dict[str, Tensor]:
    return {"weight": weight.contiguous().view(torch.int32), "weight_scale": scale.contiguous()}


def _in_groups(codes: str, weight: Tensor, scale: Tensor, kind: str | None = None) -> Packed:
    group = weight.shape[-1] * (1 if codes == "uint8" else 2) // scale.shape[-1]
    names: dict[str, Any] = {"b_dtype": codes, "weight_scale_group_size": group}
    if kind is not None:
        names["bs_dtype"] = kind
    return Packed(names, _named(weight, scale))


def _coded(matrix: CodedMatrix, weight: Tensor, step: Tensor, dtype: torch.dtype) -> Packed:
    if matrix.bits != INT4_BITS:  # codes from 0 to 255, 128 of which stands for 0
        return _in_groups("uint8", weight.view(torch.uint8) ^ SIGN, step.to(dtype))
    packed = _in_groups("uint4", weight[..., ::2] | weight[..., 1::2] << 4, step.to(dtype))
    offset = torch.zeros_like(step) if matrix.offset is None else matrix.offset
    packed.tensors["zero_point"] = (-offset / step.clamp(min=1e-30)).to(dtype)
    packed.names.update(has_zero_point=True, is_fp_zero_point=True)
    return packed


def zeros(zero: Tensor) -> Tensor:
    """Zeros [outputs, groups] of 4 bits, eight of adjacent outputs in an integer of 32."""
    turned = zero.mT.contiguous()
    return (turned[..., ::2] | turned[..., 1::2] << 4).view(torch.int32).mT.contiguous()


@cache
def package() -> Any:
    """The package, or None if it is not installed."""
    if find_spec(PACKAGE) is None:
        return None
    before = os.environ.get(IS_SERIAL)
    os.environ[IS_SERIAL] = "1"  # or else the import starts compilers for what wheels have
    try:
        for part in ("transform", "schema", "tune", "kernel.humming", "ops"):
            import_module(f"{PACKAGE}.{part}")
    finally:
        if before is None:
            del os.environ[IS_SERIAL]
        else:
            os.environ[IS_SERIAL] = before
    return import_module(PACKAGE)


@dataclass(frozen=True, slots=True, eq=False)
class HummingMatrix(Matrix):
    """Weights in the order of the package.

    parts    tensors by their names
    config   what the package knows of the weights
    size     outputs and inputs
    name     of the format that was read
    """

    parts: dict[str, Tensor]
    config: Any
    size: tuple[int, int]
    name: str

    @staticmethod
    def of(
        matrix: Matrix, dtype: torch.dtype, bias: Tensor | None = None, is_fp8: bool = False
    ) -> "HummingMatrix | None":
        """None: the package is not installed, or cannot compute these weights. A bias is for
        experts; with `is_fp8`, inputs are quantized too."""
        if isinstance(matrix, HummingMatrix):
            return matrix
        (outputs, inputs), is_half = matrix.shape, dtype == torch.bfloat16
        packed = Packed.of(matrix, dtype) if is_half and package() is not None else None
        if packed is None or inputs % INPUTS or not packed.tensors["weight"].is_cuda:
            return None
        *experts, _, _ = packed.tensors["weight"].shape
        tensors = dict(packed.tensors)
        if bias is not None:
            tensors["bias"] = bias.to(dtype)
        schema, transform = package().schema, package().transform
        read = schema.HummingWeightSchema(**packed.names)
        given = None
        if is_fp8:
            is_blocked = read.weight_scale_group_size > 0
            group = BLOCK if is_blocked else 0
            given = schema.HummingInputSchema(
                a_dtype=package().dtypes.float8e4m3, input_scale_group_size=group
            )
        config = transform.prepare_layer_config(
            outputs,
            inputs,
            read,
            given,
            num_experts=experts[0] if experts else None,
            pad_n_to_multiple=LINES,
            has_bias=bias is not None,
            torch_dtype=dtype,
            device=tensors["weight"].device,
            tensors=tensors,
        )
        padded = {name: padded_to(one, name, outputs) for name, one in tensors.items()}
        parts = transform.transform_humming_tensors(config, padded, already_padded=True)
        scale = parts["weight_scale"]
        if scale.element_size() == 1:  # bytes, which torch can index
            parts["weight_scale"] = scale.view(tensors["weight_scale"].dtype)
        return HummingMatrix(parts, config, (outputs, inputs), matrix.form)

    @property
    def form(self) -> str:
        return self.name

    @property
    def shape(self) -> tuple[int, int]:
        return self.size

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.parts.values())

    def dense(self) -> Tensor:
        raise ConfigError(f"weights in {self.name} are in the order of {PACKAGE}, for its kernels")


def padded_to(tensor: Tensor, name: str, outputs: int) -> Tensor:
    """A tensor with rows for outputs that are missing to a multiple of `LINES`. Fp8 is viewed as
    bytes."""
    missing = -outputs % LINES
    bytes_ = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    if not missing:
        return bytes_
    dim = -1 if name in ("bias", "weight_scale_2") else -2
    count = missing * tensor.shape[dim] // outputs  # of packed zeros, there are fewer
    more = bytes_.narrow(dim, 0, 1).expand(
        *(count if at == tensor.ndim + dim else size for at, size in enumerate(tensor.shape))
    )
    return torch.cat((bytes_, more), dim=dim).contiguous()


class Launches:
    """The kernels for some weights, one for each range of rows, compiled at the start."""

    def __init__(
        self,
        matrix: HummingMatrix,
        kind: str = "dense",
        rows: Sequence[int] = ROWS,
        is_turned: bool = False,
    ) -> None:
        """`is_turned`: scales of inputs are [groups, rows]."""
        self._matrix, config = matrix, matrix.config
        device = matrix.tensors[0].device
        ways = {"gemm_type": kind, "use_m_major_input_scale": is_turned}
        tune, below, ranges = package().tune, 0, []
        for most in (*rows, MOST):
            sample = rows[-1] if most == MOST else most
            tuned = tune.get_heuristics_config(config, shape_m=sample, device=device, **ways)
            ranges.append((below, most, tuned))
            below = most
        kernel = package().kernel.humming.HummingKernel
        self._configs = kernel.prepare_kernels(
            config.to_str(), json.dumps(ways), ranges, device=device
        )
        self._locks = torch.zeros(LOCKS, dtype=torch.int32, device=device)

    def run(
        self,
        x: Tensor,
        out: Tensor,
        scale: Tensor | None = None,
        ends: Tensor | None = None,
    ) -> Tensor:
        """`ends`, of experts: 0, and where the rows of each expert end."""
        package().ops.launch_kernel(
            configs=self._configs,
            inputs=x,
            outputs=out,
            input_scale=scale,
            expert_layout=ends,
            locks=self._locks,
            **self._matrix.parts,
        )
        return out


class Humming(LinearKernel):
    """Any number of rows in 16 bits."""

    name = "humming"
    is_fp8 = False

    def __init__(self, weights: LinearWeights, matrix: HummingMatrix) -> None:
        self._weights, self._outputs = weights, matrix.shape[0]
        self._is_blocked = matrix.config.input_scale_group_size > 0
        self._launches = Launches(matrix, is_turned=self._is_blocked)

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Humming | None":
        """All uses."""
        matrix = HummingMatrix.of(weights.matrix, weights.dtype, is_fp8=cls.is_fp8)
        if matrix is None:
            return None
        weights.matrix = matrix
        return cls(weights, matrix)

    def plain(self, x: Tensor) -> Tensor:
        factor = self._weights.factor
        return self._multiplied(x if factor is None else (x * factor).to(x.dtype))

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        factor = self._weights.factor
        if factor is None:
            x, late = deferred(hidden, floor, self._weights)
        else:
            x, late = normalized(hidden, floor, factor), DeferredNorm(hidden, 0.0, 0)
        return self._multiplied(x), late

    def gated(self, hidden: Tensor, floor: float, is_silu: bool) -> Tensor:
        found, late = self.normed(hidden, floor)
        return gated(found, is_silu, late)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self.plain(x))

    def _multiplied(self, x: Tensor) -> Tensor:
        found, bias = x.new_empty((len(x), self._outputs)), self._weights.bias
        self._launches.run(x, found)
        return found if bias is None else found.add_(bias)


class HummingFp8(Humming):
    """Weights of fp8 and inputs that are quantized too."""

    name = "humming_fp8"
    is_fp8 = True

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Humming | None":
        matrix = weights.matrix
        is_fp8 = isinstance(matrix, ScaledMatrix) and matrix.weight.dtype == FP8
        return super().of(weights, use) if is_fp8 else None

    def plain(self, x: Tensor) -> Tensor:
        return self._quantized(x, None)

    def normed(self, hidden: Tensor, floor: float) -> tuple[Tensor, DeferredNorm]:
        return self._quantized(hidden, floor), DeferredNorm(hidden, 0.0, 0)

    def _quantized(self, x: Tensor, floor: float | None) -> Tensor:
        group = BLOCK if self._is_blocked else 0
        codes, scale = quantized_rows(x, self._weights.factor, floor, group)
        found, bias = x.new_empty((len(codes), self._outputs)), self._weights.bias
        self._launches.run(codes, found, scale.t() if self._is_blocked else scale)
        found = found[: len(x)]
        return found if bias is None else found.add_(bias)
