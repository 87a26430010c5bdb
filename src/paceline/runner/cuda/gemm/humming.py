"""Linears of 4 and 8 bits by the kernels of humming, an optional package that compiles them."""

# The package has no stubs, and is imported when weights are accepted.
# pyright: standard

import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.system.files import folder_for
from paceline.runner.cuda.gemm.library import FactoredLinear
from paceline.runner.cuda.gemm.linear_kernel import LinearWeights, Use
from paceline.runner.weights.fp4 import Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix
from paceline.runner.weights.quantized_matrix import INT4_BITS, CodedMatrix, GroupedMatrix, unpacked

log = logging.getLogger(__name__)
PACKAGE = "humming"
TAKEN = (GroupedMatrix, CodedMatrix, Mxfp4Matrix, Nvfp4Matrix)
LINES = 128  # outputs are padded to a multiple
INPUTS = 64  # must be a multiple
GROUPS = (16, 32, 64, 128)  # inputs that share a scale
ROWS = (8, 16, 32, 64, 128, 256, 2048)  # each range has a kernel of its own
MOST = 1 << 30  # rows
LOCKS = 2048  # counters of programs that share a sum
SIGN = 128  # of bytes
MOST_ZERO = 15  # of 4 bits
SHAPES = 4  # whose kernels are compiled at the same time, each in as many processes as it has
IS_SERIAL = "HUMMING_DISABLE_PARALLEL_BUILD"
FOLDERS = {"HUMMING_CACHE_DIR": "cache", "HUMMING_TMP_DIR": "tmp"}


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
            case GroupedMatrix(weight, scale, zero) if int(zero.max()) <= MOST_ZERO:
                packed = _in_groups("uint4", weight, scale.to(dtype))
                packed.tensors["zero_point"] = zeros(zero)
                packed.names["has_zero_point"] = True
                return packed
            case GroupedMatrix(weight, scale, zero):
                return _with_offsets(unpacked(weight), scale, -zero.float() * scale, dtype)
            case CodedMatrix(weight, step) if matrix.bits == INT4_BITS:
                offset = torch.zeros_like(step) if matrix.offset is None else matrix.offset
                return _with_offsets(weight, step, offset, dtype)
            case CodedMatrix(weight, step, None):  # codes from 0 to 255, 128 of which stands for 0
                return _in_groups("uint8", weight.view(torch.uint8) ^ SIGN, step.to(dtype))
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

    @property
    def group(self) -> int:
        return self.names["weight_scale_group_size"]


def _in_groups(codes: str, weight: Tensor, scale: Tensor, kind: str | None = None) -> Packed:
    group = weight.shape[-1] * (1 if codes == "uint8" else 2) // scale.shape[-1]
    names: dict[str, Any] = {"b_dtype": codes, "weight_scale_group_size": group}
    if kind is not None:
        names["bs_dtype"] = kind
    words = weight.contiguous().view(torch.int32)
    return Packed(names, {"weight": words, "weight_scale": scale.contiguous()})


def _with_offsets(codes: Tensor, step: Tensor, offset: Tensor, dtype: torch.dtype) -> Packed:
    """Codes of 4 bits, and zeros that are no integers. The weights of a group without a step are
    its offset."""
    is_flat = step == 0
    spread = is_flat.repeat_interleave(codes.shape[-1] // step.shape[-1], dim=-1)
    codes, step = codes.masked_fill(spread, 0), torch.where(is_flat, offset.abs(), step)
    packed = _in_groups("uint4", codes[..., ::2] | codes[..., 1::2] << 4, step.to(dtype))
    packed.tensors["zero_point"] = (-offset / step).nan_to_num(0.0).to(dtype)
    packed.names.update(has_zero_point=True, is_fp_zero_point=True)
    return packed


def zeros(zero: Tensor) -> Tensor:
    """Zeros [outputs, groups] of 4 bits, eight of adjacent outputs in an integer of 32."""
    turned = zero.mT.contiguous()
    return (turned[..., ::2] | turned[..., 1::2] << 4).view(torch.int32).mT.contiguous()


@cache
def package() -> Any:
    """The package; None: it is not installed, or finds no compiler of CUDA."""
    if find_spec(PACKAGE) is None:
        return None
    for name, folder in FOLDERS.items():
        os.environ.setdefault(name, str(folder_for(Path(PACKAGE) / folder)))
    try:
        with _building_nothing():
            for part in ("transform", "schema", "tune", "kernel.humming", "ops"):
                import_module(f"{PACKAGE}.{part}")
            import_module(f"{PACKAGE}.utils.nvrtc").get_nvrtc_library_path()
    except (ImportError, OSError, RuntimeError) as error:
        log.warning("humming is installed but not used: %s", error)
        return None
    return import_module(PACKAGE)


@contextmanager
def _building_nothing() -> Iterator[None]:
    """Without this, an import starts compilers for programs that wheels have."""
    before = os.environ.get(IS_SERIAL)
    os.environ[IS_SERIAL] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[IS_SERIAL]
        else:
            os.environ[IS_SERIAL] = before


@dataclass(frozen=True, slots=True, eq=False)
class HummingMatrix(Matrix):
    """Weights in the order of the package. They cannot be decoded.

    parts    tensors by their names
    config   what the package knows of the weights, in JSON
    size     outputs and inputs
    name     of the format that was read
    """

    parts: dict[str, Tensor]
    config: str
    size: tuple[int, int]
    name: str

    @staticmethod
    def of(
        matrix: Matrix, dtype: torch.dtype, bias: Tensor | None = None
    ) -> "HummingMatrix | None":
        """None: the package is not installed, or cannot compute these weights. A bias is for
        experts."""
        if isinstance(matrix, HummingMatrix):
            return matrix
        is_whole = dtype == torch.bfloat16 and matrix.shape[1] % INPUTS == 0
        if not is_whole or not isinstance(matrix, TAKEN) or not matrix.tensors[0].is_cuda:
            return None
        if package() is None:
            return None
        packed = Packed.of(matrix, dtype)
        if packed is None or packed.group not in GROUPS:
            return None
        if bias is not None:
            packed.tensors["bias"] = bias.to(dtype)
        return HummingMatrix.arranged(packed, matrix.shape, matrix.form, dtype)

    @staticmethod
    def arranged(
        packed: Packed, size: tuple[int, int], name: str, dtype: torch.dtype
    ) -> "HummingMatrix":
        (outputs, inputs), tensors, transform = size, packed.tensors, package().transform
        *experts, _, _ = tensors["weight"].shape
        config = transform.prepare_layer_config(
            outputs,
            inputs,
            package().schema.HummingWeightSchema(**packed.names),
            None,
            num_experts=experts[0] if experts else None,
            pad_n_to_multiple=LINES,
            has_bias="bias" in tensors,
            torch_dtype=dtype,
            device=tensors["weight"].device,
            tensors=tensors,
        )
        padded = {name: padded_to(one, name, outputs) for name, one in tensors.items()}
        parts = transform.transform_humming_tensors(config, padded, already_padded=True)
        scale = parts["weight_scale"]
        if scale.element_size() == 1:  # bytes, which torch can index
            parts["weight_scale"] = scale.view(tensors["weight_scale"].dtype)
        return HummingMatrix(parts, config.to_str(), size, name)

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
        raise ConfigError(
            f"weights in {self.name} are in the order of humming's kernels and cannot be decoded; "
            "without the package, they can"
        )


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
    """The kernels for some weights, one for each range of rows."""

    def __init__(
        self, matrix: HummingMatrix, kind: str = "dense", rows: Sequence[int] = ROWS
    ) -> None:
        self._matrix, device = matrix, matrix.tensors[0].device
        self._kernels = compiling(matrix.config, kind, tuple(rows), device)
        self._locks = torch.zeros(LOCKS, dtype=torch.int32, device=device)

    def run(self, x: Tensor, out: Tensor, ends: Tensor | None = None) -> Tensor:
        """`ends`, of experts: 0, and where the rows of each expert end."""
        package().ops.launch_kernel(
            configs=self._kernels.result(),
            inputs=x,
            outputs=out,
            expert_layout=ends,
            locks=self._locks,
            **self._matrix.parts,
        )
        return out


@cache
def compiling(
    weights: str, kind: str, rows: tuple[int, ...], device: torch.device
) -> Future[Tensor]:
    """The kernels of a shape, which are compiled while further weights are loaded. All are there
    before the first graph is captured, because every linear runs once before that."""
    return _compilers().submit(_compiled, weights, kind, rows, device)


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SHAPES, thread_name_prefix=PACKAGE)


def _compiled(weights: str, kind: str, rows: tuple[int, ...], device: torch.device) -> Tensor:
    config = {key: one for key, one in json.loads(weights).items() if key != "sublayer_name"}
    below, ranges = 0, []
    for most in (*rows, MOST):
        sample = rows[-1] if most == MOST else most
        # Otherwise programs that share a sum add to it in the order in which they end.
        tuned = package().tune.get_heuristics_config(
            config, shape_m=sample, device=device, gemm_type=kind, use_batch_invariant=True
        )
        ranges.append((below, most, tuned))
        below = most
    kernel, ways = package().kernel.humming.HummingKernel, json.dumps({"gemm_type": kind})
    try:
        return kernel.prepare_kernels(weights, ways, ranges, device=device)
    except (AssertionError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"humming cannot compile its kernels for {config['shape_n']} x {config['shape_k']} in "
            f"{config['b_dtype']}: {error}; without the package, paceline has its own"
        ) from error


class Humming(FactoredLinear):
    """Any number of rows in 16 bits. The weights are in an order that other kernels cannot read,
    so the few rows that a GEMV computes as fast are computed here too."""

    name = "humming"

    def __init__(self, weights: LinearWeights, matrix: HummingMatrix) -> None:
        super().__init__(weights)
        self._outputs, self._launches = matrix.shape[0], Launches(matrix)

    @classmethod
    def of(cls, weights: LinearWeights, use: Use) -> "Humming | None":
        """All uses."""
        matrix = HummingMatrix.of(weights.matrix, weights.dtype)
        if matrix is None:
            return None
        weights.matrix = matrix
        return cls(weights, matrix)

    def multiplied(self, x: Tensor) -> Tensor:
        return self._launches.run(x, x.new_empty((len(x), self._outputs)))
