"""Attention for a GPU against the slow truth, on stores that an interpreter can read."""

from dataclasses import replace
from random import Random

import pytest
import torch

from paceline.runner.attention import triton
from paceline.runner.attention.triton import TiledAttention, Triton
from paceline.runner.attention_backend import Queries, load
from paceline.runner.chunked_attention import ChunkedStep, InChunks
from paceline.runner.cuda.kernels.attention import head_groups
from paceline.runner.cuda.kernels.attention.context_parts import ContextCut
from paceline.runner.kv_store import KVStore
from paceline.runner.models.config import HeadShape
from tests.runner.support import Rows, bounds_of, filled_store, rows_of, spoil_passed, tiny

ROWS: list[Rows] = [
    [(1, 1), (1, 40), (1, 16), (1, 150)],
    [(5, 5), (2, 70), (33, 40)],
    [(1, 9), (1, 90), (20, 20), (3, 12)],
]


@pytest.fixture(autouse=True)
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are split into as many parts as a large one needs."""
    monkeypatch.setattr(triton, "BUSY", 16)


def store_for(heads: int, kv_heads: int, head_dim: int, blocks: int, block_size: int) -> KVStore:
    shape = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    return filled_store(tiny(num_hidden_layers=2, **shape), blocks, block_size)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (5, 1, 24)])
@pytest.mark.parametrize("counts", ROWS, ids=str)
def test_rows_of_every_kind(
    counts: Rows, heads: int, kv_heads: int, head_dim: int, window: int | None
) -> None:
    batch, blocks = rows_of(counts, 8)
    kv = store_for(heads, kv_heads, head_dim, blocks, 8)
    spoil_passed(batch, kv, counts, window)
    query = torch.randn(batch.positions, heads, head_dim)
    expected = load("sdpa").prepare(batch, kv).attend(query, 1, window, 0.3)
    got = Triton().prepare(batch, kv).attend(query, 1, window, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    asked = Queries(heads, torch.float32)
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asked)
    assert isinstance(held.others, TiledAttention)
    held.lay_out()
    got = held.attend(query, 1, window, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["triton", "triton_fixed"])
@pytest.mark.parametrize("window", [None, 7])
def test_positions_of_an_image_read_each_other(name: str, window: int | None) -> None:
    batch, blocks = rows_of([(40, 40), (9, 30), (1, 12), (33, 70)], 8)
    kv, ends = store_for(4, 2, 16, blocks, 8), batch.position + 1
    for first, end in ((3, 37), (40, 49), (60, 70)):  # indices in the batch
        ends[first:end] = batch.position[end - 1] + 1
    query = torch.randn(batch.positions, 4, 16)
    for ends_in_windows in (False, True):
        batch = replace(batch, ends=ends, ends_in_windows=ends_in_windows)
        expected = load("sdpa").prepare(batch, kv).attend(query, 1, window, 0.3)
        got = load(name).prepare(batch, kv).attend(query, 1, window, 0.3)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("counts", ROWS, ids=str)
def test_chunks_in_place_of_windows(counts: Rows) -> None:
    batch, blocks = rows_of(counts, 8)
    kv = store_for(4, 2, 16, blocks, 8)
    query = torch.randn(batch.positions, 4, 16)
    expected = ChunkedStep(load("sdpa"), batch, kv, 24).attend(query, 1, 24, 0.3)
    for name in ("triton", "triton_fixed"):
        held = load(name).prepare_mixed_graph(
            batch, kv, bounds_of(counts), len(counts), Queries(4, torch.float32, has_chunks=True)
        )
        held.lay_out()
        for prepared in (held, load(name).prepare(batch, kv)):
            got = InChunks(prepared).attend(query, 1, 24, 0.3)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_scores_are_capped() -> None:
    counts: Rows = [(1, 9), (1, 30), (6, 6), (4, 20)]
    batch, blocks = rows_of(counts, 8)
    kv = store_for(4, 2, 16, blocks, 8)
    query = torch.randn(batch.positions, 4, 16)
    expected = load("sdpa").prepare(batch, kv).attend(query, 1, 7, 0.3, 0.7)
    asked = Queries(4, torch.float32, is_capped=True)
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asked)
    got = held.attend(query, 1, 7, 0.3, 0.7)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_sinks_take_weight_and_have_no_value() -> None:
    counts: Rows = [(1, 9), (1, 90), (6, 6), (4, 20)]
    batch, blocks = rows_of(counts, 8)
    kv, sinks = store_for(4, 2, 16, blocks, 8), torch.randn(4)
    query, truth = torch.randn(batch.positions, 4, 16), load("sdpa").prepare(batch, kv)
    asked = Queries(4, torch.float32, has_sinks=True)
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asked)
    for window in (None, 7):
        expected = truth.attend(query, 1, window, 0.3, None, sinks)
        got = held.attend(query, 1, window, 0.3, None, sinks)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("heads", "rank"), [(20, 16), (6, 20)])
def test_latent_vectors_are_keys_and_values(
    heads: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heads of a vector have several programs, and results are as wide as values."""
    monkeypatch.setattr(head_groups, "MOST_SHARING", 5)
    counts: Rows = [(1, 9), (1, 90), (6, 6), (4, 20)]
    batch, blocks = rows_of(counts, 8)
    shape, config = HeadShape(1, rank + 8, rank), tiny(num_hidden_layers=2)
    kv = KVStore(config, blocks, 8, heads=[shape] * 2)
    kv.content.normal_()
    query = torch.randn(batch.positions, heads, rank + 8)
    expected = load("sdpa").prepare(batch, kv).attend(query, 1, None, 0.3)[..., :rank]
    asked = Queries(heads, torch.float32)
    held = Triton().prepare_mixed_graph(batch, kv, bounds_of(counts), len(counts), asked)
    got = held.attend(query, 1, None, 0.3)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 6])
def test_whoever_ends_last_joins_the_pieces_of_a_context(rows: int) -> None:
    random = Random(rows)
    batch, blocks = rows_of([(1, random.randint(60, 160)) for _ in range(rows)], 16)
    kv = store_for(4, 2, 16, blocks, 16)
    held, truth = Triton().prepare_graph(batch, kv, 4), load("sdpa").prepare(batch, kv)
    for _ in range(2):  # and leaves no trace
        query = torch.randn(rows, 4, 16)
        expected = truth.attend(query, 0, None, 0.3)
        torch.testing.assert_close(held.attend(query, 0, None, 0.3), expected, rtol=1e-4, atol=1e-4)


def test_rows_behind_the_bounds_are_nobodys() -> None:
    batch, blocks = rows_of([(1, 9), (1, 30), (6, 6), (4, 20)], 8)
    kv = store_for(4, 2, 16, blocks, 8)
    query = torch.randn(batch.positions, 4, 16)
    bounds = torch.tensor([2, 3], dtype=torch.int32)
    held = Triton().prepare_mixed_graph(batch, kv, bounds, 4, Queries(4, torch.float32))
    expected = load("sdpa").prepare(batch, kv).attend(query, 0, None, 0.3)
    got = held.attend(query, 0, None, 0.3)
    torch.testing.assert_close(got[:8], expected[:8], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("head_dim", "window", "joined"), [(16, None, 1), (16, 50, 2), (80, None, 8), (80, 50, 1)]
)
def test_single_rows_beside_others_are_cut_however_many_there_are(
    head_dim: int, window: int | None, joined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contexts of which some are shorter than a part; parts are joined, and leave no trace."""
    cut = ContextCut(spare=5, least=1, tile=16, joined=joined)
    monkeypatch.setattr(triton, "context_cut", lambda rows, kv_heads: cut)
    counts: Rows = [(1, 130), (1, 64), (1, 70), (1, 1), (1, 113), (6, 6), (4, 20)]
    batch, blocks = rows_of(counts, 8)
    kv = store_for(4, 2, head_dim, blocks, 8)
    spoil_passed(batch, kv, counts, window)
    query = torch.randn(batch.positions, 4, head_dim)
    expected = load("sdpa").prepare(batch, kv).attend(query, 0, window, 0.3)
    bounds = bounds_of(counts)
    held = Triton().prepare_mixed_graph(batch, kv, bounds, 7, Queries(4, torch.float32))
    for singles, all_ in ((5, 7), (3, 3), (0, 0), (5, 7)):
        bounds.copy_(torch.tensor([singles, all_]))
        held.lay_out()
        got = held.attend(query, 0, window, 0.3)
        seen = len(query) if all_ == len(counts) else singles
        torch.testing.assert_close(got[:seen], expected[:seen], rtol=1e-4, atol=1e-4)
