"""Invariant kernels compile for an H200, without one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.runner.attention_backend import Queries, load
from paceline.runner.cuda.gemm.fixed_tiles import FixedFp8, multiplied, multiply_codes
from paceline.runner.cuda.gemm.fp8 import can_convert
from paceline.runner.cuda.gemm.library import SameBits, by_library
from paceline.runner.cuda.gemm.linear_kernel import Use
from paceline.runner.kv_store import KVStore
from paceline.runner.weights.quantized_matrix import ScaledMatrix
from tests.conformance.architectures import Case
from tests.gpu.quantized_linears import FP8_SCALED, quantized
from tests.runner.support import bounds_of, rows_of, tiny

LATENTS = {"num_hidden_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
CONFIGS = {
    "heads": tiny(num_hidden_layers=1, head_dim=64),
    "latents": Case("deepseekv3").config(**LATENTS),
}
MOST_BYTES = 227 << 10  # of shared memory


@pytest.mark.parametrize("name", CONFIGS)
def test_attention_fuses_nothing(name: str, compiled: dict[str, Any]) -> None:
    """Otherwise, programs of other shapes might have other bits."""
    config, counts = CONFIGS[name], [(1, 9), (3, 12)]
    batch, blocks = rows_of(counts, 8)
    kv = KVStore(config, blocks, 8, torch.bfloat16)
    heads = kv.heads[0]
    count = 128 if heads.is_latent else 4
    query = torch.zeros(batch.positions, count, heads.head_dim, dtype=torch.bfloat16)
    queries = Queries(count, torch.bfloat16)
    held = load("triton_fixed").prepare_mixed_graph(batch, kv, bounds_of(counts), 2, queries)
    held.attend(query, 0, None if heads.is_latent else 7, 0.3)
    for kernel in ("listed", "tiled"):
        assert "fma." not in compiled[kernel].asm["ptx"]
        assert compiled[kernel].metadata.shared <= MOST_BYTES
    assert "wgmma" in compiled["tiled"].asm["ptx"]


def test_linears_multiply_on_tensor_cores(compiled: dict[str, Any]) -> None:
    """Tests on a GPU compare the bits of both instructions."""
    weight = torch.zeros(256, 128, dtype=torch.bfloat16)
    for rows, instruction in ((1, "mma.sync"), (40, "wgmma"), (600, "wgmma")):
        multiplied(torch.zeros(rows, 128, dtype=torch.bfloat16), weight)
        assert instruction in compiled.pop("_multiply").asm["ptx"]


def halves(x: Tensor, weight: Tensor, out: Tensor, is_added: bool) -> None:
    """A product that splits its inputs."""
    middle = weight.shape[1] // 2
    by_library(x[:, :middle], weight[:, :middle], out, is_added)
    by_library(x[:, middle:], weight[:, middle:], out, is_added=True)


@pytest.mark.parametrize("is_added", [False, True])
def test_the_library_is_compared_with_another_kernel(is_added: bool) -> None:
    weight = torch.randn(2048, 64).bfloat16()
    assert SameBits(by_library)._compared(32, weight, is_added)
    assert not SameBits(halves)._compared(32, weight, is_added)
    assert not SameBits(by_library)._compared(32, weight.zero_(), is_added)  # which shows nothing


@pytest.mark.parametrize("name", FP8_SCALED)
def test_codes_multiply_in_one_instruction(name: str, compiled: dict[str, Any]) -> None:
    matrix = quantized(name, (256, 256), False, "cpu").matrix
    assert isinstance(matrix, ScaledMatrix)
    for rows in (1, 600):
        codes = torch.zeros(rows, 256, dtype=torch.float8_e4m3fn)
        scale = torch.zeros(2, rows).t()
        multiply_codes(codes, scale, matrix, torch.zeros(rows, 256, dtype=torch.bfloat16))
        ptx = compiled.pop("_multiply_codes").asm["ptx"]
        assert "wgmma.mma_async.sync.aligned.m64" in ptx
        assert "e4m3.e4m3" in ptx


def test_gpus_without_fp8_decode_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, due in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, one=capability: one)
        assert can_convert(torch.device("cuda")) is due
    weights = quantized(next(iter(FP8_SCALED)), (128, 256), False, "cpu")
    assert FixedFp8.of(weights, Use.PLAIN) is not None
    monkeypatch.setattr("paceline.runner.cuda.gemm.fixed_tiles.can_convert", lambda _: False)
    assert FixedFp8.of(weights, Use.PLAIN) is None
