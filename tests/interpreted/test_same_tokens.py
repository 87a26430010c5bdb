"""The invariant kernels of a GPU, under the scheduler too: tokens have the bits they have alone."""

from typing import Any

import pytest
import torch

from paceline import Scheduler
from paceline.runner.attention_backend import Queries, load
from paceline.runner.cuda.gemm.fixed_tiles import Tiles, multiplied
from paceline.runner.cuda.model import CudaModel
from paceline.runner.cuda.runner import CudaRunner, RunnerSizes
from paceline.runner.kv_store import KVStore
from paceline.runner.layers.one_by_one import positions_of
from paceline.runner.models.model import Model
from paceline.runner.proposers.ngram import Ngram
from paceline.runner.weights.dummy import Dummy
from tests.conformance.architectures import Case
from tests.gpu.cuda_backend import OnCUDA
from tests.interpreted.host_device import use_host
from tests.property.same_tokens import Schedule, differences
from tests.runner.sequences import OnCPU, logits_of
from tests.runner.support import bounds_of, filled_store, rows_of, spoil_passed, tiny

SMALL: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 64}
CASES = {
    "dense": Case("qwen3").config(**SMALL),
    "MoE": Case("qwen3moe").config(**SMALL),
    "windows": Case("gptoss").config(num_hidden_layers=2, vocab_size=64),
    "latents": Case("deepseekv3").config(vocab_size=64),
    "states": Case("qwen3next").config(vocab_size=64),
}


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_linear_with_fixed_tiles(rows: int, is_added: bool) -> None:
    """Around tiles of rows, outputs and inputs, and in bands of rows."""
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randn(n, 72, generator=generator) for n in (rows, 21))
    bias, total = torch.randn(21), torch.randn(rows, 21)
    due = x @ weight.t() + bias + (total if is_added else 0)
    for tiles in (Tiles(16, 16, 32, 4, 2), Tiles(32, 32, 8, 4, 2)):
        into = total.clone() if is_added else None
        torch.testing.assert_close(multiplied(x, weight, bias, into, tiles), due)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_a_cpu(name: str) -> None:
    source = Dummy(CASES[name], seed=3)
    model = CudaModel.invariant(source, 32, torch.float32, device="cpu")
    found = logits_of(OnCUDA(model, "cpu", torch.float32, "triton_fixed"), [5, 9, 2, 7, 1, 3])
    due = logits_of(OnCPU(Model.load(source), "paged"), [5, 9, 2, 7, 1, 3])
    torch.testing.assert_close(found, due, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 7])
def test_a_chunk_sees_what_its_positions_see_alone(window: int | None) -> None:
    """Beside other rows, and as decodes of the same contexts."""
    counts, config = [(1, 9), (20, 50), (3, 12)], tiny(num_hidden_layers=1)
    batch, blocks = rows_of(counts, 8)
    kv = filled_store(config, blocks, 8)
    spoil_passed(batch, kv, counts, window)
    query = torch.randn(batch.positions, 4, 8)
    backend = load("triton_fixed")
    held = backend.prepare_mixed_graph(batch, kv, bounds_of(counts), 3, Queries(4, torch.float32))
    held.lay_out()
    found = held.attend(query, 0, window, 0.3)
    due = load("sdpa").prepare(batch, kv).attend(query, 0, window, 0.3)
    torch.testing.assert_close(found, due, rtol=1e-4, atol=1e-4)
    for at, one in enumerate(positions_of(batch, 8)):
        alone = backend.prepare_graph(one, kv, 4).attend(query[at : at + 1], 0, window, 0.3)
        assert torch.equal(alone[0], found[at])


@pytest.mark.parametrize("window", [None, 300])
def test_long_contexts_have_parts(window: int | None) -> None:
    """Of which a program has one, some or all; the last program of a context joins them."""
    counts, config = [(1, 700), (1, 3), (1, 300)], tiny(num_hidden_layers=1)
    batch, blocks = rows_of(counts, 8)
    kv = filled_store(config, blocks, 8)
    spoil_passed(batch, kv, counts, window)
    query, backend = torch.randn(3, 4, 8), load("triton_fixed")
    due = load("sdpa").prepare(batch, kv).attend(query, 0, window, 0.3)
    for found in (
        backend.prepare(batch, kv),
        backend.prepare_mixed_graph(batch, kv, torch.tensor([0, 3]), 3, Queries(4, torch.float32)),
    ):
        torch.testing.assert_close(found.attend(query, 0, window, 0.3), due, rtol=1e-4, atol=1e-4)


def test_tokens_have_the_bits_that_they_have_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, sums of tiles of other sizes would have other bits."""
    use_host(monkeypatch)
    model = CudaModel.invariant(Dummy(CASES["MoE"], seed=3), 64, torch.float32, device="cpu")

    def runner_of(scheduler: Scheduler) -> CudaRunner:
        step, cache = scheduler.config.step, scheduler.config.cache
        kv = KVStore(model.config, cache.num_blocks + 1, cache.block_size)
        sizes = RunnerSizes(step.max_num_seqs, step.max_model_len, step.max_num_batched_tokens)
        drafter = Ngram(scheduler.config.speculation)
        return CudaRunner(model, kv, load("triton_fixed"), drafter, sizes)

    changes = {"preemption_mode": "recompute", "swap_space": 0, "max_num_batched_tokens": 8}
    schedule = Schedule(0, changes=changes, most_requests=3, most_tokens=3)
    assert not differences(schedule, runner_of)
    assert schedule.seen["tokens"] > 8
