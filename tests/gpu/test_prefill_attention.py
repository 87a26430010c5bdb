"""Prompts by the matrix units, beside rows of one position, against the slow truth in float32."""

import pytest
import torch
from torch import Tensor

from paceline.runner.attention.triton import TiledAttention, Triton
from paceline.runner.attention_backend import Queries, load
from paceline.runner.cuda.kernels.attention.prefill_attention import PrefillAttention
from paceline.runner.cuda.model import CudaModel
from paceline.runner.kv_store import KVStore
from paceline.runner.weights.dummy import Dummy
from tests.gpu.support import ON_GPU, on_hopper, replayed, rows_of
from tests.runner import support
from tests.runner.support import Rows, cells_of, filled_store, spoil_passed, tiny

pytestmark = ON_GPU

SINGLES: Rows = [(1, 700), (1, 3), (1, 1)]
ROWS: list[Rows] = [
    [(2, 2)],
    [(64, 64), (65, 65), (63, 63), (128, 128), (129, 129), (127, 127), (3, 16), (16, 17)],
    [(700, 700), (40, 40), (9, 300), (133, 370)],
    [(300, 4000), (2, 4001), (1000, 1000)],
    [(1001, 20_000), (77, 9_003)],
    [*SINGLES, (20, 20), (170, 265), (4, 50), (1024, 1024)],
]


def store_for(heads: int, kv_heads: int, blocks: int, block_size: int) -> KVStore:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 128}
    config = tiny(num_hidden_layers=3, **shape)
    return filled_store(config, blocks, block_size, dtype=torch.bfloat16, device="cuda")


def asking(heads: int) -> Queries:
    return Queries(heads, torch.bfloat16)


def bounds_of(counts: Rows) -> torch.Tensor:
    return support.bounds_of(counts, "cuda")


def compare(
    counts: Rows, heads: int, kv_heads: int, block_size: int, window: int | None = None
) -> None:
    batch, blocks = rows_of(counts, block_size)
    kv = store_for(heads, kv_heads, blocks, block_size)
    spoil_passed(batch, kv, counts, window)
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asking(heads))
    assert isinstance(held.others, PrefillAttention)
    held.lay_out()
    lines = torch.randn(batch.positions, heads + 2 * kv_heads, 128, device="cuda").bfloat16()
    query = lines[:, :heads]  # a view into more, as a model has it
    truth = load("sdpa").prepare(batch, kv)
    for layer in (2, 0):
        expected = truth.attend(query.float(), layer, window, 0.09)
        got = held.attend(query, layer, window, 0.09)
        torch.testing.assert_close(got.float(), expected, rtol=1e-2, atol=1e-2)
        assert torch.equal(got, held.attend(query, layer, window, 0.09))
        out, singles = torch.full_like(got, float("nan")), int(bounds_of(counts)[0])
        held.others.attend_into(out, query, layer, window, 0.09, None, None)
        assert torch.equal(out[singles:], got[singles:])
        assert out[:singles].isnan().all()


@on_hopper
@pytest.mark.parametrize("block_size", [16, 48, 64, 256])
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(16, 8), (40, 8), (32, 8), (4, 4), (64, 4), (6, 2)]
)
def test_rows_of_any_length(heads: int, kv_heads: int, block_size: int) -> None:
    for counts in ROWS:
        compare(counts, heads, kv_heads, block_size)


@on_hopper
@pytest.mark.parametrize("window", [1, 7, 64, 129, 300])
def test_windows(window: int) -> None:
    for counts in ROWS:
        compare(counts, 16, 8, 16, window)


@on_hopper
def test_more_tiles_than_processors() -> None:
    compare([(60 + 7 * row, 400 + 31 * row) for row in range(60)], 40, 8, 16)


@on_hopper
def test_a_graph_sees_other_rows_in_the_same_memory() -> None:
    """Fewer rows than there is room for; positions behind them are nobody's."""
    few: Rows = [(1, 40), (1, 90), (50, 120), (200, 200)]
    batch, blocks = rows_of([*SINGLES, (300, 500), (80, 80), (2, 3)], 16)
    kv = store_for(16, 8, 2 * blocks, 16)
    bounds = torch.zeros(2, dtype=torch.int32, device="cuda")
    held = Triton().prepare_mixed_graph(batch, kv, bounds, 8, asking(16))
    query = torch.randn(batch.positions, 16, 128, device="cuda").bfloat16()
    held.lay_out()
    held.attend(query, 0, None, 0.09)
    torch.cuda.synchronize()
    graph, out = torch.cuda.CUDAGraph(), torch.empty(0)
    with torch.cuda.graph(graph):
        held.lay_out()
        out = held.attend(query, 1, None, 0.09)
    for counts in (few, [*SINGLES, (300, 500), (80, 80), (2, 3)], [(385, 385)], SINGLES):
        now, _ = rows_of(counts, 16)
        rows, used = now.rows, now.positions
        batch.row_start.fill_(used)
        batch.row_start[: rows + 1] = now.row_start
        batch.context[:rows] = now.context
        batch.block_table[:, :rows, : now.block_table.shape[2]] = now.block_table
        bounds.copy_(bounds_of(counts))
        graph.replay()
        expected = load("sdpa").prepare(now, kv).attend(query[:used].float(), 1, None, 0.09)
        torch.testing.assert_close(out[:used].float(), expected, rtol=1e-2, atol=1e-2)


@on_hopper
def test_what_others_left_behind_the_last_cell_is_not_read() -> None:
    counts: Rows = [(20, 20), (33, 500), (128, 641), (2, 130), (100, 111)]
    batch, blocks = rows_of(counts, 16)
    kv = store_for(16, 8, blocks, 16)
    for row, (_, context) in enumerate(counts):
        last = batch.block_table[0, row, (context - 1) // 16]
        kv.content[last, :, (context - 1) % 16 + 1 :] = float("nan")
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asking(16))
    held.lay_out()
    query = torch.randn(batch.positions, 16, 128, device="cuda").bfloat16()
    assert torch.isfinite(held.attend(query, 1, None, 0.09)).all()


@on_hopper
def test_layers_in_a_graph_are_the_same_every_time() -> None:
    """Kernels start before those in front have ended, and single rows beside prompts."""
    shape = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
    shape |= {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6}
    config = tiny(architectures=["Qwen3ForCausalLM"], **shape)
    model = CudaModel.load(Dummy(config, device="cuda"), 1024)
    counts: Rows = [*[(1, 20 + 37 * row) for row in range(20)], (70, 200), (130, 130), (2, 50)]
    batch, blocks = rows_of(counts, 16)
    batch.tokens.copy_(torch.arange(batch.positions) * 7 % config.vocab)
    kv = filled_store(config, blocks, 16, dtype=torch.bfloat16, device="cuda")
    cells = cells_of(batch, kv)
    expected = model.forward(batch, cells, kv, load("sdpa").prepare(batch, kv)).float()
    other = model.forward(batch, cells, kv, load("triton").prepare(batch, kv))
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asking(8))
    assert isinstance(held.others, PrefillAttention)

    def run(wanted: Tensor | None = None) -> Tensor:
        held.lay_out()
        return model.forward(batch, cells, kv, held, wanted)

    first = replayed(run)
    off, usual = (((one - expected).norm(dim=1) / expected.norm(dim=1)) for one in (first, other))
    assert usual.max() < 4e-2  # six layers of bfloat16, over contexts that are noise
    assert off.max() < 1.5 * usual.max()
    assert off.mean() < 1.2 * usual.mean()
    some = replayed(lambda: run(batch.sample_at))
    assert ((some - first[batch.sample_at]).norm(dim=1) / some.norm(dim=1)).max() < 2e-2


def test_what_it_is_not_made_for_is_left_to_triton() -> None:
    shape = {"num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 3}
    for config, block_size, dtype, asked in (
        (tiny(**shape, head_dim=64), 16, torch.bfloat16, torch.bfloat16),
        (tiny(**shape, head_dim=128), 8, torch.bfloat16, torch.bfloat16),
        (tiny(**shape, head_dim=128), 16, torch.float32, torch.float32),
        (tiny(**shape, head_dim=128), 16, torch.bfloat16, torch.float16),
    ):
        kv = KVStore(config, 4, block_size, dtype, "cuda")
        counts: Rows = [(1, 3), (5, 9)]
        batch, _ = rows_of(counts, block_size)
        held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), 2, Queries(9, asked))
        assert isinstance(held.others, TiledAttention)
