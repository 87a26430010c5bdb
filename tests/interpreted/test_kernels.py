"""Kernels that do the work of several, against those several."""

import pytest
import torch

from paceline.runner.attention.triton import Triton
from paceline.runner.cuda.coordinates import rotary_table
from paceline.runner.cuda.gemm.linear_kernel import Use
from paceline.runner.cuda.gemm.split_k import SplitK
from paceline.runner.cuda.kernels.attention.heads import HeadRotation, gate_heads, rotate_and_store
from paceline.runner.cuda.kernels.layers import DeferredNorm, cap_logits
from paceline.runner.models.rope import Rope, frequencies
from tests.gpu.linears import weights_of
from tests.interpreted.test_attention import store_for
from tests.runner.support import cells_of, rows_of


@pytest.mark.parametrize(
    ("is_normed", "rotates_first", "window", "cap"),
    [(True, False, None, 0.7), (True, True, 20, None), (False, False, 20, 0.7)],
)
def test_new_positions_are_turned_stored_and_attended_at_once(
    is_normed: bool, rotates_first: bool, window: int | None, cap: float | None
) -> None:
    contexts, heads, kv_heads, dim = [1, 2, 64, 65, 130], 4, 2, 16
    batch, blocks = rows_of([(1, context) for context in contexts], 16)
    kv = store_for(heads, kv_heads, dim, blocks, 16)
    at = cells_of(batch, kv)
    cos_sin = rotary_table(Rope.plain(frequencies(100.0, 16)), 256, "cpu")
    factor = torch.rand(heads + kv_heads, dim) if is_normed else None
    value_floor = 0.02 if rotates_first else None
    rotation = HeadRotation(cos_sin, factor, 0.01, False, rotates_first, value_floor)
    qkv = torch.randn(len(contexts), heads + 2 * kv_heads, dim)
    held, before = Triton().prepare_graph(batch, kv, heads), kv.content.clone()
    got = held.attend_new(qkv, rotation, 1, window, 0.3, cap)
    stored = kv.content.clone()
    kv.content.copy_(before)
    apart = qkv.clone()
    rotate_and_store(apart, rotation, DeferredNorm(apart, 0.0, 0), batch.position, at, kv, 1)
    expected = held.attend(apart[:, :heads], 1, window, 0.3, cap)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stored, kv.content, rtol=1e-5, atol=1e-6)
    assert not torch.equal(stored, before)


def test_gates_multiply_what_heads_have_seen() -> None:
    """Of rows that are divided by the length of the residual stream after the linear."""
    stream, found = torch.randn(3, 32), torch.randn(3, 8, 24)
    gates, seen = found[:, :3], torch.randn(3, 3, 24)
    length = stream.norm(dim=1).view(3, 1, 1)
    expected = seen * (gates / length).sigmoid()
    gate_heads(seen, gates, DeferredNorm(stream, 0.0, 32))
    torch.testing.assert_close(seen, expected, rtol=1e-5, atol=1e-6)


def test_positions_have_rotations_of_their_own() -> None:
    """They do not depend on where a position is in its sequence."""
    heads, kv_heads, dim = 4, 2, 16
    batch, blocks = rows_of([(1, 2), (1, 20)], 16)
    kv = store_for(heads, kv_heads, dim, blocks, 16)
    at, qkv = cells_of(batch, kv), torch.randn(2, heads + 2 * kv_heads, dim)
    cos_sin = rotary_table(Rope.plain(frequencies(100.0, 16)), 32, "cpu")
    by_position = HeadRotation(cos_sin, None, 0.0)
    by_row = HeadRotation(cos_sin[batch.position.long()], None, 0.0, is_by_row=True)
    held, before = Triton().prepare_graph(batch, kv, heads), kv.content.clone()
    found: list[torch.Tensor] = []
    for rotation in (by_position, by_row):
        apart = qkv.clone()
        rotate_and_store(apart, rotation, DeferredNorm(apart, 0.0, 0), batch.position, at, kv, 1)
        found += apart, kv.content.clone()
        kv.content.copy_(before)
        found += held.attend_new(qkv, rotation, 1, None, 0.3), kv.content.clone()
        kv.content.copy_(before)
    for one, other in zip(found[:4], found[4:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("rows", "is_biased"), [(5, False), (70, True)])
def test_programs_that_share_inputs_add_up(rows: int, is_biased: bool) -> None:
    inputs, outputs = 3072, 64
    weight = torch.randn(outputs, inputs) / inputs**0.5
    bias = torch.randn(outputs).half() if is_biased else None
    split = SplitK.of(weights_of(weight.half(), bias), Use.ADDED)
    assert split is not None
    assert rows <= split.most_rows
    x = torch.randn(rows, inputs).half()
    total = torch.randn(rows, outputs).half()
    expected = total.float() + x.float() @ weight.half().float().t()
    expected += 0.0 if bias is None else bias.float()
    first, second = total.clone(), total.clone()
    split.add_to(first, x)
    split.add_to(second, x)  # the counts of programs are set back
    torch.testing.assert_close(first.float(), expected, rtol=1e-2, atol=2e-2)
    assert torch.equal(first, second)
    expected -= total.float() if bias is None else total.float() + bias.float()
    torch.testing.assert_close(split.parts(x).sum(0), expected, rtol=1e-2, atol=2e-2)


def test_logits_are_capped() -> None:
    logits = torch.randn(3, 700).mul_(4)
    logits[0, :3] = torch.tensor([0.0, 1e6, -1e6])
    expected = logits.div(2.0).tanh().mul(2.0)
    cap_logits(logits, 2.0)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
