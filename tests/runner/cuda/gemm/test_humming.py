"""Weights as humming takes them, decoded again by its rules."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.coded_formats import codes_in_groups
from paceline.runner.cuda.gemm.humming import LINES, Packed, padded_to
from paceline.runner.weights.fp4 import VALUES, Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix, stacked
from paceline.runner.weights.quantized_matrix import groups_of_int4, rows_of_fp8
from tests.gpu.quantized_linears import blocks_of_fp8

BITS = {"uint4": 4, "float4e2m1": 4, "uint8": 8, "float8e4m3": 8}
FORMATS: dict[str, Callable[[Tensor], Matrix]] = {
    "int4": partial(groups_of_int4, group=128),
    "int4 with steps and offsets": partial(codes_in_groups, bits=4, group=32, has_offset=True),
    "int8 in groups": partial(codes_in_groups, bits=8, group=16, has_offset=False),
    "fp8 by rows": rows_of_fp8,
    "fp8 by blocks": blocks_of_fp8,
    "mxfp4": Mxfp4Matrix.of,
    "nvfp4": Nvfp4Matrix.of,
}


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Codes in integers of 32 bits, the lowest bits first."""
    shifts = torch.arange(0, 32, bits)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)


def numbers(codes: Tensor, kind: str) -> Tensor:
    match kind:
        case "float4e2m1":
            return VALUES[codes]
        case "float8e4m3":
            return codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
        case _:
            return codes.float()


def decoded(packed: Packed) -> Tensor:
    names, tensors = packed.names, packed.tensors
    kind, bits = names["b_dtype"], BITS[names["b_dtype"]]
    found = numbers(unpacked(tensors["weight"], bits), kind)
    if names.get("has_zero_point"):
        zero = tensors["zero_point"]
        if not names.get("is_fp_zero_point"):
            zero = unpacked(zero.mT.contiguous(), bits).mT
        found -= zero.float().repeat_interleave(found.shape[-1] // zero.shape[-1], -1)
    elif kind == "uint8":
        found -= 128
    scale = tensors["weight_scale"].float()
    scale = scale.repeat_interleave(found.shape[-1] // scale.shape[-1], -1)
    found *= scale.repeat_interleave(found.shape[-2] // scale.shape[-2], -2)
    whole = tensors.get("weight_scale_2")
    return found if whole is None else found * whole.float().unsqueeze(-1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_stacked", [False, True], ids=["a linear", "experts"])
def test_weights_stay_the_same(name: str, is_stacked: bool) -> None:
    each = (FORMATS[name](torch.randn(256, 512)) for _ in range(3))
    matrix = stacked(3, each) if is_stacked else next(each)
    packed = Packed.of(matrix, torch.float16)
    assert packed is not None
    # Scales are rounded to the type of inputs, and so are zeros that are no integers.
    bound = 2e-2 if packed.names.get("is_fp_zero_point") else 1e-3
    due = matrix.dense()
    assert (decoded(packed) - due).norm() < bound * due.norm()


@pytest.mark.parametrize("name", ["int4", "mxfp4"])
def test_outputs_are_padded_to_whole_tiles(name: str) -> None:
    matrix = FORMATS[name](torch.randn(LINES + 32, 512))
    packed = Packed.of(matrix, torch.float16)
    assert packed is not None
    padded = {key: padded_to(one, key, LINES + 32) for key, one in packed.tensors.items()}
    scale = packed.tensors["weight_scale"].dtype
    if scale.itemsize == 1:
        padded["weight_scale"] = padded["weight_scale"].view(scale)
    found = decoded(Packed(packed.names, padded))
    assert len(found) == 2 * LINES
    torch.testing.assert_close(found[: LINES + 32], decoded(packed))
