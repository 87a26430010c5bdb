"""Kernels of layers with states in real sizes, against torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.gpu_states import DELTA, KDA, MAMBA2, Layer
from paceline.runner.cuda.states.chunked import advance
from paceline.runner.cuda.states.drafted import advance_accepted, step_with_drafts
from paceline.runner.cuda.states.recurrence import RecurrenceSizes, step
from paceline.runner.layers.mixers.recurrence import Recurrence, run
from paceline.runner.state_store import StateStore
from tests.gpu.support import ON_GPU, replayed

pytestmark = ON_GPU
COUNTS = [300, 1, 64, 65, 2]


def convolved(layer: Layer, x: Tensor, tail: Tensor) -> Tensor:
    """The convolution behind a tail, and silu, in float32."""
    padded = torch.cat((tail, x)).float()
    weight = layer.convolution.weight.float()
    found = sum(padded[tap : tap + len(x)] * one for tap, one in enumerate(weight))
    assert isinstance(found, Tensor)
    return torch.nn.functional.silu(found)


def truth(layer: Layer, inputs: Tensor, tail: Tensor, state: Tensor) -> Tensor:
    """What a row reads, in float32. It advances the state."""
    sizes, decay, n = layer.sizes, layer.decay, len(inputs)
    first, heads = layer.convolution.first, sizes.heads
    mixed = convolved(layer, inputs[:, first : first + layer.channels], tail)
    groups = heads // sizes.shared

    def part(at: int, count: int, width: int) -> Tensor:
        return mixed[:, at : at + count * width].reshape(n, count, width)

    query, key = (part(at, groups, sizes.key_dim) for at in (sizes.query, sizes.key))
    value = part(sizes.value, heads, sizes.value_dim)
    rate = inputs[:, sizes.rate : sizes.rate + heads].float()
    time = inputs[:, sizes.decay : sizes.decay + heads * sizes.decays].float()
    time = torch.nn.functional.softplus(time + decay.bias).view(n, heads, -1)
    skip = 0.0 if decay.skip is None else value * decay.skip[:, None]
    if sizes.corrects:
        query, key = (torch.nn.functional.normalize(one, dim=-1) for one in (query, key))
        query, rates = query * sizes.scale, rate.sigmoid()[..., None]
    else:
        value, rates = value * time, None
    query, key = (one.repeat_interleave(sizes.shared, dim=1) for one in (query, key))
    decays = time * decay.speed[:, None]
    return run(state, Recurrence(query, key, value, decays, rates)) + skip


@pytest.mark.parametrize("sizes", [DELTA, KDA, MAMBA2], ids=["gated delta", "kda", "mamba2"])
def test_rows_with_drafts(sizes: RecurrenceSizes) -> None:
    """States are those behind the accepted drafts."""
    torch.manual_seed(0)
    layer, counts, accepted = Layer(sizes), [4, 1, 3, 4], [3, 0, 0, 1]
    store = StateStore(layer.layout, 8, torch.bfloat16, "cuda")
    store.keep_drafts(3)
    states, tails = store.of(0)
    states.normal_(std=0.1)
    tails.normal_()
    before, kept, begun = store.content.clone(), tails.clone(), states.clone()
    inputs = layer.drawn(sum(counts), layer.inputs)
    drafts = torch.tensor(counts, dtype=torch.int32, device="cuda") - 1
    rows = replace(layer.rows(store, 2, counts, 0), drafts=drafts)
    known = rows.context - drafts
    position = torch.zeros(8, dtype=torch.int32, device="cuda")
    position[rows.slot] = known + torch.tensor(accepted, dtype=torch.int32, device="cuda")

    def run_once() -> Tensor:
        store.content.copy_(before)
        out = inputs.new_zeros(len(inputs), sizes.heads * sizes.value_dim)
        step_with_drafts(inputs, rows, 0, layer.convolution, sizes, layer.decay, out)
        layer.convolution.keep(inputs, rows, 0)
        advance_accepted(store, rows.slot, known, drafts, position)
        return torch.cat((out.float().flatten(), states[2:6].flatten()))

    with torch.inference_mode():
        found = replayed(run_once, times=20)[: sum(counts) * sizes.heads * sizes.value_dim]
    found = found.view(sum(counts), sizes.heads, -1)
    first = layer.convolution.first
    for number, (own, seen) in enumerate(
        zip(inputs.split(counts), found.split(counts), strict=True)
    ):
        slot, stays = number + 2, 1 + accepted[number]
        due = truth(layer, own, kept[slot], begun[slot].clone())
        assert (seen - due).norm() < 0.02 * due.norm()
        truth(layer, own[:stays], kept[slot], begun[slot])
        assert (states[slot] - begun[slot]).norm() < 1e-3 * begun[slot].norm()
        last = torch.cat((kept[slot], own[:stays, first : first + layer.channels]))[-3:]
        assert torch.equal(tails[slot], last)


@pytest.mark.parametrize("sizes", [DELTA, KDA, MAMBA2], ids=["gated delta", "kda", "mamba2"])
def test_rows_of_any_length(sizes: RecurrenceSizes) -> None:
    """Results differ by roundings to bf16 alone, and are the same in a graph every time."""
    torch.manual_seed(0)
    layer = Layer(sizes)
    store = StateStore(layer.layout, 8, torch.bfloat16, "cuda")
    states, tails = store.of(0)
    states.normal_(std=0.1)
    tails.normal_()
    before, kept = store.content.clone(), tails.clone()
    begun = states.clone()
    inputs = layer.drawn(sum(COUNTS), layer.inputs)
    rows = layer.rows(store, 2, COUNTS, len(COUNTS))

    def run_once() -> Tensor:
        store.content.copy_(before)
        out = inputs.new_zeros(len(inputs), sizes.heads * sizes.value_dim)
        step(inputs, rows, (states, tails), layer.convolution, sizes, layer.decay, out)
        mixed = layer.convolution.empty(inputs)
        layer.convolution.chunks(inputs, rows, tails, mixed)
        advance(inputs, mixed, rows, states, sizes, layer.decay, out)
        layer.convolution.keep(inputs, rows, 0)
        return out

    with torch.inference_mode():
        found = replayed(run_once, times=20).float().view(len(inputs), sizes.heads, -1)
    first = layer.convolution.first
    for number, (own, seen) in enumerate(
        zip(inputs.split(COUNTS), found.split(COUNTS), strict=True)
    ):
        slot = number + 2
        due = truth(layer, own, kept[slot], begun[slot])
        assert (seen - due).norm() < 0.02 * due.norm()
        assert (states[slot] - begun[slot]).norm() < 0.02 * begun[slot].norm()
        last = torch.cat((kept[slot], own[:, first : first + layer.channels]))[-3:]
        assert torch.equal(tails[slot], last)
