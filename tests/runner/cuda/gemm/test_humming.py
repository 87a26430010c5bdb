"""Weights as humming takes them, decoded again by its rules."""

import json
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.coded_formats import codes_in_groups
from paceline.core.errors import ConfigError
from paceline.runner.cuda.experts.humming import gated_pairs, in_order, inputs_of_pairs
from paceline.runner.cuda.gemm import humming
from paceline.runner.cuda.gemm.humming import LINES, HummingMatrix, Packed, padded_to
from paceline.runner.cuda.gemm.linear_kernel import ExpertChoice, ExpertGate
from paceline.runner.weights.fp4 import VALUES, Mxfp4Matrix, Nvfp4Matrix
from paceline.runner.weights.matrix import Matrix, stacked
from paceline.runner.weights.quantized_matrix import (
    CodedMatrix,
    GroupedMatrix,
    groups_of_int4,
    rows_of_int8,
)

BITS = {"uint4": 4, "float4e2m1": 4, "uint8": 8}


def wide_zeros(weight: Tensor) -> GroupedMatrix:
    """As GPTQ has them: a zero of 16 does not fit into 4 bits."""
    matrix = groups_of_int4(weight, 128)
    matrix.zero[3, 1] = 16
    return matrix


def flat_groups(weight: Tensor) -> CodedMatrix:
    """As GGUF has them: some groups have no step, and an offset or 0."""
    matrix = codes_in_groups(weight, bits=4, group=32, has_offset=True)
    matrix.step[::3, ::2] = 0
    assert matrix.offset is not None
    matrix.offset[::6, ::2] = 0
    return matrix


FORMATS: dict[str, Callable[[Tensor], Matrix]] = {
    "int4": partial(groups_of_int4, group=128),
    "int4 with steps and offsets": partial(codes_in_groups, bits=4, group=32, has_offset=True),
    "int8 in groups": partial(codes_in_groups, bits=8, group=16, has_offset=False),
    "int4 with zeros of 16": wide_zeros,
    "int4 with groups without steps": flat_groups,
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
    packed = Packed.of(matrix, torch.bfloat16)
    assert packed is not None
    # Scales are rounded to the type of inputs, and so are zeros that are no integers.
    bound = 8e-3 if packed.names.get("is_fp_zero_point") else 3e-3
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


def test_what_others_compute_is_left_to_them() -> None:
    weight = torch.randn(64, 512)
    offsets = codes_in_groups(weight, bits=8, group=32, has_offset=True)
    assert Packed.of(rows_of_int8(weight), torch.bfloat16) is None
    assert Packed.of(offsets, torch.bfloat16) is None
    assert HummingMatrix.of(groups_of_int4(weight, 128), torch.bfloat16) is None  # on a CPU


def test_arranged_weights_are_not_decoded() -> None:
    matrix = HummingMatrix({"weight": torch.zeros(1)}, "{}", (64, 512), "int4 by groups of 128")
    with pytest.raises(ConfigError, match="int4 by groups of 128 are in the order of humming"):
        matrix.dense()


def test_layers_of_a_shape_share_kernels_and_errors_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for the package, which needs a GPU."""

    def tuned(config: dict[str, Any], shape_m: int, **_: Any) -> dict[str, int]:
        assert "sublayer_name" not in config
        return {"rows": shape_m}

    def prepared(weights: str, _: str, ranges: list[Any], device: torch.device) -> Tensor:
        assert "uint8" not in weights, "no such tile"
        return torch.tensor([(below, most, one["rows"]) for below, most, one in ranges])

    kernel = SimpleNamespace(humming=SimpleNamespace(HummingKernel=SimpleNamespace()))
    kernel.humming.HummingKernel.prepare_kernels = prepared
    stand_in = SimpleNamespace(tune=SimpleNamespace(get_heuristics_config=tuned), kernel=kernel)
    monkeypatch.setattr(humming, "package", lambda: stand_in)

    def compiling(kind: str) -> Any:
        weights = {"shape_n": 256, "shape_k": 512, "b_dtype": kind, "sublayer_name": "test"}
        return humming.compiling(json.dumps(weights), "dense", (8, 64), torch.device("cpu"))

    assert compiling("uint4") is compiling("uint4")
    due = [[0, 8, 8], [8, 64, 64], [64, humming.MOST, 64]]
    assert compiling("uint4").result().tolist() == due
    with pytest.raises(ConfigError, match="256 x 512 in uint8: no such tile"):
        compiling("uint8").result()


def test_kernels_around_experts_compile_for_an_h200(compiled: dict[str, Any]) -> None:
    """In the sizes of gpt-oss-20b, with one row."""
    share, pairs = torch.ones(1, 4), torch.arange(4, dtype=torch.int32)
    choice, ends = in_order(ExpertChoice(share, pairs, torch.zeros(4, 3).int(), 16, experts=32))
    assert len(ends) == 33
    x = torch.zeros(1, 2880, dtype=torch.bfloat16)
    inputs_of_pairs(x, torch.ones(2880), choice)
    gated_pairs(torch.zeros(4, 5760, dtype=torch.bfloat16), ExpertGate(True, None))
    assert set(compiled) == {"_sort_tiles", "_copy_inputs", "_gated_pairs"}
