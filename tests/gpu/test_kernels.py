"""Kernels that do the work of several, against those several."""

from dataclasses import replace
from random import Random

import pytest
import torch

from paceline.runner.attention.triton import Triton
from paceline.runner.cuda.coordinates import rotary_table
from paceline.runner.cuda.gemm.gemv import Bf16Gemv
from paceline.runner.cuda.gemm.linear_kernel import Use
from paceline.runner.cuda.gemm.split_k import SplitK
from paceline.runner.cuda.kernels.attention.heads import HeadRotation, rotate_and_store
from paceline.runner.cuda.kernels.layers import DeferredNorm
from paceline.runner.models.rope import Rope
from tests.gpu.linears import weights_of
from tests.gpu.support import ON_GPU, on_hopper, rows_of
from tests.runner.support import cells_of, filled_store, tiny

pytestmark = ON_GPU


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(16, 8, 128), (40, 8, 128), (9, 3, 64)])
def test_new_positions_are_rotated_stored_and_attended_at_once(
    heads: int, kv_heads: int, dim: int, is_normed: bool, window: int | None, dtype: torch.dtype
) -> None:
    random = Random(heads)
    contexts = [1, 2, 64, 65, 66, 1700, *(random.randint(1, 900) for _ in range(3))]
    batch, blocks = rows_of([(1, context) for context in contexts], 16)
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim}
    config = tiny(num_hidden_layers=2, **shape)
    kv = filled_store(config, blocks, 16, dtype=dtype, device="cuda")
    at = cells_of(batch, kv)
    frequencies = tuple(10000.0 ** (-place / (dim // 2)) for place in range(dim // 2))
    cos_sin = rotary_table(Rope.plain(frequencies), 2048, "cuda")
    factor = torch.rand(heads + kv_heads, dim, device="cuda", dtype=dtype) if is_normed else None
    rotation = HeadRotation(cos_sin, factor, 0.01)
    qkv = torch.randn(len(contexts), heads + 2 * kv_heads, dim, device="cuda", dtype=dtype)
    held, before = Triton().prepare_graph(batch, kv, heads), kv.content.clone()
    for layer in (1, 0):
        kv.content.copy_(before)
        got = held.attend_new(qkv, rotation, layer, window, 0.09)
        stored = kv.content.clone()
        kv.content.copy_(before)
        apart = qkv.clone()
        rotate_and_store(
            apart, rotation, DeferredNorm(apart, 0.0, 0), batch.position, at, kv, layer
        )
        expected = held.attend(apart[:, :heads], layer, window, 0.09)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(stored, kv.content, rtol=tolerance, atol=1e-6)
        assert not torch.equal(stored, before)
        by_row = replace(rotation, cos_sin=cos_sin[batch.position.long()], is_by_row=True)
        kv.content.copy_(before)
        assert torch.equal(held.attend_new(qkv, by_row, layer, window, 0.09), got)
        assert torch.equal(kv.content, stored)
        again = qkv.clone()
        rotate_and_store(again, by_row, DeferredNorm(again, 0.0, 0), batch.position, at, kv, layer)
        assert torch.equal(again, apart)


@pytest.mark.parametrize("rows", [1, 5, 16, 24, 33, 64, 97, 128])
@pytest.mark.parametrize("inputs", [512, 2048, 3072])
@pytest.mark.parametrize("is_biased", [False, True])
def test_programs_that_share_inputs_add_up(rows: int, inputs: int, is_biased: bool) -> None:
    outputs = 1024
    weight = torch.randn(outputs, inputs, device="cuda") / inputs**0.5
    bias = torch.randn(outputs, device="cuda") if is_biased else None
    split = SplitK.of(weights_of(weight.bfloat16(), bias), Use.ADDED)
    assert split is not None
    x = torch.randn(rows, inputs, device="cuda").bfloat16()
    total = torch.randn(rows, outputs, device="cuda").bfloat16()
    expected = total.float() + x.float() @ weight.bfloat16().float().t()
    if bias is not None:
        expected += bias.bfloat16().float()
    results = []
    for _ in range(3):  # the counts of programs are set back each time
        results.append(total.clone())
        split.add_to(results[-1], x)
    torch.testing.assert_close(results[0].float(), expected, rtol=1e-2, atol=2e-2)
    assert all(torch.equal(results[0], one) for one in results)
    expected = x.float() @ weight.bfloat16().float().t()
    torch.testing.assert_close(split.parts(x).sum(0), expected, rtol=1e-2, atol=2e-2)


@on_hopper
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize(("outputs", "inputs"), [(2048, 4096), (2880, 4096), (160, 64)])
@pytest.mark.parametrize("is_biased", [False, True])
def test_few_rows_of_plain_weights(rows: int, outputs: int, inputs: int, is_biased: bool) -> None:
    weight = (torch.randn(outputs, inputs, device="cuda") / inputs**0.5).bfloat16()
    bias = torch.randn(outputs, device="cuda").bfloat16() if is_biased else None
    kernel = Bf16Gemv.of(weights_of(weight, bias), Use.ADDED)
    assert kernel is not None
    assert rows <= kernel.most_rows
    x, total = (torch.randn(rows, n, device="cuda").bfloat16() for n in (inputs, outputs))
    due = x.float() @ weight.float().t() + (0.0 if bias is None else bias.float())
    torch.testing.assert_close(kernel.plain(x).float(), due, rtol=1e-2, atol=2e-2)
    got = [total.clone() for _ in range(3)]
    for one in got:
        kernel.add_to(one, x)
    torch.testing.assert_close(got[0].float(), total.float() + due, rtol=1e-2, atol=3e-2)
    assert torch.equal(got[0], got[1])
    assert torch.equal(got[0], got[2])


def test_what_the_library_does_better_is_left_to_it() -> None:
    def most_rows(outputs: int, inputs: int) -> int:
        weight = torch.zeros(outputs, inputs, device="cuda", dtype=torch.bfloat16)
        split = SplitK.of(weights_of(weight), Use.ADDED)
        return 0 if split is None else split.most_rows

    assert most_rows(1024, 2048) == 64
    assert most_rows(1024, 3072) == 128
    assert not most_rows(5120, 2048)  # has programs enough
    assert not most_rows(1000, 2048)
    assert not most_rows(1024, 2000)
