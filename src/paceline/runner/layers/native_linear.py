"""Linears by kernels compiled for this processor."""

from ctypes import byref

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.runner.layers.linear import LinearParts
from paceline.runner.layers.packing import PackedStore, PackedWeights, packed_float32
from paceline.runner.native.library import MatrixStruct, library
from paceline.runner.weights.matrix import Matrix, PlainMatrix


class NativeLinear:
    """Weights of 8, 4 or 32 bits. The result of a row is bit-identical beside any other rows."""

    def __init__(
        self,
        weight: Tensor | PackedWeights,
        bias: Tensor | None,
        dtype: torch.dtype,
        factor: Tensor | None = None,
    ) -> None:
        """`packed` weights are used as they are."""
        packed = weight if isinstance(weight, PackedWeights) else pack(PlainMatrix(weight), dtype)
        self._kernels, self._outputs = library(), packed.outputs
        # Kept alive for the matrix.
        self._read = packed.content, packed.scale, bias, factor, packed.table, packed.order
        self.matrix = MatrixStruct(
            *(None if tensor is None else tensor.data_ptr() for tensor in self._read),
            packed.inputs,
            packed.width,
            packed.outputs,
            packed.bits,
        )

    @staticmethod
    def of(parts: LinearParts, packed: PackedStore | None = None) -> "NativeLinear":
        """Pack the weights, or take them from a store."""
        if packed is None:
            found = pack(parts.read(), parts.dtype)
        else:
            found = packed.packed(parts.name, parts.read)
        return NativeLinear(found, parts.bias, parts.dtype, parts.factor)

    @staticmethod
    def in_float32(parts: LinearParts) -> "NativeLinear":
        """Keep the weights as floats."""
        weight = parts.read().dense()
        check(weight.device, parts.dtype)
        return NativeLinear(packed_float32(weight), parts.bias, parts.dtype, parts.factor)

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), self._outputs)
        self._multiply(x, out, is_added=False)
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self._multiply(x, total, is_added=True)

    def _multiply(self, x: Tensor, out: Tensor, is_added: bool) -> None:
        rows, matrix = len(x), byref(self.matrix)
        scratch_bytes = self._kernels.linear_scratch_bytes(matrix, rows)
        scratch = torch.empty(scratch_bytes, dtype=torch.uint8)
        self._kernels.linear(
            matrix,
            x.data_ptr(),
            x.stride(0),
            rows,
            out.data_ptr(),
            out.stride(0),
            is_added,
            scratch.data_ptr(),
            torch.get_num_threads(),
        )


def pack(matrix: Matrix, dtype: torch.dtype) -> PackedWeights:
    check(matrix.tensors[0].device, dtype)
    return PackedWeights.of(matrix)


def check(device: torch.device, dtype: torch.dtype) -> None:
    if dtype != torch.float32 or device.type != "cpu":
        raise ConfigError(f"native linears need float32 on a CPU, not {dtype} on {device}")
